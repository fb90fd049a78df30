"""Records of this user's servers: a file each, `servers/<keeper's pid>.json` in the cache folder.

The keeper writes a server's record and removes it; until then whoever starts it has one of its folder, so that nothing
is left where both are killed at once. It holds the addresses ("http", "grpc", "metrics"), the key of the
control API ("key"), who started the server ("starter", and its "notebook"), what it takes to end it, and, of one that
died, how ("death"). Only this user can open it. A client that wants the key or the other ports finds them here, and so
does whoever asks why a server does not answer.

A server that we start loads and unloads models, and changes shared memory, traces and logs, only for requests that
carry the key; all else is open to every program of this machine. SECURITY.md says whom that keeps out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inflight.errors import CourseError
from inflight.paths import own_cache_dir
from inflight.triton import keeper

NOTICED_S = 2.0  # by then the keeper has written down that a server died
SERVICES = ("http", "grpc", "metrics")  # of a Triton, each at an address of its own
HEADER = "inflight-key"
GRPC_HEADER = f"triton-grpc-protocol-{HEADER}"


def folder() -> Path:
    """The folder of the records, made if it is not there; CourseError where it cannot be made."""
    path = own_cache_dir() / "servers"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(path, str(error.strerror)) from error
    return path


def machine() -> str:
    """Return an id of this machine since its start, for a folder that machines share; containers count as machines."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def at(url: str) -> dict[str, Any] | None:
    """Return the record of the server at one of its addresses, or of the last that died there; None without one."""
    place = _host_and_port(url)
    return next((one for _, one in _all() if place in {_host_and_port(one[name]) for name in SERVICES}), None)


def headers(url: str) -> dict[str, str]:
    """Return the headers that let a request to `url` load models; none where no server of this user runs."""
    record = at(url)
    key = "" if record is None or "death" in record else record["key"]
    return {HEADER: key, GRPC_HEADER: key} if key else {}


def death(url: str) -> str:
    """Say in a sentence how the server at an address died; blank where none of this user's has."""
    until = time.monotonic() + NOTICED_S
    while (record := at(url)) is not None and "death" not in record and time.monotonic() < until:
        if _lives(record["pid"], record["started"]) or not _lives(record["keeper"], record["keeper_started"]):
            return ""  # or there will be nobody to write how
        time.sleep(0.02)  # there is nothing to wait on: the keeper, another process, writes it at once
    return "" if record is None else record.get("death", "")


def running() -> list[dict[str, Any]]:
    """Return the records of this user's running servers, whoever started them."""
    return [record for _, record in _all() if "death" not in record and _lives(record["pid"], record["started"])]


def announce(server: Path) -> None:
    """Write down the folder of a server before it is made; CourseError where there is no room.

    The keeper removes that record when it has written its own.
    """
    starter = {"machine": machine(), "folder": str(server), "pid": os.getpid(), "started": keeper.started(os.getpid())}
    try:
        keeper.write(_announced(server), starter)
    except OSError as error:
        raise no_room(folder(), str(error.strerror)) from error


def no_room(path: Path, why: str) -> CourseError:
    """Make the error for a record that cannot be written."""
    return CourseError(
        f"{path} cannot be written ({why}). Make room there, or set XDG_CACHE_HOME to a folder of yours."
    )


def withdraw(server: Path) -> None:
    """Remove the folder of a server that was announced and has no keeper."""
    shutil.rmtree(server, ignore_errors=True)
    _announced(server).unlink(missing_ok=True)


def _announced(server: Path) -> Path:
    return folder() / f"{server.name}{keeper.STARTING}"


def sweep() -> None:
    """Remove what is left of servers whose keeper is gone: if it was killed, memory and folder, and what still runs."""
    for _, record in _all(f"*{keeper.STARTING}"):
        if not _lives(record["pid"], record["started"]):
            keeper.end_processes(record["folder"])
            withdraw(Path(record["folder"]))
    for file, record in _all():
        if not _lives(record["keeper"], record["keeper_started"]):
            keeper.end_processes(record["shm_prefix"])
            keeper.remove_shared_memory(record["shm_prefix"])
            shutil.rmtree(record["folder"], ignore_errors=True)
            file.unlink(missing_ok=True)


def _all(pattern: str = "*.json") -> Iterator[tuple[Path, dict[str, Any]]]:
    """Return the records of this machine; a server that ends meanwhile is left out."""
    here = machine()
    for file in sorted(folder().glob(pattern)):
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(file.read_text())
            if record["machine"] == here:
                yield file, record | {"keeper": file.stem}


def _lives(pid: int | str, started: int) -> bool:
    """Say whether this process runs and is not ending; another process that has got its pid since does not count."""
    try:
        return keeper.started(int(pid)) == started and not keeper.is_ending(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False


def _host_and_port(url: str) -> str:
    return url.rpartition("://")[2].partition("/")[0].replace("localhost", "127.0.0.1")
