"""What a value in a config may be, and how a problem with one is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """One value of a config: a key of a model's `parameters`, which Triton hands to the model as text, or a field.

    Attributes
    ----------
    kind : str
        "choice", "int", "ints" (with commas between them), "float", "bool", "text", "path", or "folder": a path that is
        there.
    default : value or None
        None means that the key may be left blank.
    choices : tuple of str
        Allowed values of a "choice".
    low, high : number
        Least and greatest value of an "int", a "float", or each of "ints".
    holds : str
        Name, or pattern of names, of a file that a "folder" must hold.
    made_by : str
        Command that makes such a folder.
    help : str
        What it does, in a sentence.
    """

    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    holds: str = ""
    made_by: str = ""
    required: bool = False

    def parse(self, text: str):
        """The Python value of `text`; ValueError says what is allowed instead."""
        if text == "" and not self.required:
            return self.default
        if self.kind == "bool":
            if text.lower() in ("true", "1"):
                return True
            if text.lower() in ("false", "0"):
                return False
            raise ValueError("true or false")
        if self.kind == "choice":
            if text not in self.choices:
                raise ValueError(" or ".join([", ".join(self.choices[:-1]), self.choices[-1]]))
            return text
        if self.kind in ("int", "float"):
            return self._number(text)
        if self.kind == "ints":
            return [self._number(part.strip()) for part in text.strip("[]").split(",")]
        if self.kind == "folder" and not (text and any(Path(text).glob(self.holds))):
            raise ValueError(
                f"a folder with {self.holds} in it" + (f"; `{self.made_by}` makes one" if self.made_by else "")
            )
        if not text:
            raise ValueError("a path")
        return text

    def _number(self, text: str):
        wanted = {"int": "a whole number", "ints": "whole numbers with commas between them, each"}.get(
            self.kind, "a number"
        )
        if self.low is not None:
            wanted += f" of at least {self.low:g}"
        if self.high is not None:
            wanted += f" and at most {self.high:g}"
        try:
            value = float(text) if self.kind == "float" else int(text)
        except ValueError:
            raise ValueError(wanted) from None
        if not (self.low is None or value >= self.low) or not (self.high is None or value <= self.high):
            raise ValueError(wanted)
        return value


@dataclass(frozen=True)
class Problem:
    """Something that would keep a repository from working: where it is, what it is, what to do."""

    file: str
    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        text = f"{self.file}: {self.field}: {self.message} {self.fix}"
        # A folder's name may hold bytes that are no text, which cannot be printed.
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
