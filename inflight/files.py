"""Folders and files that are whole or not there at all; small files read within bounds."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise CourseError(f"{folder.parent} cannot be written ({error.strerror}). Name a folder that can.") from error
    try:
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
        shutil.rmtree(aside, ignore_errors=True)


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


def read_bytes(path: str | Path, what: str, most_bytes: int, fix: str) -> bytes:
    """The content of a file that somebody else may have written: no more than `most_bytes` ever come into memory.

    Parameters
    ----------
    what : str
        What the file is, for the sentence of an error: "dataset".
    most_bytes : int
        A larger file is refused unread.
    fix : str
        A sentence that says what to do when the file is not there or is not right.

    Raises
    ------
    CourseError
        It is not there, cannot be read, is a folder, a pipe or a device, or is larger.
    """
    try:
        # Without waiting: to open a pipe that nobody writes to would last for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not stat.S_ISREG(status.st_mode):
                raise CourseError(f"The {what} {path} is no plain file. {fix}")
            if status.st_size > most_bytes:
                raise CourseError(
                    f"The {what} {path} has {status.st_size:,} bytes, and {most_bytes:,} are the most that are read. "
                    f"{fix}"
                )
            with open(handle, "rb", closefd=False) as file:
                return file.read(status.st_size)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        raise CourseError(f"The {what} {path} cannot be read ({getattr(error, 'strerror', error)}). {fix}") from None


def read_text(path: str | Path, what: str, most_bytes: int, fix: str) -> str:
    """The same as text; CourseError, too, when it is not UTF-8."""
    try:
        return read_bytes(path, what, most_bytes, fix).decode("utf-8")
    except UnicodeDecodeError as error:
        raise CourseError(
            f"The {what} {path} is not UTF-8 text ({error.reason} at byte {error.start}). {fix}"
        ) from None
