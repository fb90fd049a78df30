"""The instructor's page of a lesson, `assets/instructor/NN_topic.md`: what it is made of, read for slides and checks.

A page has the parts of `PARTS`, in this order. A talking point begins with the heading of the lesson that it belongs
to, and so does a row of what is to be expected:

    - **Predict**: let everybody commit before you go on.
    | What an iteration costs | one answer, in ms | `one answer takes {} ms` | 5 to 25 |

The third field is what the lesson prints there, with `{}` for the figure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from inflight.paths import ASSETS

PAGES = ASSETS / "instructor"
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


@dataclass(frozen=True)
class Expected:
    """A figure that a lesson shows, and where it lies on a machine of two cores.

    Attributes
    ----------
    heading : str
        The section of the lesson that shows it.
    what : str
        What it is, with its unit.
    words : str
        What the lesson prints, with `{}` for the figure.
    low, high : float
        Its normal range; equal where it is always the same.
    """

    heading: str
    what: str
    words: str
    low: float
    high: float

    @property
    def normal(self) -> str:
        """The range as one reads it."""
        return f"{self.low:,g}" if self.low == self.high else f"{self.low:,g} to {self.high:,g}"

    def pattern(self) -> re.Pattern:
        """Finds the figure in what the lesson prints."""
        before, after = map(re.escape, self.words.split("{}"))
        return re.compile(rf"{before}\s*([\d,]+(?:\.\d+)?)\s*{after}".replace(r"\ ", r"\s+"))


def path(lesson: str, pages: Path = PAGES) -> Path:
    """Where the page of a lesson such as "04_batching" is."""
    return pages / f"{lesson}.md"


def parts(text: str) -> dict[str, str]:
    """The parts of a page by their headings (`## …`), in their order."""
    found = re.split(r"^## (.+)\n", text, flags=re.M)
    return {heading: body.strip() for heading, body in zip(found[1::2], found[2::2])}


def points(part: str) -> list[tuple[str, str]]:
    """The points of a part, each with the heading that it begins with."""
    return [(heading, re.sub(r"\s+", " ", said)) for heading, said in _POINT.findall(part)]


def rows(part: str) -> list[list[str]]:
    """The fields of each row of the tables in a part, without their heads."""
    found: list[list[str]] = []
    for line in part.splitlines():
        if not line.startswith("|"):
            continue
        fields = [field.strip() for field in line.strip().strip("|").split("|")]
        if set(fields[0]) <= set("-: "):
            found.pop()  # what stood above this line was the head
        else:
            found.append(fields)
    return found


def expected(part: str) -> list[Expected]:
    """What a page expects of its lesson.

    Raises
    ------
    ValueError
        A row is not of this form.
    """
    found = []
    for fields in rows(part):
        if len(fields) != 4 or fields[2].count("{}") != 1:
            raise ValueError(f"| {' | '.join(fields)} | is no row of heading, figure, `words with {{}}`, range")
        low, _, high = fields[3].replace(",", "").partition(" to ")
        found.append(Expected(fields[0], fields[1], fields[2].strip("`"), float(low), float(high or low)))
    return found
