"""The lessons of the course, built and planned, in the order in which they are read: `lessons/syllabus.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from inflight.paths import COURSE

ELECTIVES = "Electives"  # the part of lessons that no other needs


@dataclass(frozen=True)
class Lesson:
    """One lesson: the name of its folder and notebooks, and the part of the course it belongs to.

    `parts` are those of a learner's own stack that are written in its lab: name -> file or folder.
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
        """What a link to the lesson says: its number and title."""
        return f"{self.number} · {self.title}"


def read(course: Path = COURSE) -> list[Lesson]:
    """Every lesson that the syllabus of the clone in `course` names."""
    path = course / "lessons" / "syllabus.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["lesson"]
    return [Lesson(**entry, planned=not (path.parent / entry["name"]).is_dir()) for entry in entries]
