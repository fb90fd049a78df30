"""The form that every lecture and lab has, and the minutes that a lesson takes: counted, not guessed.

    python -m tools.form     a row a lesson: words, code cells, machine time, minutes counted and promised

A lesson's machine time is what its last build took, which the build writes to `lessons/machine_seconds.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode
from rich.console import Console
from rich.table import Table

from inflight.notebook import sections, syllabus
from inflight.paths import COURSE

MOST_WORDS, MOST_CELLS = 2000, 30  # of a lecture; code in fences, tables and folded answers count no words
WORDS_A_MINUTE = 160  # of a text that explains
MINUTES_A_CELL = 0.9  # to read a cell of code and what it shows: 39 of them and 1,602 words took a learner 45 minutes
TOLERANCE_MIN = 5  # how far the promised minutes may be from the counted ones
IGNORES = "nbval-ignore-output"
HELPS = ["Where to look", "How to begin", "The error you see"]
EFFORT = re.compile(r"\*(Core · )?importance [1-5]/5 · difficulty [1-5]/5 · (\d+) minutes\*")
EXERCISE = re.compile(r"^## Exercise (\d+\.\d+)\b", re.M)
FOLDED = re.compile(r"<details.*?</details>", re.S)
SECONDS = "machine_seconds.json"


@dataclass(frozen=True)
class Size:
    """How much of a lesson there is to take in: words of prose, code cells, and seconds that they run."""

    words: int
    cells: int
    machine_s: float

    @property
    def minutes(self) -> float:
        return self.words / WORDS_A_MINUTE + self.cells * MINUTES_A_CELL + self.machine_s / 60


def size(lecture: NotebookNode, machine_s: float = 0.0) -> Size:
    """The size of a lecture."""
    return Size(len(_prose(lecture).split()), len(_code(lecture)), machine_s)


def machine_seconds(root: Path = COURSE) -> dict[str, float]:
    """What each notebook's last build took, as "notebooks/01_engine"; empty where nothing was built yet."""
    path = root / "lessons" / SECONDS
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def lecture_problems(lecture: NotebookNode, name: str, minutes: int, machine_s: float) -> Iterator[str]:
    """What a lecture has too much of, and which of its sections cannot stand alone or check nothing."""
    measured = size(lecture, machine_s)
    if measured.words > MOST_WORDS or measured.cells > MOST_CELLS:
        yield (
            f"{measured.words} words and {measured.cells} code cells; at most {MOST_WORDS} and {MOST_CELLS}: an "
            "addition names what it replaces"
        )
    if abs(measured.minutes - minutes) > TOLERANCE_MIN:
        yield f"takes {measured.minutes:.0f} minutes and promises {minutes}: see `python -m tools.form`"
    if not any("parameters" in _tags(cell) for cell in _code(lecture)):
        yield "has no cell tagged `parameters` that papermill could answer its prediction in"
    yield from sections.unmet(lecture, name[:2])
    yield from _unchecked(lecture)


def lab_problems(lab: NotebookNode) -> Iterator[str]:
    """Which part of a lab's form is missing."""
    text = _markdown(lab)
    found = EXERCISE.split(text)
    exercises = dict(zip(found[1::2], found[2::2], strict=True))
    if len(exercises) < 4:
        yield f"has {len(exercises)} exercises; at least 4"
    efforts = {number: EFFORT.search(part) for number, part in exercises.items()}
    for number, effort in efforts.items():
        if effort is None:
            yield f"exercise {number} does not say importance, difficulty and minutes"
        helps = re.findall(r"<summary>(.*?)</summary>", exercises[number].split("\n## ")[0])
        if helps[: len(HELPS)] != HELPS:
            yield f"exercise {number} folds {helps}; the helps are {HELPS}"
    if sum(bool(effort and effort[1]) for effort in efforts.values()) != 2:
        yield "does not mark two exercises as Core"
    if not re.search(r"^## Bonus", text, re.M):
        yield "has no `## Bonus` for those who are early"
    transfer = text.partition("\n## Elsewhere")[2]
    if transfer.count("<summary>Answer</summary>") < 3:
        yield "has no three questions of transfer with folded answers under `## Elsewhere`"


def _unchecked(lecture: NotebookNode) -> Iterator[str]:
    code = _code(lecture)
    ignoring = [cell for cell in code if IGNORES in _tags(cell)]
    if len(ignoring) > len(code) / 2:
        yield f"{len(ignoring)} of {len(code)} code cells ignore their output; at most half may"
    heading, cells = "", list[NotebookNode]()
    for cell in [*lecture.cells, None]:
        starts = cell is None or (cell.cell_type == "markdown" and re.search(r"^## ", cell.source, re.M))
        if starts:
            ignores = any(IGNORES in _tags(one) and "session.running()" not in one.source for one in cells)
            if ignores and not any(re.search(r"^\s*assert ", one.source, re.M) for one in cells):
                yield f"the section {heading!r} ignores what a cell shows and asserts nothing"
            cells = []
        if cell is not None and starts:
            heading = re.findall(r"^## (.*)", cell.source, re.M)[-1]
        elif cell is not None and cell.cell_type == "code":
            cells.append(cell)


def _prose(notebook: NotebookNode) -> str:
    text = re.sub(r"^(```|~~~).*?^\1", "", FOLDED.sub("", _markdown(notebook)), flags=re.M | re.S)
    return "\n".join(row for row in text.splitlines() if not row.lstrip().startswith("|"))


def _markdown(notebook: NotebookNode) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def main() -> None:
    """Print the table."""
    from tools.lessons import source

    took, shown = machine_seconds(), Table("lesson")
    for column in ("words", "code cells", "ignored", "machine (s)", "minutes counted", "promised"):
        shown.add_column(column, justify="right")
    for lesson in syllabus.read():
        if lesson.planned:
            continue
        lecture = source(COURSE / "lessons" / lesson.name, "notebooks")
        counted = size(lecture, took.get(f"notebooks/{lesson.name}", 0.0))
        ignored = sum(IGNORES in _tags(cell) for cell in _code(lecture))
        row = (counted.words, counted.cells, ignored, f"{counted.machine_s:.0f}", f"{counted.minutes:.0f}")
        shown.add_row(lesson.heading, *map(str, (*row, lesson.minutes)))
    Console().print(shown)


if __name__ == "__main__":
    main()
