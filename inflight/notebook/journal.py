"""What a learner has done: a line of JSON for each answer that was checked, in the workspace they work in.

    journal.note("exercise", exercise="4.1", status="done")
    progress(workspace.home())                                # a row a lesson

Nothing is kept outside of a workspace: the course's own notebooks, its tests and its builds leave no trace.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import lazy_loader
import numpy as np
import pandas as pd

from inflight.errors import CourseError
from inflight.notebook import syllabus, workspace
from inflight.paths import COURSE

nbformat = lazy_loader.load("nbformat")  # one to two seconds, and no check needs it
FILE = "journal.jsonl"
MOST_BYTES = 16 * 2**20  # some hundred thousand checks
CHECKED = re.compile(r"""\bcheck\(\s*["'](\d+\.\d+)["']""")


def note(kind: str, **fields: object) -> None:
    """Add a line, of the time now in UTC; without a workspace around the current folder, nothing.

    An answer is worth more than its record: where the line cannot be written, a warning takes its place.
    """
    folder = workspace.around(Path.cwd())
    if folder is None:
        return
    entry = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kind": kind, **fields}
    line = json.dumps(entry, default=_plain) + "\n"
    try:
        # One write at the end of the file: two notebooks that note at the same time do not mix.
        handle = os.open(folder / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with open(handle, "ab", buffering=0) as file:
            file.write(line.encode())
    except OSError as error:
        print(f"This is not kept: {folder / FILE} cannot be written ({error.strerror}).")


def read(folder: Path) -> list[dict]:
    """Every line of the journal in `folder`, oldest first; a line cut short, as by a full disk, is left out.

    Raises
    ------
    CourseError
        The file is larger than anybody's work makes it.
    """
    path = folder / FILE
    try:
        if path.stat().st_size > MOST_BYTES:
            raise CourseError(
                f"{path} is larger than {MOST_BYTES:,} bytes: it is no journal of the course; move it away."
            )
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [entry for entry in map(_entry, lines) if entry is not None]


def progress(folder: Path, course: Path = COURSE) -> pd.DataFrame:
    """What was done in the workspace `folder`, lesson by lesson.

    Returns
    -------
    DataFrame
        `lesson`, `exercises`, `done` (answers that were right once), `open` (tried and not right yet, by number),
        `tries` (answers that were checked). Lessons without a lab have 0 exercises.
    """
    entries = [entry for entry in read(folder) if entry["kind"] == "exercise"]
    tried: dict[str, list[str]] = {}
    for entry in entries:
        tried.setdefault(str(entry.get("exercise")), []).append(str(entry.get("status")))
    rows = []
    for lesson in syllabus.read(course):
        if lesson.planned:
            continue
        known = exercises(course, lesson.number)
        checked = {name: tried[name] for name in known if name in tried}
        done = [name for name, statuses in checked.items() if "done" in statuses]
        still_open = ", ".join(name for name in checked if name not in done)
        rows.append((lesson.heading, len(known), len(done), still_open, sum(map(len, checked.values()))))
    return pd.DataFrame(rows, columns=["lesson", "exercises", "done", "open", "tries"])


def predictions(folder: Path) -> pd.DataFrame:
    """What was predicted before it was measured, in the workspace `folder`: the first time for each question.

    Returns
    -------
    DataFrame
        `question`, `said`, `measured`, `right`.
    """
    columns = ["question", "said", "measured", "right"]
    entries = [entry for entry in read(folder) if entry["kind"] == "prediction"]
    rows = pd.DataFrame([[entry.get(name) for name in columns] for entry in entries], columns=columns)
    return rows.drop_duplicates("question", ignore_index=True)


def exercises(course: Path, number: str) -> list[str]:
    """The exercises of a lesson's labs, in their order, by what their cells hand to `check`."""
    cells = [
        cell.source
        for path in sorted((course / "labs").glob(f"{number}_*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]
    return list(dict.fromkeys(CHECKED.findall("\n".join(cells))))


def tries(folder: Path, exercise: str) -> pd.DataFrame:
    """Every checked answer to `exercise` in the workspace `folder`: `at`, `status`, `seed`, and a column a figure."""
    rows = []
    for entry in read(folder):
        if entry["kind"] == "exercise" and entry.get("exercise") == exercise:
            figures = {figure["what"]: figure.get("value") for figure in _figures(entry)}
            rows.append({"at": entry.get("at"), "status": entry.get("status"), "seed": entry.get("seed"), **figures})
    return pd.DataFrame(rows, columns=None if rows else ["at", "status", "seed"])


def changed_by(folder: Path, exercise: str) -> str:
    """What the newest right answer to `exercise` measured, in words, beside doing nothing and the course's own."""
    done = [
        entry
        for entry in read(folder)
        if entry["kind"] == "exercise" and entry.get("exercise") == exercise and entry.get("status") == "done"
    ]
    said = []
    for figure in _figures(done[-1]) if done else ():
        beside = [
            f"{words} {figure[key]:,.4g}"
            for key, words in (("nothing", "doing nothing"), ("course", "the course's"))
            if isinstance(figure.get(key), int | float)
        ]
        said.append(f"{figure['what']} {figure['value']:,.4g}" + (f" ({', '.join(beside)})" if beside else ""))
    return "; ".join(said)


def _plain(value: object) -> object:
    """What JSON can hold of a figure: NumPy's numbers and truths as Python's own, anything else as it is printed."""
    return value.item() if isinstance(value, np.generic) else str(value)


def _figures(entry: dict) -> list[dict]:
    found = entry.get("figures")
    return [
        figure
        for figure in (found if isinstance(found, list) else [])
        if isinstance(figure, dict)
        and isinstance(figure.get("what"), str)
        and isinstance(figure.get("value"), int | float)
    ]


def _entry(line: str) -> dict | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("kind"), str) else None
