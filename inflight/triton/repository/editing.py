"""Values of a config by name: its parameters and Triton's own fields, read, set, and changed on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import files
from inflight.triton.repository import batchers
from inflight.triton.repository.layout import CONFIG
from inflight.triton.repository.parameters import PARAMETERS, Parameter, parameter_problems
from inflight.triton.repository.pbtxt import as_text, diff, parse, read_config, write_config


def get_parameter(config: ModelConfig, name: str) -> str:
    """Return the text of a parameter; blank when it is not there."""
    return config.parameters[name].string_value if name in config.parameters else ""


def spec(model: str, name: str) -> Parameter:
    """Return the row for a key of a model's parameters, or for the path of one of Triton's own fields."""
    return batchers.FIELDS[name] if name in batchers.FIELDS else PARAMETERS[model][name]


def get_value(config: ModelConfig, name: str) -> str:
    """Return the text of a parameter, or of one of `batchers.FIELDS`; blank when it is not there."""
    return batchers.get_field(config, name) if name in batchers.FIELDS else get_parameter(config, name)


def set_value(config: ModelConfig, name: str, value: object) -> None:
    """Set a parameter, or one of `batchers.FIELDS`, after checking key and value.

    Raises
    ------
    CourseError
        Unknown key, or a value that the key does not take. The message is unchanged then.
    """
    text = as_text(value)
    if name in batchers.FIELDS:
        batchers.set_field(config, name, text)
        return
    if problems := parameter_problems(config.name, config.name, {name: text}, only_given=True):
        raise problems[0]
    config.parameters[name].string_value = text


def note_files(config: ModelConfig) -> None:
    """Put a digest of the Python files that a model's parameters name into the config.

    Triton loads a model anew only when its config is another one, and knows nothing of the files that it names.
    """
    named = sorted(value.string_value for value in config.parameters.values() if value.string_value.endswith(".py"))
    if paths := [Path(name) for name in named if Path(name).is_file()]:
        contents = [files.read_bytes(path, "Python file", "Name one that can be read.") for path in paths]
        config.parameters["files_sha256"].string_value = hashlib.sha256(b"\0".join(contents)).hexdigest()


def edit(repo: str | Path, model: str, fragment: str = "", **values: Any) -> str:
    """Change the config of one model on disk: everything that is named or, on an error, nothing.

    Parameters
    ----------
    fragment : str
        Part of a config.pbtxt, such as "dynamic_batching { max_queue_delay_microseconds: 500 }". What it names at its
        top level is replaced; another batcher than before takes the place of that one.
    **values
        Values of the model's parameters, and of `batchers.FIELDS` by their path:
        `**{"dynamic_batching.max_queue_delay_microseconds": 500}`.

    Returns
    -------
    str
        What changed, as a unified diff.

    Raises
    ------
    CourseError
        A key, field or value that is not there or not allowed.
    """
    path = Path(repo) / model / CONFIG
    before = read_config(path)
    after = ModelConfig()
    after.CopyFrom(before)
    part = parse(fragment, "the fragment")
    for field, _ in part.ListFields():
        after.ClearField(field.name)
    after.MergeFrom(part)
    for name, value in values.items():
        set_value(after, name, value)
    write_config(after, path)
    return diff(before, after, f"{model}/{CONFIG}")
