"""Datasets in MLPerf's layout: a JSON list of objects with `input` (an article), `instruction`, `output` (a summary).

records = read_dataset()
records[0].prompt, records[0].output_len

The prompt is the article and the instruction; the summary is used for its length only, as tokens to ask for.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

from inflight import files
from inflight.errors import CourseError
from inflight.paths import ASSETS

MINI_CNN_EVAL = ASSETS / "datasets" / "mini_cnn_eval.json"
TOKENS_PER_WORD = 1.3  # what the classic client takes for English (--op-tokens-per-word)


@dataclass(frozen=True)
class Record:
    """One object of a dataset."""

    input: str
    instruction: str
    output: str

    @property
    def prompt(self) -> str:
        return f"{self.input} {self.instruction}"

    @property
    def output_len(self) -> int:
        """Tokens to ask for: words of `output` × 1.3, rounded down, at least 1."""
        return max(1, int(len(self.output.split()) * TOKENS_PER_WORD))


def read_dataset(path: str | Path = MINI_CNN_EVAL) -> list[Record]:
    """Read the records of a dataset file, in its order.

    Raises
    ------
    CourseError
        There is no such file, it is not a JSON list, the list is empty, or a record is broken: the message says which.
    """
    path = Path(os.path.expanduser(path))
    text = files.read_text(path, "dataset", "Give the path of a JSON file in UTF-8.")
    try:
        objects = json.loads(text)
    except ValueError as error:
        raise CourseError(f"The dataset {path} is not JSON ({error}): download or copy it again.") from None
    if not isinstance(objects, list):
        raise CourseError(
            f"The dataset {path} is not a JSON list of records: give a file in the layout of cnn_eval.json."
        )
    if not objects:
        raise CourseError(f"The dataset {path} has no records: give a file that has some.")
    for number, thing in enumerate(objects, start=1):
        if problem := _problem(thing):
            raise CourseError(f"Record {number} of the dataset {path} {problem}: correct or remove it.")
    return [Record(*(thing[field.name] for field in fields(Record))) for thing in objects]


def _problem(thing: object) -> str | None:
    """Say what is wrong with one element of a dataset's list."""
    if not isinstance(thing, dict):
        return "is not an object with input, instruction and output"
    for field in fields(Record):
        if not isinstance(thing.get(field.name), str) or not thing[field.name].strip():
            return f"has no {field.name}, or one that is not text"
    return None
