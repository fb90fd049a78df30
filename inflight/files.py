"""Writes folders and files whole or not at all, and reads files that a user names."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inflight.errors import CourseError


@contextlib.contextmanager
def written_aside(folder: Path, what: str) -> Iterator[Path]:
    """A scratch folder beside `folder` that takes its place when the block ends well, and vanishes when it does not.

    Everybody may read it and this user alone may write it, whatever the umask, and whatever modes a library gives.

    Raises
    ------
    CourseError
        The folder cannot be written, or the disk is full; names `what` is written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            aside = Path(scratch, "whole")
            aside.mkdir()
            yield aside
            for path in (aside, *aside.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
            if folder.exists():
                os.rename(folder, Path(scratch, "before"))
            os.rename(aside, folder)
    except OSError as error:
        raise CourseError(
            f"The {what} could not be written to {folder.parent} ({error.strerror or error}). Free some space there or "
            "name another folder, and try again."
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it: a reader sees the old file or the new one, which nobody else may write.

    Raises
    ------
    OSError
        The folder cannot be written, or the disk is full.
    """
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as scratch:
        aside = Path(scratch, path.name)
        aside.write_text(text, encoding="utf-8")
        aside.chmod(aside.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
        os.replace(aside, path)


def size(path: str | Path) -> int:
    """Return the bytes of a file; 0 when it is not there."""
    return Path(path).stat().st_size if Path(path).exists() else 0


def read_bytes(path: str | Path, what: str, fix: str) -> bytes:
    """Read a file that a user named.

    Parameters
    ----------
    what : str
        What the file is, for the sentence of an error: "dataset".
    fix : str
        A sentence that says what to do when the file is not there or is not right.

    Raises
    ------
    CourseError
        It is not there, or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise CourseError(f"The {what} {path} cannot be read ({getattr(error, 'strerror', error)}). {fix}") from None


def read_text(path: str | Path, what: str, fix: str) -> str:
    """Read it as text; CourseError, too, when it is not UTF-8."""
    try:
        return read_bytes(path, what, fix).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CourseError(f"The {what} {path} is not UTF-8 text ({error.reason} at byte {error.start}).", fix) from None
