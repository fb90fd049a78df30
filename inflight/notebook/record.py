"""A learner's record: a line of JSON for each checked answer and each prediction, in the workspace they work in.

    record.note("exercise", exercise="4.1", status="done")
    record.exercises()                                        # a row a lesson: how far am I?
    record.hand_in(workspace.home(), "Ada")                   # the same lines, with a name above them
    record.read_class(Path("handed-in"))                      # for whoever teaches

Nothing is kept outside of a workspace: the course's own notebooks, its tests and its builds leave no trace.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import lazy_loader
import numpy as np
import pandas as pd

from inflight import __version__
from inflight.errors import CourseError
from inflight.notebook import mine, syllabus, workspace
from inflight.paths import COURSE

nbformat = lazy_loader.load("nbformat")  # one to two seconds, and no check needs it
FILE = "journal.jsonl"
HAND_IN = "hand-in"  # the kind of the first line of a file that is handed in
CHECKED = re.compile(r"""\bcheck\(\s*["'](\d+\.\d+)["']""")


def note(kind: str, **fields: object) -> None:
    """Add a line, of the time now in UTC; without a workspace around the current folder, nothing.

    An answer is worth more than its record: where the line cannot be written, a sentence says so.
    """
    folder = workspace.around(Path.cwd())
    if folder is None:
        return
    entry = {"at": _now(), "kind": kind, **fields}
    line = json.dumps(entry, default=_plain) + "\n"
    try:
        # One write at the end of the file: two notebooks that note at the same time do not mix.
        handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with open(handle, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError as error:
        print(f"This is not kept: {folder / FILE} cannot be written ({error.strerror}).")


def read(path: Path) -> list[dict]:
    """The lines of a record, oldest first; a line cut short, as by a full disk, is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [entry for entry in map(_entry, lines) if entry is not None]


# What was done --------------------------------------------------------------------------------------------------------


def exercises(folder: Path | None = None, course: Path = COURSE) -> pd.DataFrame:
    """How far a learner is, lesson by lesson.

    Parameters
    ----------
    folder : Path, optional
        The workspace; by default the one around the notebook. In the course's own copy nothing is done.

    Returns
    -------
    DataFrame
        `lesson`, `exercises`, `done` (answers that were right once), `open` (tried and not right yet, by number),
        `tries` (answers that were checked); of lessons with a lab.
    """
    folder = folder or workspace.around(Path.cwd())
    found = answers(read(folder / FILE)) if folder else {}
    rows = []
    for lesson, known in _labs(course).items():
        tried = [found[exercise] for exercise in known if exercise in found]
        still_open = ", ".join(answer.exercise for answer in tried if not answer.passed)
        done = sum(bool(answer.passed) for answer in tried)
        rows.append((lesson, len(known), done, still_open, sum(answer.tries for answer in tried)))
    return pd.DataFrame(rows, columns=["lesson", "exercises", "done", "open", "tries"])


def predictions(entries: list[dict]) -> pd.DataFrame:
    """What was predicted before it was measured: `question`, `said`, `measured`, `right`, a row a question."""
    columns = ["question", "said", "measured", "right"]
    rows = [[entry.get(name) for name in columns] for entry in entries if entry["kind"] == "prediction"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates("question", ignore_index=True)


def tries(folder: Path, exercise: str) -> pd.DataFrame:
    """Every checked answer to `exercise` in the workspace `folder`: `at`, `status`, `seed`, and a column a figure."""
    rows = [
        {name: entry.get(name) for name in ("at", "status", "seed")}
        | {figure["what"]: figure["value"] for figure in entry.get("figures", [])}
        for entry in read(folder / FILE)
        if entry["kind"] == "exercise" and entry.get("exercise") == exercise
    ]
    return pd.DataFrame(rows, columns=None if rows else ["at", "status", "seed"])


def summary(folder: Path) -> dict[str, pd.DataFrame]:
    """What `inflight progress` shows of the workspace `folder`: the tables "exercises", "predictions" and "parts"."""
    return {
        "exercises": exercises(folder),
        "predictions": predictions(read(folder / FILE)),
        "parts": mine.table(folder),
    }


@dataclass
class Answer:
    """What became of one exercise.

    Attributes
    ----------
    exercise : str
    tries : int
        Answers that were checked.
    passed : str
        When one of them was right first, in UTC; blank until then.
    said : str
        What was said of the last one that was not right.
    """

    exercise: str
    tries: int = 0
    passed: str = ""
    said: str = ""


def answers(entries: list[dict]) -> dict[str, Answer]:
    """The exercises that were tried, by number."""
    found: dict[str, Answer] = {}
    for entry in entries:
        if entry["kind"] == "exercise":
            exercise = str(entry.get("exercise"))
            answer = found.setdefault(exercise, Answer(exercise))
            answer.tries += 1
            if entry.get("status") == "done":
                answer.passed = answer.passed or str(entry.get("at"))
            else:
                answer.said = str(entry.get("said", ""))
    return found


# A class --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HandedIn:
    """A record that was handed in: the learner's name, and its lines."""

    name: str
    entries: list[dict]


def hand_in(folder: Path, name: str, path: Path | None = None) -> Path:
    """Copy the record of the workspace `folder` to a file that may be handed in; a line above says whose it is.

    Parameters
    ----------
    path : Path, optional
        The file; by default one of that name in the current folder.

    Raises
    ------
    CourseError
        There is no record, or the file cannot be written.
    """
    record = folder / FILE
    if not record.is_file():
        raise CourseError(
            f"There is nothing to hand in: {record} is not there. It begins with the first checked answer."
        )
    path = path or Path("hand-in-{}.jsonl".format(re.sub(r"[\W_]+", "-", name.lower()).strip("-")))
    first = {"at": _now(), "kind": HAND_IN, "name": name, "course": __version__}
    lines = record.read_text(encoding="utf-8", errors="replace").replace(str(Path.home()), "~")
    try:
        path.write_text(json.dumps(first) + "\n" + lines, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror}); give another place by --save.") from None
    return path


def read_class(folder: Path) -> tuple[list[HandedIn], list[str]]:
    """Every record that was handed in to `folder`, and a sentence for each file there that is none.

    Raises
    ------
    CourseError
        The folder cannot be read, or no file in it is a hand-in.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise CourseError(f"The class's folder {folder} cannot be read ({error.strerror}).") from None
    found, problems = [], []
    for path in paths:
        first, *entries = read(path) or [{"kind": ""}]
        if first["kind"] == HAND_IN:
            found.append(HandedIn(printable(str(first.get("name"))), entries))
        else:
            problems.append(printable(f"{path.name} is no hand-in. `inflight progress --hand-in NAME` writes one."))
    if not found:
        raise CourseError(
            f"Nobody has handed in anything to {folder}. `inflight progress --hand-in NAME` writes a file."
        )
    return found, problems


def marks(found: list[HandedIn], course: Path = COURSE) -> pd.DataFrame:
    """A row a learner.

    Returns
    -------
    DataFrame
        `learner`; a column for each exercise of the course: the day on which it passed (UTC), else "tried" or blank;
        `passed`, their number; `predictions`, as "4 of 7".
    """
    known = [exercise for lab in _labs(course).values() for exercise in lab]
    rows = []
    for handed in found:
        tried, guesses = answers(handed.entries), predictions(handed.entries)
        days = [_mark(tried.get(exercise)) for exercise in known]
        passed = sum(day not in ("", "tried") for day in days)
        right = f"{guesses['right'].eq(True).sum()} of {len(guesses)}"
        rows.append([handed.name, *days, passed, right])
    return pd.DataFrame(rows, columns=["learner", *known, "passed", "predictions"])


def hints(found: list[HandedIn], course: Path = COURSE) -> pd.DataFrame:
    """A row an exercise that anybody tried.

    Returns
    -------
    DataFrame
        `exercise`, `lesson`; how many `passed`; how many `tried` and have not passed; `often`, what most were told last
        of an answer that was not right, whatever the numbers in it.
    """
    tried = [answers(handed.entries) for handed in found]
    rows = []
    for lesson, known in _labs(course).items():
        for exercise in known:
            if ours := [answer[exercise] for answer in tried if exercise in answer]:
                passed = sum(bool(answer.passed) for answer in ours)
                said = _most_often([printable(answer.said) for answer in ours if answer.said])
                rows.append((exercise, lesson, passed, len(ours) - passed, said))
    return pd.DataFrame(rows, columns=["exercise", "lesson", "passed", "tried", "often"])


def printable(text: str) -> str:
    """The text without what a terminal obeys: a hand-in comes from somebody else."""
    return "".join(mark if mark.isprintable() else "�" for mark in text)


# Of one line ----------------------------------------------------------------------------------------------------------


def _labs(course: Path) -> dict[str, list[str]]:
    """Heading of a lesson -> the exercises of its lab, by what their cells hand to `check`."""
    found = {}
    for lesson in syllabus.read(course):
        cells = [
            cell.source
            for path in sorted((course / "labs").glob(f"{lesson.number}_*.ipynb"))
            for cell in nbformat.read(path, as_version=4).cells
            if cell.cell_type == "code"
        ]
        if cells:
            found[lesson.heading] = list(dict.fromkeys(CHECKED.findall("\n".join(cells))))
    return found


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _plain(value: object) -> object:
    """What JSON can hold of a figure: NumPy's numbers and truths as Python's own, anything else as it is printed."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _entry(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("kind"), str) else None


def _mark(answer: Answer | None) -> str:
    if answer is None:
        return ""
    return answer.passed[:10] if answer.passed else "tried"


def _most_often(said: list[str]) -> str:
    """The hint that stands for most of them: two that differ in their numbers alone are the same."""
    kinds = Counter(re.sub(r"\d[\d.,]*", "#", text) for text in said)
    if not kinds:
        return ""
    kind, count = kinds.most_common(1)[0]
    example = next(text for text in said if re.sub(r"\d[\d.,]*", "#", text) == kind)
    return f"{example} ({count} of {len(said)})"
