"""What a process that was killed has left behind: folders, model processes, shared memory; found and removed.

    with leftovers.folder("inflight-serve-") as scratch:    # goes with the block, or with the next sweep
        ...
    leftovers.sweep()

A folder that is ours is locked by the processes that it belongs to for as long as they live, however they end
(`files.held_folder`). So a lock that can be had means that all of them are dead. What goes with a server's folder
stands in the lock's file; only what belongs to this user and bears the folder's name or its prefix is touched, no link
is followed, and of two sweeps at once the second finds the lock taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

import psutil

from inflight import files
from inflight.paths import cache_dir

SHM = Path("/dev/shm")
PREFIX = "inflight-"
# Triton makes one for each server, in /tmp whatever TMPDIR says, and takes it away unless it is killed.
TRITON_FOLDERS = Path("/tmp"), "python_env_*"
UNMARKED_S = 3600  # an empty folder that its maker has not marked within this time will not be marked any more
END_S = 5


def folder(prefix: str) -> contextlib.AbstractContextManager[Path]:
    """A scratch folder for a block, like `tempfile.TemporaryDirectory`, which a sweep removes if this process dies.

    Raises
    ------
    OSError
        No folder can be made there.
    """
    return files.scratch(tempfile.gettempdir(), prefix)


def server_folder(shm_prefix: str) -> tuple[Path, int]:
    """A folder for a server, with a note of the shared memory that goes with it; see `files.held_folder`."""
    made, mark = files.held_folder(tempfile.gettempdir(), f"{PREFIX}server-")
    os.write(mark, json.dumps({"shm_prefix": shm_prefix}).encode())
    return made, mark


def sweep() -> list[Path]:
    """Remove what dead processes of this user have left in the folders for temporary files and in the cache.

    Returns
    -------
    list of Path
        The folders that are gone now.
    """
    half_made = [each for place in (cache_dir(), *_own_folders(cache_dir(), "*")) for each in files.sweep(place, ".")]
    scratch = [each for each in _own_folders(Path(tempfile.gettempdir()), f"{PREFIX}*") if _remove_if_dead(each)]
    return half_made + scratch + _remove_triton_folders()


def _own_folders(place: Path, pattern: str) -> list[Path]:
    """Folders of this user, no links."""
    return [path for path in place.glob(pattern) if _is_own(path, stat.S_ISDIR)]


def _is_own(path: Path, kind) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    return kind(found.st_mode) and found.st_uid == os.geteuid()


def _remove_if_dead(path: Path) -> bool:
    """Remove a folder, its processes and its shared memory if its owners are dead; return whether that was so."""
    if not os.path.lexists(path / files.ALIVE):
        return _remove_if_empty(path, time.time() - UNMARKED_S)
    with files.lock_of_the_dead(path) as mark:
        if mark is None:
            return False
        _end_processes(path)
        _remove_shared_memory(os.read(mark, 10_000))
        shutil.rmtree(path, ignore_errors=True)
        return not path.exists()


def _end_processes(path: Path) -> None:
    """End the server and the model processes that were started from a server's folder, which their arguments name."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            arguments = process.cmdline()
            is_model = arguments[:1] == [f"{path}/backends/python/triton_python_backend_stub"]
            is_server = process.name() == "tritonserver" and f"--backend-directory={path}/backends" in arguments
            if (is_model or is_server) and process.uids().real == os.geteuid():
                process.send_signal(signal.SIGKILL)  # psutil sees that it is still the same process
                found.append(process)
    psutil.wait_procs(found, timeout=END_S)


def _remove_shared_memory(note: bytes) -> None:
    try:
        prefix = json.loads(note)["shm_prefix"]
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(prefix, str) and prefix.startswith("inflight_") and os.sep not in prefix:
        for file in SHM.iterdir():
            if file.name.startswith(prefix) and _is_own(file, stat.S_ISREG):
                file.unlink(missing_ok=True)


def _remove_triton_folders() -> list[Path]:
    """Remove Triton's empty folders that are older than every server of this user that runs."""
    place, pattern = TRITON_FOLDERS
    found = _own_folders(place, pattern)
    if not found:
        return []
    started = [time.time() - 1]
    for process in psutil.process_iter(["name", "uids", "create_time"]):
        if process.info["name"] == "tritonserver":
            started.append(process.info["create_time"] - 1)
    return [each for each in found if _remove_if_empty(each, min(started))]


def _remove_if_empty(path: Path, before: float) -> bool:
    """Remove a folder that nobody has changed since a time, unless something is in it."""
    with contextlib.suppress(OSError):
        if path.lstat().st_mtime < before:
            path.rmdir()
            return True
    return False
