"""Reads the lessons of the course, built and planned, in reading order: `lessons/syllabus.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from inflight.paths import COURSE

ELECTIVES = "Electives"  # the part of lessons that no other needs


@dataclass(frozen=True)
class Lesson:
    """One lesson: the name of its folder and notebooks, and the part of the course it belongs to.

    `parts` are the parts of the learner's own stack that its lab has them write: name -> file or folder.
    """

    name: str
    part: str
    title: str
    question: str
    minutes: int
    planned: bool
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        return self.name[:2]

    @property
    def heading(self) -> str:
        """The text of a link to the lesson: its number and title."""
        return f"{self.number} · {self.title}"


def read(course: Path = COURSE) -> list[Lesson]:
    """Read every lesson that the syllabus of the clone in `course` names."""
    path = course / "lessons" / "syllabus.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["lesson"]
    return [Lesson(**entry, planned=not (path.parent / entry["name"]).is_dir()) for entry in entries]
