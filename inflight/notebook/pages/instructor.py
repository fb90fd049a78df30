"""Reads the instructor's page of a lesson, `instructor.md` in its folder, for slides and checks.

A talking point begins with the heading of the lesson that it belongs to, and so does a row of what is to be expected:

    - **Predict**: let everybody commit before you go on.
    | What an iteration costs | one answer, in ms | `one answer takes {} ms` | 5 to 25 |
"""

import re
from pathlib import Path

LEAVES, KNOW, POINTS, EXPECTED, QUESTIONS, WRONG, ROOM, CUTS = PARTS = (
    "What it must leave behind",
    "What you need to know yourself",
    "Talking points",
    "What to expect",
    "Three questions",
    "Wrong answers and what they mean",
    "What goes wrong in the room",
    "Where to cut",
)
_POINT = re.compile(r"^- \*\*(.+?)\*\*: *(.+(?:\n(?!- |\n).+)*)", re.M)


def parts(folder: Path) -> dict[str, str]:
    """Return the parts (`## …`) of the page of the lesson in `folder`, by heading; none where it has no page."""
    path = folder / "instructor.md"
    found = re.split(r"^## (.+)\n", path.read_text(encoding="utf-8") if path.exists() else "", flags=re.M)
    return {heading: body.strip() for heading, body in zip(found[1::2], found[2::2])}


def points(part: str) -> list[tuple[str, str]]:
    """Return the points of a part, each with the heading that it begins with."""
    return [(heading, re.sub(r"\s+", " ", said)) for heading, said in _POINT.findall(part)]


def rows(part: str) -> list[list[str]]:
    """Return the fields of each row of a part's table, without its head."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[field.strip() for field in line.strip("| ").split("|")] for line in lines[2:]]
