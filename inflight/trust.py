"""Who else could change what lies at a path: every folder on the way to it, and every link, is asked.

    doubt("/shared/inflight")           # None: only this user and the administrator could

The administrator (root) is trusted, and those whom INFLIGHT_TRUST names.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

VARIABLE, EVERYONE = "INFLIGHT_TRUST", "everyone"
MOST_LINKS = 40  # as the kernel


@dataclass(frozen=True)
class Doubt:
    """The first place on the way to a path where somebody else could change what is found there.

    Attributes
    ----------
    path : Path
    owner : str
        Name of the owner of `path`, or its number where there is no name.
    is_open : bool
        Others than the owner may write there; otherwise it is the owner who is not trusted.
    mode : int
        Permission bits of `path`.
    is_own : bool
        It belongs to this user, who can therefore close it.
    """

    path: Path
    owner: str
    is_open: bool
    mode: int
    is_own: bool

    def __str__(self) -> str:
        if self.is_open:
            return f"{self.path} can be written by other users (mode {self.mode:04o})"
        return f"{self.path} belongs to {self.owner}"


def doubt(path: str | Path, holds_files: bool = False) -> Doubt | None:
    """Why what lies at `path` may be somebody else's doing; None if it cannot be.

    What is not there yet is in no doubt. Symbolic links are followed, and belong to those who made them. In a folder
    with the sticky bit (/tmp) others can add names but change nobody's, so there the next name on the way decides;
    `holds_files` says that `path` itself is a folder whose files are used without being asked one by one.

    Raises
    ------
    OSError
        A folder on the way cannot be searched, or links lead in a circle.
    """
    trusted = _trusted()
    if trusted is None:
        return None
    here, links = Path("/"), 0
    found = _doubt_of(here, os.lstat(here), trusted, is_last=False, holds_files=False)
    todo = list(reversed(Path(path).absolute().parts[1:]))
    while todo and found is None:
        name = todo.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            status = os.lstat(here / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        found = _doubt_of(here / name, status, trusted, is_last=not todo, holds_files=holds_files)
        if not stat.S_ISLNK(status.st_mode):
            here = here / name
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(here / name))
        here = Path("/") if target.is_absolute() else here
        todo.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
    return found


def doubt_within(folder: str | Path) -> Doubt | None:
    """The same for everything in a folder, all the way down; links are not followed."""
    trusted = _trusted()
    if trusted is None:
        return None
    for root, folders, files in os.walk(folder):
        for path in (Path(root, name) for name in (*folders, *files)):
            if found := _doubt_of(path, os.lstat(path), trusted, is_last=True, holds_files=True):
                return found
    return None


def _doubt_of(path: Path, status: os.stat_result, trusted: set[int], is_last: bool, holds_files: bool) -> Doubt | None:
    mode = stat.S_IMODE(status.st_mode)
    found = lambda is_open: Doubt(path, user_name(status.st_uid), is_open, mode, status.st_uid == os.geteuid())
    if stat.S_ISLNK(status.st_mode):
        return None if status.st_uid in trusted else found(False)
    names_are_safe = stat.S_ISDIR(status.st_mode) and mode & stat.S_ISVTX and not (is_last and holds_files)
    if not names_are_safe and (mode & 0o002 or (mode & 0o020 and _others_are_in(status.st_gid, path))):
        return found(True)
    if status.st_uid in trusted or (not is_last and status.st_uid == _owner_of_the_outside()):
        return None
    return found(False)


def _trusted() -> set[int] | None:
    """Users who may own what is used; None for all."""
    named = os.environ.get(VARIABLE, "").replace(",", " ").split()
    if EVERYONE in named:
        return None
    return {0, os.geteuid(), *(uid for uid in map(_uid, named) if uid is not None)}


def _uid(user: str) -> int | None:
    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def user_name(uid: int) -> str:
    """The name of a user, or "user NUMBER" where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _others_are_in(gid: int, path: Path) -> bool:
    """Whether a group's right to write is somebody else's too: many systems give every user a group of their own.

    Where the list of users does not even name this one, it says nothing about who else there is; and with an access
    control list on `path`, the bits do not tell whose right it is.
    """
    if "system.posix_acl_access" in os.listxattr(path):
        return True
    if gid == 0:
        return False
    everybody = pwd.getpwall()
    mine = {user.pw_name for user in everybody if user.pw_uid in (0, os.geteuid())}
    if os.geteuid() not in {user.pw_uid for user in everybody}:
        return True
    try:
        members = set(grp.getgrgid(gid).gr_mem)
    except KeyError:
        members = set()
    return bool((members | {user.pw_name for user in everybody if user.pw_gid == gid}) - mine)


def _owner_of_the_outside() -> int | None:
    """The number that stands for all users whom a container's user namespace does not know; they own its `/`."""
    known = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return None if known >= 2**32 - 1 else int(Path("/proc/sys/kernel/overflowuid").read_text())
