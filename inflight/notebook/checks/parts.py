"""The learner's own stack: what they wrote in the labs, kept in `work/mine/` once its check has passed.

    path = parts.part("scheduler")       # the learner's file where there is one, else the course's
    client = parts.load("client")        # what it defines: client.ask(…)

Lectures, builds and tests use the course's parts: outside of a workspace there are no others.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from inflight import syllabus
from inflight.errors import CourseError
from inflight.files import replace_text
from inflight.notebook import pages
from inflight.notebook.checks import answers

if TYPE_CHECKING:
    import pandas as pd

# Every part: the name of its file or folder; and the course's own, made of its lab's solution.
PARTS = {name: file for lesson in syllabus.read() for name, file in lesson.parts.items()}
COURSES_OWN = {
    name: lesson.folder / "parts" / file for lesson in syllabus.read() for name, file in lesson.parts.items()
}
PASSED = "parts.json"  # in work/mine: which exercise each part has passed
LITTER = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


@dataclass(frozen=True)
class Part:
    """A part, the learner's or the course's; it stands wherever a path does.

    Attributes
    ----------
    name : str
    path : Path
    exercise : str
        The exercise that the learner's own part has passed; blank for the course's.
    why : str
        Why the course's part is used, in a few words; blank for the learner's.
    """

    name: str
    path: Path
    exercise: str = ""
    why: str = ""

    @property
    def is_own(self) -> bool:
        return bool(self.exercise)

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __repr__(self) -> str:
        whose = f"yours, passed {self.exercise}" if self.is_own else f"the course's; {self.why}"
        return f"{self.name}: {whose}"


def part(name: str) -> Part:
    """Return the learner's part where there is one that has passed its check, the course's otherwise.

    Parameters
    ----------
    name : str
        One of `PARTS`.

    Raises
    ------
    CourseError
        There is no such part, or neither the learner nor the course has it.
    """
    if name not in PARTS:
        raise CourseError(f"There is no part {name!r}; there are {', '.join(PARTS)}.")
    folder = _folder()
    if folder is not None and (folder / PARTS[name]).exists() and (exercise := _passed(folder).get(name)):
        return Part(name, folder / PARTS[name], exercise)
    why = "this is no workspace of a learner" if folder is None else "yours has not passed its check yet"
    courses = COURSES_OWN[name]
    if not courses.exists():
        raise CourseError(f"There is no {name} to use: {why}, and the course has none of its own. Do its lab first.")
    return Part(name, courses, why=why)


def load(name: str) -> SimpleNamespace:
    """Run the part, a Python file, and return what it defines.

    Raises
    ------
    CourseError
        As `part`; or its file cannot be imported.
    """
    found = part(name)
    try:
        return answers.load(found.path)
    except Exception as error:
        raise CourseError(f"{found.path} cannot be imported ({type(error).__name__}: {error}); fix it.") from error


def keep(name: str, path: Path, exercise: str) -> str:
    """Copy what has passed `exercise`, such as "5.3", into the workspace. A part that has passed a later one stays.

    A different part that was kept before stays beside it.

    Returns
    -------
    str
        A sentence: where it is, or what stays in its place. Blank outside of a workspace.
    """
    folder = _folder()
    if folder is None:
        return ""
    own, passed = folder / PARTS[name], _passed(folder)
    if own.exists() and _order(passed.get(name, "")) > _order(exercise):
        return f"{pages.workspace.MINE}/{PARTS[name]} stays as it is: yours of exercise {passed[name]}, a later one."
    try:
        folder.mkdir(exist_ok=True)
        if not own.exists() or not own.samefile(path):
            if own.exists() and (own.is_dir() or not filecmp.cmp(path, own, shallow=False)):
                pages.workspace.set_aside(own)
            if path.is_dir():
                shutil.copytree(path, own, ignore=LITTER)
            else:
                shutil.copyfile(path, own)
        told = {part: {"exercise": of} for part, of in (passed | {name: exercise}).items()}
        replace_text(folder / PASSED, json.dumps(told, indent=1) + "\n")
    except OSError as error:
        return f"Your {name} is right, but not kept: {own} cannot be written ({error.strerror or error})."
    return f"Kept as {pages.workspace.MINE}/{PARTS[name]}, your {name} from here on."


def table(folder: Path) -> pd.DataFrame:
    """The parts of the learner whose workspace is `folder`: `part`, `whose`, the `exercise` that it passed."""
    import pandas as pd

    folder = folder / pages.workspace.MINE
    passed, rows = _passed(folder), []
    for name, file in PARTS.items():
        is_own = name in passed and (folder / file).exists()
        rows.append((name, "yours" if is_own else "the course's", passed[name] if is_own else ""))
    return pd.DataFrame(rows, columns=["part", "whose", "exercise"])


def _folder() -> Path | None:
    """Return the folder of the learner's parts, or None outside of a workspace."""
    work = pages.workspace.around(Path.cwd())
    return None if work is None else work / pages.workspace.MINE


def _passed(folder: Path) -> dict[str, str]:
    """Return which exercise each part has passed; none where the record is lost or cannot be read."""
    try:
        found = json.loads((folder / PASSED).read_text(encoding="utf-8"))
        return {name: str(entry["exercise"]) for name, entry in found.items() if name in PARTS}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}


def _order(exercise: str) -> tuple[int, ...]:
    """Return the sort key of an exercise: "5.3" is before "5.10"."""
    return tuple(int(part) for part in exercise.split(".") if part.isdecimal())
