"""A config.pbtxt as what it is: a protobuf message (`ModelConfig`) in text form, read and written as that message."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from google.protobuf import text_encoding, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import files
from inflight.errors import CourseError
from inflight.triton.repository.layout import CONFIG, VARIABLE

MOST_BYTES = 1 << 20  # the longest that come with Triton have some 10,000
_LONG_WORD = re.compile(r"\S{81,}")  # a file that is no config may have lines of any length
_BARE_VALUE = re.compile(r"-?\d+|true|false|[A-Z][A-Z0-9_]*")


def parse(text: str, file: str = CONFIG) -> ModelConfig:
    """A `config.pbtxt` as a message.

    Raises
    ------
    CourseError
        With line and column of what is not right.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        reason = _parse_reason(str(error), text)
        raise CourseError(f"{file}: {_LONG_WORD.sub(lambda word: f'{word[0][:80]}…', reason)}") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # protobuf's own, without a place
        raise CourseError(f"{file}: {str(error)[:200]}. Correct the value.") from None


def _parse_reason(error: str, text: str) -> str:
    """Protobuf's complaint, in a sentence that says what to do."""
    place = re.match(r"(\d+):(\d+) : ", error)
    where = f"line {place[1]}, column {place[2]}: " if place else ""
    line = text.splitlines()[int(place[1]) - 1] if place and int(place[1]) <= len(text.splitlines()) else ""
    field = re.search(r"(\w+)\s*:[\s\[]*$", line[: int(place[2]) - 1]) if place else None
    where += f"{field[1]}: " if field else ""
    variable = VARIABLE.search(line)
    if variable:
        return f"{where}the variable ${{{variable[1]}}} is not filled. Give it a value when assembling."
    unknown = re.search(r'Message type "([\w.]+)" has no field named "(\w+)"', error)
    if unknown:
        return f"{where}{_unknown_field(*unknown.groups())}"
    both = re.search(r'Field "(\w+)" is specified along with field "(\w+)"', error)
    if both:
        return f"{where}{both[1]} and {both[2]} exclude each other: only one of them can be chosen. Take one out."
    value = re.search(r'Enum type "([\w.]+)" has no value named (\w+)', error)
    if value:
        names = ModelConfig.DESCRIPTOR.file.pool.FindEnumTypeByName(value[1]).values_by_name
        return (
            f"{where}there is no {value[1].rpartition('.')[2]} {value[2]}, only {', '.join(names)}. Correct this line."
        )
    reason = error.split(" : ", 1)[-1].splitlines()[0].strip(".'")
    return f"{where}{reason.rpartition(chr(39) + ': ')[2]}. Correct this line."


def _unknown_field(message: str, name: str) -> str:
    """What to do about a field that a message of this type does not have."""
    whole = ModelConfig.DESCRIPTOR
    known = [field.name for field in whole.file.pool.FindMessageTypeByName(message).fields]
    near = difflib.get_close_matches(name, known, 1)
    if message == whole.full_name:
        said = f"there is no field {name!r}."
    else:
        said = f"there is no field {name!r} inside of {_as_field(message)}, only {', '.join(known)}."
    if near:
        return f"{said} Did you mean {near[0]!r}?"
    if message != whole.full_name and name in whole.fields_by_name:
        return f"{said} Close the brace of what stands before it: {name!r} belongs to the whole config."
    return said


def _as_field(message: str) -> str:
    """The name of the field that holds such a message: "inference.ModelInstanceGroup" -> "instance_group"."""
    name = message.rpartition(".")[2].removeprefix("Model").removesuffix("Entry")  # of a map: ParametersEntry
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def read_config(path: str | Path) -> ModelConfig:
    """Read a `config.pbtxt`; errors name the file.

    Raises
    ------
    CourseError
        It is not there, cannot be read, is too large for a config, or is not right.
    """
    if not Path(path).exists():
        raise CourseError(
            f"{path} does not exist. Assemble the repository: in a notebook by the cell that did, in a terminal by "
            "`inflight assemble`."
        )
    return parse(files.read_text(path, "config", MOST_BYTES, "Assemble the repository again."), str(path))


def to_text(config: ModelConfig) -> str:
    return text_format.MessageToString(config, use_short_repeated_primitives=True)


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
    """A template with its variables replaced, as a message.

    A variable inside quotes takes any text, escaped; one outside takes a number, true, false or a name in capitals. So
    no value can become a second field, as it can with `sed`.
    """

    def literal(match: re.Match) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        text = as_text(values[name])
        quoted = template[: match.start()].rpartition("\n")[2].count('"') % 2 == 1
        if quoted:
            return text_encoding.CEscape(text, as_utf8=True)
        if not _BARE_VALUE.fullmatch(text):
            raise CourseError(f"{file}: {name} is {text!r}; give a number, true, false or a name in capitals.")
        return text

    return parse(VARIABLE.sub(literal, template), file)


def diff(before: ModelConfig, after: ModelConfig, name: str = CONFIG) -> str:
    """Unified diff of two configs; blank when they are equal."""
    old, new = (to_text(config).splitlines() for config in (before, after))
    return "\n".join(difflib.unified_diff(old, new, f"{name} (before)", f"{name} (after)", lineterm="", n=3))


def as_text(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
