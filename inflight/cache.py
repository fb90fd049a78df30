"""The cache folder: what is made once and used again, in a place that nobody else can write.

    made_once(cache_dir() / "engines" / name, flaw, make)

Whoever can write into it decides what every later command runs. So a folder that others can write is refused; one that
belongs to another user is taken as it is only if INFLIGHT_TRUST names them; without that, a checkpoint whose SHA-256 is
known is copied from it, and the rest is made in this user's own cache folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from inflight import trust
from inflight.errors import CourseError
from inflight.paths import cache_dir, lender, own_cache_dir

LOCK_TIMEOUT_S = 600
MOST_HOLDER_BYTES = 4096


def say(sentence: str) -> None:
    """One sentence to the user about what happens to the cache."""
    print(sentence, file=sys.stderr)


# What may be used -----------------------------------------------------------------------------------------------------


def refuse_doubtful(path: Path) -> None:
    """Raise CourseError when somebody else could change what lies at `path` in the cache, and say what to do."""
    with cache_errors():
        found = trust.doubt(path, holds_files=True)
    if found is None:
        return
    own = "set INFLIGHT_HOME to a folder of your own"
    if found.is_open:
        close = f"chmod go-w {found.path}"
        first = f"run {close}" if found.is_own else f"have {found.owner} run {close}"
        who = trust.EVERYONE
    else:
        first, who = f"move it away if it should not be there (mv {found.path} {found.path}.old)", found.owner
        who = who.removeprefix("user ")
    raise CourseError(
        f"The cache folder {cache_dir()} is not used, for others could change what runs from it: {found}. To go on, "
        f"{first}, or {own}, or, if you trust all who can write there, set {trust.VARIABLE}={who}."
    )


def folder(*parts: str) -> Path:
    """A folder in the cache, made if it is not there yet, that nobody else can write.

    Raises
    ------
    CourseError
        Somebody else can, or it cannot be made.
    """
    return _private(cache_dir().absolute().joinpath(*parts))


def _private(path: Path) -> Path:
    refuse_doubtful(path)
    with cache_errors():
        _make_private(path)
    return path


def _make_private(path: Path) -> None:
    """Make a folder and those above it so that only this user can write there, whatever the umask."""
    if not path.exists():
        _make_private(path.parent)
        path.mkdir(mode=0o755, exist_ok=True)


def close(path: Path) -> None:
    """Take from others the right to write into what this user has just made."""
    for one in (path, *path.rglob("*")):
        status = os.lstat(one)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & 0o022 and status.st_uid == os.geteuid():
            one.chmod(stat.S_IMODE(status.st_mode) & ~0o022)


def clear(path: Path) -> None:
    """Remove what lies at `path`, where a file is written, unless it is a plain file of this user's with no other name.

    Raises
    ------
    OSError
        It cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
            remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; nothing if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# What is made once ----------------------------------------------------------------------------------------------------


def place(*parts: str) -> Path:
    """Where a thing that is made once lies: in the cache folder.

    If that folder is another's, who shares it with a class, it may lack something that only one learner wants: this is
    made in the learner's own cache folder, for the shared one can only be read.
    """
    shared = cache_dir().absolute()
    here = shared.joinpath(*parts)
    with cache_errors():
        is_shared = shared.is_dir() and shared.stat().st_uid != os.geteuid() and not os.access(shared, os.W_OK)
        return own_cache_dir().absolute().joinpath(*parts) if is_shared and not os.path.lexists(here) else here


def made_once(target: Path, flaw: Callable[[], str | None], make: Callable[[], object]) -> Path:
    """`target`, a folder in the cache; made in one process at a time if it is not there yet, or not as it was made.

    Parameters
    ----------
    flaw : callable
        What is wrong with the one that is there, in words that follow its path; None if nothing.
    make : callable
        Puts a whole one at `target`.

    Raises
    ------
    CourseError
        The cache folder is full, cannot be written or others can write it; what `make` raises.
    """
    # Without the lock first: a class may share a cache folder that only the instructor can write.
    if _problem(target, flaw) is None:
        return target
    with cache_errors(), only_one(_private(target.parent) / f"{target.name}.lock"):
        problem = _problem(target, flaw)
        if problem is None:
            return target
        if problem:
            say(f"{target} {problem}: it is made again.")
        elif borrowed := lender():
            say(f"{borrowed}, who is not named in {trust.VARIABLE}: {target.name} is made in {target.parent}.")
        make()
        close(target)
    return target


def _problem(target: Path, flaw: Callable[[], str | None]) -> str | None:
    """What keeps `target` from being used; "" if it is not there, None if nothing does."""
    refuse_doubtful(target)
    with cache_errors():
        if not os.path.lexists(target):
            return ""
        if target.is_symlink() or not target.is_dir():
            return "is not a folder"
        if found := trust.doubt_within(target):
            return f"cannot be trusted ({found})"
        return flaw()


# Locks ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a lock file, so that two processes never write the same thing into the cache; the second waits.

    The kernel frees the lock with the process that holds it, however that ends. The file says who holds it, and only
    its owner can open it: nobody else can hold this user up.

    Raises
    ------
    CourseError
        Another process holds it for `LOCK_TIMEOUT_S`; something else lies where the lock should be.
    """
    from filelock import FileLock, Timeout

    refuse_doubtful(lock.parent)
    what = lock.stem if lock.suffix else lock.parent.name
    held: list[int] = []

    def sign(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
            raise OSError(errno.EEXIST, "not a lock")
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
        held.append(descriptor)

    taken = FileLock(lock, mode=0o600, poll_interval=0.1, fallback_to_soft=False, on_acquired=sign)
    try:
        try:
            taken.acquire(timeout=0)
        except Timeout:
            say(f"{_holder(lock)} is making {what}: waiting for it.")
            taken.acquire(timeout=LOCK_TIMEOUT_S)
    except Timeout:
        raise CourseError(
            f"{_holder(lock)} has been making {what} in {lock.parent} for more than {LOCK_TIMEOUT_S:.0f} s: wait "
            "for it or end it, then run the command again."
        ) from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENXIO):
            raise
        raise CourseError(
            f"{lock} is not a lock of the course but {_what_lies_at(lock)}: move it away "
            f"(mv {lock} {lock}.old), then run the command again."
        ) from None
    try:
        yield
    finally:
        os.ftruncate(held[0], 0)
        taken.release()


def holder(lock: Path) -> str | None:
    """Who holds a lock, in words; None if nobody does. The lock is not made, and let alone if it is another user's."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(lock)
    finally:
        os.close(descriptor)


def _this_process() -> dict[str, str | int]:
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    started = datetime.now().astimezone().isoformat(" ", "seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": command[:100], "since": started}


def _holder(lock: Path) -> str:
    """Who holds a lock, as they wrote it there."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            said = json.loads(file.read(MOST_HOLDER_BYTES))
        return f"Process {said['pid']} on {said['host']} ({said['command']}, since {said['since']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "Another process"  # it has only just begun, or ends


def _what_lies_at(path: Path) -> str:
    status = os.lstat(path)
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file of somebody else's"}
    return kinds.get(stat.S_IFMT(status.st_mode), "a pipe or a device")


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
