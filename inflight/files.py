"""Folders and files that are whole or not there at all; small files read within bounds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inflight.errors import CourseError

ALIVE = ".alive"  # in a folder that `held_folder` made: locked as long as one of its users lives


@contextlib.contextmanager
def written_aside(folder: Path, what: str) -> Iterator[Path]:
    """A scratch folder beside `folder` that takes its place when the block ends well, and vanishes when it does not.

    What a killed process left there earlier is removed.

    Raises
    ------
    CourseError
        The folder cannot be written, or the disk is full; names `what` is written.
    """
    prefix = f".{folder.name}."
    with contextlib.ExitStack() as opened:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            sweep(folder.parent, prefix)
            outer = opened.enter_context(scratch(folder.parent, prefix))
        except OSError as error:
            raise CourseError(
                f"{folder.parent} cannot be written ({error.strerror}). Name a folder that can."
            ) from error
        with _written_within(outer, folder, what) as aside:
            yield aside


@contextlib.contextmanager
def _written_within(outer: Path, folder: Path, what: str) -> Iterator[Path]:
    """A folder in `outer` that takes the place of `folder` when the block ends well."""
    try:
        aside = outer / "whole"
        aside.mkdir()
        yield aside
        aside.chmod(0o755)
        if os.path.lexists(folder):
            os.rename(folder, outer / "before")
        os.rename(aside, folder)
    except OSError as error:
        raise CourseError(
            f"The {what} could not be written to {folder.parent} ({error.strerror or error}). "
            "Free some space there or name another folder, and try again."
        ) from error


@contextlib.contextmanager
def scratch(parent: str | Path, prefix: str) -> Iterator[Path]:
    """A new folder for the time of a block; should the process be killed, a later `sweep` removes it.

    Raises
    ------
    OSError
        `parent` cannot be written.
    """
    folder, mark = held_folder(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(mark)


@contextlib.contextmanager
def temporary(prefix: str) -> Iterator[Path]:
    """A new folder for the time of a block, among the machine's temporary ones."""
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        yield Path(folder)


def held_folder(parent: str | Path, prefix: str) -> tuple[Path, int]:
    """A new folder that only this user can open, and that `sweep` spares as long as a process uses it.

    Returns
    -------
    Path, int
        The folder, and the descriptor of a lock on a file in it. The folder counts as used until every process that
        has the descriptor has closed it or is gone, however it went: hand it to a process that goes on with the folder
        (`pass_fds`). Remove the folder before the descriptor is closed.

    Raises
    ------
    OSError
        `parent` cannot be written.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        mark = os.open(folder / ALIVE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Where a file system has no locks, nobody can hold this one, so no sweep will take the folder for a dead one.
        with contextlib.suppress(OSError):
            fcntl.flock(mark, fcntl.LOCK_EX)
        if os.fstat(mark).st_nlink:
            return folder, mark
        os.close(mark)  # a sweep was faster than the lock


def sweep(parent: str | Path, prefix: str) -> list[Path]:
    """Remove the folders `prefix`* of this user that `held_folder` made and that nobody uses any more.

    Dead is proved by the lock, which the kernel releases with its last holder: process ids may be taken again, and
    those of another container mean nothing here. Folders of other users, links and folders without the lock's file are
    let alone.

    Returns
    -------
    list of Path
        What was removed.
    """
    swept = []
    for folder in sorted(Path(parent).glob(f"{glob.escape(prefix)}*")):
        with lock_of_the_dead(folder) as mark:
            if mark is not None:
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
    return swept


@contextlib.contextmanager
def lock_of_the_dead(folder: Path) -> Iterator[int | None]:
    """Hold the lock of a folder, if it is this user's and the lock is free: its descriptor, or None."""
    with contextlib.ExitStack() as opened:
        try:
            inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, inside)
            mark = os.open(ALIVE, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=inside)
            opened.callback(os.close, mark)
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield None
            return
        found = os.fstat(mark)
        is_own = os.fstat(inside).st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
        yield mark if is_own and found.st_nlink else None  # without a name it was swept by another meanwhile


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
