"""Reads and writes a config.pbtxt as protobuf's `ModelConfig`."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

from google.protobuf import text_encoding, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import files
from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.layout import CONFIG, VARIABLE

_BARE_VALUE = re.compile(r"-?\d+|true|false|[A-Z][A-Z0-9_]*")


def parse(text: str, file: str = CONFIG) -> ModelConfig:
    """Read the text of a `config.pbtxt` as a message.

    Raises
    ------
    CourseError
        With line and column of what is not right.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise CourseError(*_parse_reason(str(error), text), where=[file]) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # protobuf's own, without a place
        raise CourseError(f"{error}.", "Correct the value.", where=[file]) from None


def _parse_reason(error: str, text: str) -> tuple[str, str]:
    """Turn protobuf's complaint, "line:column : what", into a sentence and what to do."""
    place, _, what = error.partition(" : ")
    number, _, column = place.partition(":")
    where = f"line {number}, column {column}: " if number.isdecimal() else ""
    line = dict(enumerate(text.splitlines(), 1)).get(int(number)) if where else None
    if line and (variable := VARIABLE.search(line)):
        return f"{where}the variable {variable[0]} is not filled.", "Give it a value when assembling."
    if unknown := re.search(r'Message type "([\w.]+)" has no field named "(\w+)"', error):
        message, name = unknown.groups()
        known = [field.name for field in ModelConfig.DESCRIPTOR.file.pool.FindMessageTypeByName(message).fields]
        return f"{where}there is no field {name!r} here.", did_you_mean(name, known)
    return f"{where}{what.splitlines()[0].strip('.')}.", "Correct this line."


def read_config(path: str | Path) -> ModelConfig:
    """Read a `config.pbtxt`; errors name the file.

    Raises
    ------
    CourseError
        It is not there, cannot be read, or is not right.
    """
    if not Path(path).exists():
        raise CourseError(
            f"{path} does not exist. Assemble the repository: in a notebook by the cell that did, in a terminal by "
            "`inflight assemble`."
        )
    return parse(files.read_text(path, "config", "Assemble the repository again."), str(path))


def to_text(config: ModelConfig) -> str:
    return str(text_format.MessageToString(config, use_short_repeated_primitives=True))


def write_config(config: ModelConfig, path: str | Path) -> None:
    """Write a `config.pbtxt` so that a reader sees the old file or the new one, never half of one."""
    path = Path(path)
    try:
        files.replace_text(path, to_text(config))
    except OSError as error:
        raise CourseError(
            f"{path} cannot be written ({error.strerror}). Make room or make the folder writable."
        ) from error


def fill(template: str, values: dict[str, Any], file: str = CONFIG) -> ModelConfig:
    """Return a template with its variables replaced, as a message.

    A variable inside quotes takes any text, escaped; one outside takes a number, true, false or a name in capitals. So
    no value can become a second field, as it can with `sed`.
    """

    def literal(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        text = as_text(values[name])
        quoted = template[: match.start()].rpartition("\n")[2].count('"') % 2 == 1
        if quoted:
            return str(text_encoding.CEscape(text, as_utf8=True))
        if not _BARE_VALUE.fullmatch(text):
            raise CourseError(f"{file}: {name} is {text!r}; give a number, true, false or a name in capitals.")
        return text

    return parse(VARIABLE.sub(literal, template), file)


def diff(before: ModelConfig, after: ModelConfig, name: str = CONFIG) -> str:
    """Return the unified diff of two configs; blank when they are equal."""
    old, new = (to_text(config).splitlines() for config in (before, after))
    return "\n".join(difflib.unified_diff(old, new, f"{name} (before)", f"{name} (after)", lineterm="", n=3))


def as_text(value: object) -> str:
    """Return a value as a config has it: a dict as JSON; None is blank."""
    if isinstance(value, dict):
        return json.dumps(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
