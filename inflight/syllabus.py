"""Reads the lessons of the course in reading order: `lessons/order.toml`, and each lesson's `lesson.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from inflight.errors import CourseError
from inflight.paths import PACKAGE

LESSONS = PACKAGE / "lessons"
ELECTIVES = "Electives"  # the part of lessons that no other needs


@dataclass(frozen=True)
class Lesson:
    """One lesson: its folder, its place in the course, and the part of the course it belongs to.

    `exercises` is how many its lab has; `parts` are the parts of the learner's own stack that it has them write, each
    with its file or folder.
    """

    folder: Path
    number: str
    part: str
    title: str
    question: str
    exercises: int = 0
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return self.folder.name

    @property
    def name(self) -> str:
        """The name of its notebooks, such as "04_batching"."""
        return f"{self.number}_{self.topic}"

    @property
    def exercise_numbers(self) -> list[str]:
        """The numbers of its exercises, as `check` takes them: "4.1", "4.2", …"""
        return [f"{int(self.number)}.{place}" for place in range(1, self.exercises + 1)]

    @property
    def heading(self) -> str:
        """The text of a link to the lesson: its number and title."""
        return f"{self.number} · {self.title}"


def read(lessons: Path = LESSONS) -> list[Lesson]:
    """Read every lesson of the folder `lessons`, in its order."""
    parts = tomllib.loads((lessons / "order.toml").read_text(encoding="utf-8"))["part"]
    places = [(part["title"], topic) for part in parts for topic in part["lessons"]]
    return [
        Lesson(folder, f"{number:02}", part, **tomllib.loads((folder / "lesson.toml").read_text(encoding="utf-8")))
        for number, (part, topic) in enumerate(places)
        for folder in [lessons / topic]
    ]


def select(found: list[Path], lessons: list[str] | None) -> list[Path]:
    """Return those of `found` that `lessons` names by number or name (None: all); CourseError for a name not there."""
    for name in lessons or []:
        if not any(name in (path.stem, path.stem[:2]) for path in found):
            raise CourseError(f"No lesson {name!r}; the lessons are {', '.join(path.stem for path in found)}.")
    return [path for path in found if not lessons or path.stem in lessons or path.stem[:2] in lessons]
