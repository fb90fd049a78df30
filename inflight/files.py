"""Folders and files that are whole or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inflight import leftovers
from inflight.errors import CourseError


@contextlib.contextmanager
def written_aside(folder: Path, what: str) -> Iterator[Path]:
    """A scratch folder beside `folder` that takes its place when the block ends well, and vanishes when it does not.

    Raises
    ------
    CourseError
        The folder cannot be written, or the disk is full; names `what` is written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        leftovers.sweep_beside(folder)
        around = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise CourseError(f"{folder.parent} cannot be written ({error.strerror}). Name a folder that can.") from error
    try:
        with leftovers.owned(around):
            aside = around / folder.name
            aside.mkdir()
            yield aside
            aside.chmod(0o755)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(aside, folder)
    except OSError as error:
        raise CourseError(
            f"The {what} could not be written to {folder.parent} ({error.strerror or error}). "
            "Free some space there or name another folder, and try again."
        ) from error
    finally:
        shutil.rmtree(around, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it: a reader sees the old file or the new one.

    Raises
    ------
    OSError
        The folder cannot be written, or the disk is full.
    """
    aside = new_file_beside(path)
    try:
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def new_file_beside(path: Path) -> Path:
    """An empty file with a name of its own in the folder of `path`.

    Raises
    ------
    OSError
        The folder cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.fchmod(handle, 0o644)  # a temporary file is its owner's alone otherwise
    os.close(handle)
    return Path(name)


def size(path: str | Path) -> int:
    """Bytes of a file; 0 when it is not there."""
    return Path(path).stat().st_size if Path(path).exists() else 0
