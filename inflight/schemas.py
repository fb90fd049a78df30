"""JSON files of others, read by a schema and within bounds.

    class Size(Schema):
        layers: Annotated[int, Field(ge=1, le=1000)]

    size = read(Size, "config.json", "model's config", "Download it again.")

A schema is a pydantic model: every type is meant as it is written (no "3" for 3), no number is infinite, fields that it
does not name are left alone.
"""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from inflight import files
from inflight.errors import CourseError

MOST_BYTES = 1 << 20  # of a file of settings
# Values in memory take some 50 times the bytes that the shortest of them, `[],`, has in the file.
MOST_VALUES = 4_000_000
MOST_SHOWN = 120  # characters of a value that does not fit


class Schema(BaseModel):
    """What a file must hold, for a class that names its fields."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())


S = TypeVar("S", bound=Schema)


def read(schema: type[S], path: str | Path, what: str, fix: str, most_bytes: int = MOST_BYTES) -> S:
    """A JSON file as an object of `schema`.

    Parameters
    ----------
    what, fix, most_bytes
        As `files.read_bytes` takes them.

    Raises
    ------
    CourseError
        It cannot be read, is too large, is not JSON, or does not fit: the sentence names the first field that does not.
    """
    return parse(schema, files.read_bytes(path, what, most_bytes, fix), f"The {what} {path}", fix)


def parse(schema: type[S], content: bytes, called: str, fix: str) -> S:
    """JSON text as an object of `schema`; an error begins with what the text is `called`."""
    check_size(content, called, fix)
    try:
        return schema.model_validate_json(content)
    except ValidationError as error:
        raise CourseError(f"{called} {first_problem(error)}. {fix}") from None


def check(schema: type[S], values: object, called: str, fix: str) -> S:
    """Values that are in memory already as an object of `schema`."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise CourseError(f"{called} {first_problem(error)}. {fix}") from None


def check_size(content: bytes, called: str, fix: str) -> None:
    """CourseError for a JSON text of more than `MOST_VALUES`, before it is parsed."""
    if sum(content.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise CourseError(f"{called} holds more than {MOST_VALUES:,} values. {fix}")


def first_problem(error: ValidationError) -> str:
    """What is wrong first, to follow the name of a file: "is not JSON (…)", "has no field x.y", …"""
    found = error.errors(include_url=False, include_context=True)[0]
    field = ".".join(map(str, found["loc"]))[:100]
    if found["type"] == "json_invalid":
        return f"is not JSON ({found['msg'].removeprefix('Invalid JSON: ')})"
    if found["type"] == "missing":
        return f"has no field {field}"
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] == "value_error":
        return f"does not fit together: {message}"
    message = message.removeprefix("Input ")
    return f"does not fit: {field or 'it'} {message}, and is {_shortened(found['input'])}"


def _shortened(value: object) -> str:
    """A value in a few characters, however large it is."""
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return "a number of more than 64 bits"
    is_constant = value is None or isinstance(value, bool)
    shown = json.dumps(value) if is_constant else reprlib.repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}…"
