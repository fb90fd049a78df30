"""The learner's own stack: what they wrote in the labs, kept in their workspace once its check has passed.

    path = mine.part("scheduler")       # the learner's file where it passed and is as it was then, else the course's
    client = mine.load("client")        # the same, as a Python module

Lectures, builds and tests use the course's parts: outside of a workspace there are no others.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd

from inflight.errors import CourseError
from inflight.files import replace_text
from inflight.notebook import workspace
from inflight.paths import COURSE

# Every part: the name of its file or folder.
PARTS = {
    "quantizer": "quantizer.py",
    "repository": "repository",
    "client": "client.py",
    "scheduler": "scheduler.py",
    "batching": "batching.c",
    "iterative_model": "model.py",
    "iterative_gpt2": "gpt2_model.py",
}
COURSES_OWN = COURSE / "assets" / "parts"
PASSED = "parts.json"  # which check each part passed, and its digest then
EARLIER = "earlier"
MOST_BYTES = 64 * 2**20  # of a part; an engine is none


@dataclass(frozen=True)
class Part:
    """A part, the learner's or the course's; it stands wherever a path does.

    Attributes
    ----------
    name : str
    path : Path
    exercise : str
        Which the learner's own part has passed; blank for the course's.
    why : str
        Why it is the course's, in a few words; blank otherwise.
    """

    name: str
    path: Path
    exercise: str = ""
    why: str = ""

    @property
    def is_mine(self) -> bool:
        return bool(self.exercise)

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        whose = f"yours, passed {self.exercise}" if self.is_mine else f"the course's; {self.why}"
        return f"{self.name}: {whose}"


def part(name: str) -> Part:
    """The learner's part where it has passed its check and has not changed since, the course's otherwise.

    Parameters
    ----------
    name : str
        One of `PARTS`.

    Raises
    ------
    CourseError
        There is no such part, or neither the learner nor the course has it.
    """
    _known(name)
    folder = _folder()
    own, passed = (folder / PARTS[name], _passed(folder).get(name)) if folder else (None, None)
    if own is None:
        why = "this is no workspace of a learner"
    elif passed is None:
        why = "yours has not passed yet"
    elif not own.exists():
        why = f"{own.name} is no longer in {workspace.MINE}/"
    elif _digest(own) != passed["sha256"]:
        why = "yours was changed since it passed: check it again"
    else:
        return Part(name, own, passed["exercise"])
    courses = COURSES_OWN / PARTS[name]
    if not courses.exists():
        raise CourseError(f"There is no {name} to use: {why}, and the course has none of its own. Do its lab first.")
    return Part(name, courses, why=why)


def load(name: str) -> ModuleType:
    """The part as a Python module.

    Raises
    ------
    CourseError
        As `part`; or its file cannot be imported.
    """
    found = part(name)
    spec = importlib.util.spec_from_file_location(f"{'mine' if found.is_mine else 'course'}_{name}", found.path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CourseError(f"{found.path} cannot be imported ({type(error).__name__}: {error}); mend it.") from error
    return module


def keep(name: str, path: Path, exercise: str) -> str:
    """Copy what has passed its check into the workspace, and say where it is. Outside of one nothing is kept.

    What was kept before goes to `mine/earlier`; what has passed a later exercise stays.

    Parameters
    ----------
    exercise : str
        The one that has been passed, as "5.4".

    Returns
    -------
    str
        A sentence: where it is, or what stays in its place. Blank outside of a workspace.

    Raises
    ------
    CourseError
        There is nothing at `path`, it is too large for a part, or the workspace cannot be written.
    """
    _known(name)
    folder = _folder()
    if folder is None:
        return ""
    own = folder / PARTS[name]
    try:
        if sum(file.stat().st_size for file in _files(path)) > MOST_BYTES:
            raise CourseError(f"{path} is not kept: it has more than {MOST_BYTES:,} bytes. Leave engines out of it.")
        digest, passed = _digest(path), _passed(folder)
        kept = passed[name]["exercise"] if name in passed and own.exists() else exercise
        if _order(kept) > _order(exercise) and _digest(own) == passed[name]["sha256"]:
            return f"{workspace.MINE}/{PARTS[name]} stays as it is: yours of exercise {kept}, a later one."
        if not own.exists() or _digest(own) != digest:
            folder.mkdir(exist_ok=True)
            if own.exists():
                _set_aside(own, folder / EARLIER)
            _copy(path, own)
        passed[name] = {"exercise": exercise, "sha256": digest}
        replace_text(folder / PASSED, json.dumps(passed, indent=1) + "\n")
    except OSError as error:
        raise CourseError(
            f"Your {name} is right, but not kept: {own} cannot be written ({error.strerror or error})."
        ) from error
    return f"Kept as {workspace.MINE}/{PARTS[name]}, your {name} from here on."


def table(folder: Path) -> pd.DataFrame:
    """The parts of the learner whose workspace is `folder`: `part`, `whose`, `exercise`."""
    passed, rows = _passed(folder / workspace.MINE), []
    for name, file in PARTS.items():
        own, entry = folder / workspace.MINE / file, passed.get(name)
        is_mine = entry is not None and own.exists() and _digest(own) == entry["sha256"]
        changed = entry is not None and own.exists() and not is_mine
        whose = (
            "yours" if is_mine else "the course's (yours was changed since it passed)" if changed else "the course's"
        )
        rows.append((name, whose, entry["exercise"] if entry else ""))
    return pd.DataFrame(rows, columns=["part", "whose", "exercise"])


def _known(name: str) -> None:
    if name not in PARTS:
        raise CourseError(f"There is no part {name!r}; there are {', '.join(PARTS)}.")


def _folder() -> Path | None:
    """Where the learner's parts are, or None outside of a workspace."""
    work = workspace.around(Path.cwd())
    return None if work is None else work / workspace.MINE


def _passed(folder: Path) -> dict[str, dict[str, str]]:
    """What has passed, by part; nothing where the record is lost or was edited into something else."""
    try:
        found = json.loads((folder / PASSED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = found.items() if isinstance(found, dict) else ()
    return {
        name: entry
        for name, entry in entries
        if name in PARTS
        and isinstance(entry, dict)
        and all(isinstance(entry.get(k), str) for k in ("exercise", "sha256"))
    }


def _order(exercise: str) -> tuple[int, ...]:
    """By which exercises come one after another: "5.4" is before "5.10"."""
    return tuple(int(part) for part in exercise.split(".") if part.isdecimal())


def _files(path: Path) -> list[Path]:
    """The files of a part, in order; what Python and Jupyter leave beside them is none."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not _is_litter(file.relative_to(path)))


def _is_litter(path: Path) -> bool:
    return any(part in ("__pycache__", ".ipynb_checkpoints") for part in path.parts)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for file in _files(path):
        name = file.relative_to(path).as_posix() if path.is_dir() else ""
        digest.update(f"{name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _copy(path: Path, own: Path) -> None:
    """Put a copy in place of nothing, as a whole: half a part is never there."""
    fresh = own.with_name(f".{own.name}-{os.getpid()}")
    try:
        if path.is_dir():
            shutil.copytree(path, fresh, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
        else:
            shutil.copyfile(path, fresh)
        fresh.rename(own)
    finally:
        shutil.rmtree(fresh, ignore_errors=True) if fresh.is_dir() else fresh.unlink(missing_ok=True)


def _set_aside(own: Path, folder: Path) -> None:
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    folder.mkdir(exist_ok=True)
    names = [f"{stamp}-{own.name}", *(f"{stamp}-{number}-{own.name}" for number in range(2, 100))]
    shutil.move(own, folder / next(name for name in names if not (folder / name).exists()))
