"""A learner's record: a line of JSON for each checked answer and each prediction, in the workspace they work in.

    record.note("exercise", exercise="4.1", status="done")
    record.exercises()                                        # a row a lesson: how far am I?
    record.tries("5.3")                                       # a row a try
    record.hand_in(workspace.home(), "Ada")                   # the same lines, with a name above them
    record.read_class(Path("handed-in"))                      # for whoever teaches

Nothing is kept outside of a workspace: the course's own notebooks, its tests and its builds leave no trace.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections import Counter
from pathlib import Path

import pandas as pd

from inflight import __version__, syllabus
from inflight.errors import CourseError
from inflight.notebook.checks.answers import as_json
from inflight.notebook.checks.verdict import DONE
from inflight.notebook.pages import workspace
from inflight.paths import without_home

FILE = "journal.jsonl"
BEGIN = '{"at": '  # of each line
HAND_IN = "hand-in"  # the kind of the first line of a file that is handed in


def note(kind: str, **fields: object) -> None:
    """Add a line, of the time now in UTC; without a workspace around the current folder, nothing.

    An answer is worth more than its record: where the line cannot be written, a sentence says so.
    """
    folder = workspace.around(Path.cwd())
    if folder is None:
        return
    line = (json.dumps({"at": _now(), "kind": kind, **fields}, default=as_json) + "\n").encode()
    try:
        with open(folder / FILE, "ab", buffering=0) as file:  # one write: two notebooks at the same time do not mix
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        print(f"This is not kept: {folder / FILE} cannot be written ({error.strerror}).")


def read(path: Path) -> list[dict]:
    """Read the lines of a record, oldest first, without those that are no entry, as where a full disk cut one short."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.replace(BEGIN, f"\n{BEGIN}").splitlines()  # one that was cut short has no end
    return [entry for entry in map(_entry, lines) if isinstance(entry, dict) and isinstance(entry.get("kind"), str)]


# What was done --------------------------------------------------------------------------------------------------------


def answers(entries: list[dict]) -> dict[str, dict]:
    """Return the exercises that were tried, by number.

    For each: `tries`; when a try was first right (`passed`, UTC, blank until then); the hint to the last wrong one
    (`said`).
    """
    found: dict[str, dict] = {}
    for entry in entries:
        if entry["kind"] == "exercise":
            answer = found.setdefault(str(entry.get("exercise")), {"tries": 0, "passed": "", "said": ""})
            answer["tries"] += 1
            if entry.get("status") != DONE:
                answer["said"] = str(entry.get("said", ""))
            elif not answer["passed"]:
                answer["passed"] = str(entry.get("at"))
    return found


def exercises(folder: Path | None = None) -> pd.DataFrame:
    """Return how far a learner is, lesson by lesson.

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
    found, rows = answers(_of_workspace(folder)), []
    for lesson, known in _labs().items():
        tried = {exercise: found[exercise] for exercise in known if exercise in found}
        still_open = [exercise for exercise, answer in tried.items() if not answer["passed"]]
        num_tries = sum(answer["tries"] for answer in tried.values())
        rows.append((lesson, len(known), len(tried) - len(still_open), ", ".join(still_open), num_tries))
    return pd.DataFrame(rows, columns=["lesson", "exercises", "done", "open", "tries"])


def predictions(entries: list[dict]) -> pd.DataFrame:
    """Return the predictions that were measured: `question`, `said`, `measured`, `right`, a row a question."""
    columns = ["question", "said", "measured", "right"]
    rows = [[entry.get(name) for name in columns] for entry in entries if entry["kind"] == "prediction"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates("question")


def last_guess(question: str) -> str | None:
    """Return what was last chosen or written as the prediction of `question`; None outside of a workspace."""
    entries = [entry for entry in _of_workspace(None) if entry["kind"] == "guess" and entry.get("question") == question]
    return entries[-1]["said"] if entries and isinstance(entries[-1].get("said"), str) else None


def tries(exercise: str, folder: Path | None = None) -> pd.DataFrame:
    """Return every checked answer to `exercise` in the workspace: `at`, `status`, `seed`, and a column a figure."""
    rows = [
        {name: entry.get(name) for name in ("at", "status", "seed")}
        | {figure["what"]: figure["value"] for figure in entry.get("figures", [])}
        for entry in _of_workspace(folder)
        if entry["kind"] == "exercise" and entry.get("exercise") == exercise
    ]
    return pd.DataFrame(rows, columns=None if rows else ["at", "status", "seed"])


# A class --------------------------------------------------------------------------------------------------------------


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
            f"There is nothing to hand in: {record} does not exist yet. Your first checked answer creates it."
        )
    path = path or Path("hand-in-{}.jsonl".format(re.sub(r"[\W_]+", "-", name.lower()).strip("-")))
    first = {"at": _now(), "kind": HAND_IN, "name": name, "course": __version__}
    lines = without_home(record.read_text(encoding="utf-8", errors="replace"))
    try:
        path.write_text(json.dumps(first) + "\n" + lines, encoding="utf-8")
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror}); give another place by --save.") from None
    return path


def read_class(folder: Path) -> tuple[list[tuple[str, list[dict]]], list[str]]:
    """Read name and lines of each record handed in to `folder`, and a sentence for each file that is none.

    Raises
    ------
    CourseError
        There is no such folder, or no file in it is a hand-in.
    """
    if not folder.is_dir():
        raise CourseError(f"The class's folder {folder} cannot be read: there is no such folder.")
    found, problems = [], []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        first, *entries = read(path) or [{"kind": ""}]
        if first["kind"] == HAND_IN:
            found.append((printable(str(first.get("name"))), entries))
        else:
            problems.append(printable(f"{path.name} is no hand-in. `inflight progress --hand-in NAME` writes one."))
    if not found:
        raise CourseError(f"No file has been handed in to {folder}. `inflight progress --hand-in NAME` writes a file.")
    return found, problems


def marks(found: list[tuple[str, list[dict]]]) -> pd.DataFrame:
    """Return a row a learner.

    Returns
    -------
    DataFrame
        `learner`; a column for each exercise of the course: the day on which it passed (UTC), else "tried" or blank;
        `passed`, their number; `predictions`, as "4 of 7".
    """
    known, rows = [exercise for lab in _labs().values() for exercise in lab], []
    for name, entries in found:
        tried, guesses = answers(entries), predictions(entries)
        days = [tried[exercise]["passed"][:10] or "tried" if exercise in tried else "" for exercise in known]
        right = f"{guesses['right'].eq(True).sum()} of {len(guesses)}"
        rows.append([name, *days, sum(day not in ("", "tried") for day in days), right])
    return pd.DataFrame(rows, columns=["learner", *known, "passed", "predictions"])


def hints(found: list[tuple[str, list[dict]]]) -> pd.DataFrame:
    """Return a row for each exercise that anybody tried.

    Returns
    -------
    DataFrame
        `exercise`, `lesson`; how many `passed`; how many `tried` and have not passed; `often`, what most were told last
        of an answer that was not right, whatever the numbers in it.
    """
    tried, rows = [answers(entries) for _, entries in found], []
    for lesson, known in _labs().items():
        for exercise in known:
            if ours := [answer[exercise] for answer in tried if exercise in answer]:
                passed = sum(bool(answer["passed"]) for answer in ours)
                said = _most_often([printable(answer["said"]) for answer in ours if answer["said"]])
                rows.append((exercise, lesson, passed, len(ours) - passed, said))
    return pd.DataFrame(rows, columns=["exercise", "lesson", "passed", "tried", "often"])


def printable(text: str) -> str:
    """Return the text without control characters of terminals: a hand-in comes from somebody else."""
    return "".join(mark if mark.isprintable() else "�" for mark in text)


def _most_often(said: list[str]) -> str:
    """Return the most frequent hint: hints that differ only in their numbers count as the same."""
    kinds = [re.sub(r"\d[\d.,]*", "#", text) for text in said]
    if not kinds:
        return ""
    kind, count = Counter(kinds).most_common(1)[0]
    return f"{said[kinds.index(kind)]} ({count} of {len(said)})"


def _of_workspace(folder: Path | None) -> list[dict]:
    folder = folder or workspace.around(Path.cwd())
    return read(folder / FILE) if folder else []


def _labs() -> dict[str, list[str]]:
    """Map a lesson's heading to the numbers of its exercises."""
    return {lesson.heading: lesson.exercise_numbers for lesson in syllabus.read() if lesson.exercises}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _entry(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
