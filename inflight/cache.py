"""The cache folder, for things that are made once and used again.

    made_once(place("engines", name), make)

A thing is a folder. What makes it records the size and the checksum of each file (`seal`), so that one which is damaged
is noticed and made again.

Whoever can write into it decides what every later command runs. So it is taken where it is this user's or the
administrator's (root's) and nobody else can write it, and refused otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from inflight.errors import CourseError
from inflight.paths import cache_dir, own_cache_dir

LOCK_TIMEOUT_S = 600
CHECKSUMS = "checksums.json"  # of each file beside it the size and the CRC-32, which takes 40 ms for an engine
CHUNK_BYTES = 1 << 20


def say(sentence: str) -> None:
    """Tell the user in one sentence what happens to the cache.

    Not where pages are made or tested, which nobody watches: it depends on what ran before and beside the page.
    """
    if os.environ.get("COURSE_STRICT") != "1":
        print(sentence, file=sys.stderr)


def refuse_open(home: Path) -> None:
    """Raise CourseError when somebody else could change what is in a cache folder, and say what to do."""
    with cache_errors():
        if not home.exists():
            return
        status = home.stat()
    if status.st_uid not in (0, os.geteuid()):
        problem, first = "it belongs to another user", "Move it away if it should not be there"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"other users can write there (mode {stat.S_IMODE(status.st_mode):04o})"
        first = f"Run `chmod go-w {home}`"
    else:
        return
    raise CourseError(
        f"The cache folder {home} is not used, because others could change what runs from it: {problem}.",
        f"{first}, or set INFLIGHT_HOME to a folder of your own.",
    )


def folder(*parts: str) -> Path:
    """Return a folder in the cache, made if it is not there yet.

    Raises
    ------
    CourseError
        Somebody else can write into the cache, or it cannot be made.
    """
    home = cache_dir().absolute()
    refuse_open(home)
    with cache_errors():
        return _made(home.joinpath(*parts))


def place(*parts: str) -> Path:
    """Return the place of a thing that is made once: in the cache folder.

    Where that is the administrator's and lacks the thing or has it damaged, it is this user's own cache folder.

    Raises
    ------
    CourseError
        Somebody else can write there.
    """
    home = cache_dir().absolute()
    if home.exists() and not os.access(home, os.W_OK) and _flaw(home.joinpath(*parts)):
        home = own_cache_dir().absolute()
    refuse_open(home)
    return home.joinpath(*parts)


def made_once(target: Path, make: Callable[[], object]) -> Path:
    """`target`, a folder in the cache; made in one process at a time if it is not there yet, or is damaged.

    Parameters
    ----------
    make : callable
        Puts a whole one at `target`, which has been sealed.

    Raises
    ------
    CourseError
        The cache folder is full or cannot be written; another process has been making it for `LOCK_TIMEOUT_S`; what
        `make` raises.
    """
    if _flaw(target) is None:  # without the lock first: the cache may be one that can only be read
        return target
    from filelock import FileLock, Timeout  # most processes make nothing

    with cache_errors():
        _clear_leftovers(_made(target.parent))
        lock = FileLock(_lock(target))
        try:
            held = lock.acquire(timeout=LOCK_TIMEOUT_S)  # the kernel frees it with this process, however that ends
        except Timeout:
            raise CourseError(
                f"Another process has been making {target.name} in {target.parent} for more than {LOCK_TIMEOUT_S:.0f} "
                "s: wait for it or end it, then run the command again."
            ) from None
        with held:
            problem = _flaw(target)
            if problem is None:
                return target
            if target.is_dir():
                say(f"{target} is damaged ({problem}): it is made again.")
                shutil.rmtree(target)
            make()
    return target


def _lock(target: Path) -> Path:
    return target.with_name(f"{target.name}.lock")


def _clear_leftovers(folder: Path) -> None:
    """Remove what makers that were killed have left beside the things; one at work holds the lock of its thing."""
    from filelock import FileLock, Timeout

    for aside in folder.glob(".*.????????"):  # as `files.written_aside` names them
        with contextlib.suppress(Timeout), FileLock(_lock(folder / aside.stem[1:])).acquire(blocking=False):
            shutil.rmtree(aside, ignore_errors=True)


# Whole or damaged -----------------------------------------------------------------------------------------------------


def seal(folder: Path) -> None:
    """Record the files of a folder that has just been made, so that `damage` can tell."""
    recorded = {file.name: [file.stat().st_size, _crc32(file)] for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def damage(folder: Path, *names: str) -> str | None:
    """Say which file of a folder, or of those named, is not as it was recorded, and how; None if all are.

    None, too, for a folder of which nothing was recorded: it is somebody's own.
    """
    try:
        recorded = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        for name, (size, checksum) in recorded.items():
            if names and name not in names:
                continue
            file = folder / name
            if not file.exists():
                return f"it has no {name}"
            if file.stat().st_size != size:
                return f"{name} has {file.stat().st_size:,} bytes in place of {size:,}"
            if _crc32(file) != checksum:
                return f"{name} is not what was written"
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError):
        return f"{CHECKSUMS} cannot be read"
    return None


def way_on(folder: Path, otherwise: str) -> str:
    """Say what to do about a folder that cannot be used: `otherwise`, unless it is one of the cache that is damaged."""
    if cache_dir().absolute() not in folder.absolute().parents or _flaw(folder) is None:
        return otherwise
    return (
        "It is not whole in the cache: run what made it again, in a notebook the cell that did, in a terminal "
        "`inflight assemble`."
    )


def _flaw(target: Path) -> str | None:
    """Why a thing of the cache is to be made."""
    return damage(target) if (target / CHECKSUMS).exists() else f"it has no {CHECKSUMS}"


def _crc32(file: Path) -> int:
    checksum, chunk = 0, memoryview(bytearray(CHUNK_BYTES))
    with open(file, "rb") as opened:
        while count := opened.readinto(chunk):
            checksum = zlib.crc32(chunk[:count], checksum)
    return checksum


# What cannot be written -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cache_errors() -> Iterator[None]:
    """Turn a full disk and a folder that cannot be written into a CourseError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CourseError(
                f"The disk is full: free 200 MB for {cache_dir()}, or set INFLIGHT_HOME to a folder on a "
                "larger disk, then run the command again."
            ) from error
        raise CourseError(
            f"The cache folder {cache_dir()} cannot be written ({error.strerror or error}): set INFLIGHT_HOME to "
            "a folder of your own, then run the command again."
        ) from error


def _made(path: Path) -> Path:
    """A folder, made with those above it so that only this user can write there, whatever the umask."""
    for missing in reversed([one for one in (path, *path.parents) if not one.exists()]):
        missing.mkdir(mode=0o755, exist_ok=True)
    return path
