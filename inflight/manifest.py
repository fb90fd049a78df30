"""What a folder held when it was made: the size and SHA-256 of each file, kept beside them.

write(folder)                       # when all of it is there
differences(folder)                 # {"tokenizer.json": "was changed"}; empty while all is as it was
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

MANIFEST = "checksums.json"
MOST_BYTES = 16_000_000


def write(folder: Path) -> None:
    """Note every file in `folder` as it is now.

    Raises
    ------
    OSError
        A file cannot be read or is a link, a pipe or the like, or the note cannot be written.
    """
    noted = {}
    for name, status in _entries(folder):
        if name == MANIFEST:
            continue
        digest = sha256(folder / name)
        if digest is None:
            raise OSError(errno.EINVAL, f"{name} is not a plain file")
        noted[name] = {"bytes": status.st_size, "sha256": digest}
    (folder / MANIFEST).write_text(json.dumps(noted, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def differences(folder: Path, only: Collection[str] | None = None, contents: bool = True) -> dict[str, str]:
    """What is not as it was noted: names of files, and what is wrong with each.

    Hidden files and compiled Python may come and go.

    Parameters
    ----------
    only : collection of str, optional
        Files to compare; by default all.
    contents : bool
        False for sizes only: quick, and blind for a changed byte.
    """
    noted = _read(folder)
    if isinstance(noted, str):
        return {MANIFEST: noted}
    found, present = {}, dict(_entries(folder))
    for name in present:
        hidden = any(part.startswith(".") or part == "__pycache__" for part in Path(name).parts)
        if name not in noted and name != MANIFEST and not hidden and (only is None or name in only):
            found[name] = "does not belong to it"
    for name, (size, digest) in noted.items():
        if only is not None and name not in only:
            continue
        if problem := _problem(folder / name, present.get(name), size, digest if contents else None):
            found[name] = problem
    return found


def in_words(found: dict[str, str], most: int = 3) -> str:
    """ "tokenizer.json was changed, config.json is missing"."""
    named = [f"{name} {problem}" for name, problem in list(found.items())[:most]]
    return ", ".join(named) + (f", and {len(found) - most} more" if len(found) > most else "")


def sha256(path: Path) -> str | None:
    """SHA-256 of a plain file; None if it is a link, a folder, a pipe or not there. Never waits."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
    return None


def _problem(path: Path, status: os.stat_result | None, size: int, digest: str | None) -> str | None:
    if status is None:
        return "is missing"
    if not stat.S_ISREG(status.st_mode):
        return "is not a plain file"
    if status.st_size != size:
        return f"has {status.st_size} bytes instead of {size}"
    if digest is not None and sha256(path) != digest:
        return "was changed"
    return None


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """All that is in a folder and below, but the folders themselves; of links, the links."""
    for root, folders, files in os.walk(folder):
        for name in (*files, *(name for name in folders if os.path.islink(Path(root, name)))):
            path = Path(root, name)
            yield str(path.relative_to(folder)), os.lstat(path)


def _read(folder: Path) -> dict[str, tuple[int, str]] | str:
    """Size and digest of each file, or what is wrong with the note of them."""
    path = folder / MANIFEST
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            return "is not a plain file"
        noted = json.loads(path.read_bytes())
        return {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in noted.items()}
    except FileNotFoundError:
        return "is missing"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "cannot be read"
