"""Where Triton servers are, and their keys. Of this user's servers there is a file each, `servers/<keeper's pid>.json`.

A record, in the cache folder, has the addresses ("http", "grpc", "metrics"), the key of the control API ("key"), who
started the server ("starter", and its "notebook"), and what it takes to end it (`keeper`). Nobody else can open it. It
is the one place where anything looks: a client that wants the key or the other ports, whoever asks why a server does
not answer.

The key keeps web pages and careless clients from loading models. A server that we start loads and unloads models, and
changes shared memory, traces and logs, only for requests that carry it; inference, health, metadata, configs,
statistics and metrics are open to whoever reaches the ports, which is every program of this machine. The key is also an
argument of `tritonserver`, which other accounts of the machine can read: who shares one needs a container each.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import CourseError
from inflight.paths import own_cache_dir
from inflight.triton import keeper

NOTICED_S = 2.0  # by then the keeper has written down that a server died
ADDRESSES = ("http", "grpc", "metrics")  # of a record
HEADER = "inflight-key"
GRPC_HEADER = f"triton-grpc-protocol-{HEADER}"
CONTROL = "model-repository,shared-memory,trace,logging"  # what takes the key


# Addresses ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """Where a Triton answers. `at` finds the other two from one of them.

    Attributes
    ----------
    http_url, metrics_url : str
        "http://host:port" and "http://host:port/metrics".
    grpc_url : str
        "host:port".
    """

    http_url: str
    grpc_url: str
    metrics_url: str

    @classmethod
    def at(cls, url: str, grpc_url: str | None = None, metrics_url: str | None = None) -> Address:
        """From the address of HTTP ("http://host:port") or of gRPC ("host:port").

        What is not named is what a server of this user at that address says, and else as Triton counts by default:
        gRPC one after HTTP, metrics one after gRPC.

        Raises
        ------
        CourseError
            It is no address.
        """
        if (known := at(url)) is None:
            check_address(url)
            _, separator, rest = url.rstrip("/").rpartition("://")
            host, _, port = rest.partition("/")[0].rpartition(":")
            http = int(port) if separator else int(port) - 1
            places = (f"http://{host}:{http}", f"{host}:{http + 1}", f"http://{host}:{http + 2}/metrics")
            known = dict(zip(ADDRESSES, places))
        return cls(known["http"], grpc_url or known["grpc"], metrics_url or known["metrics"])


def check_address(url: str) -> None:
    """Refuse what is neither "host:port" nor "http://host:port", with a CourseError."""
    scheme, _, rest = url.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not (scheme in ("", "http") and host and port.isdecimal()):
        raise CourseError(
            f"{url!r} is no address of a server. Write host:port for gRPC, such as 127.0.0.1:8001, or http://host:port "
            "for HTTP, such as http://127.0.0.1:8000."
        )


def is_http(url: str) -> bool:
    """Whether an address is one of HTTP, "http://host:port", and not of gRPC, "host:port"."""
    return url.startswith("http://")


# Records --------------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """The folder of the records, made if it is not there.

    Raises
    ------
    CourseError
        It cannot be made, or belongs to somebody else.
    """
    path = own_cache_dir() / "servers"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CourseError(
            f"{path} cannot be made ({error.strerror}). Make room there, or set XDG_CACHE_HOME to a folder of yours."
        ) from error
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CourseError(f"Other users can write to {path}, which holds servers' keys. Remove it, and start again.")
    return path


def machine() -> str:
    """What tells this machine, since it began, from others that share the folder; containers count as machines."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def at(url: str) -> dict | None:
    """The record of the server at one of its addresses; None where no server of this user is, or has died."""
    return next((record for _, record in _all() if _is_at(record, url)), None)


def headers(url: str) -> dict[str, str]:
    """What a request to `url` carries, over HTTP and gRPC, to load models; blank where no server of this user is."""
    record = at(url)
    key = "" if record is None or "death" in record else record["key"]
    return {HEADER: key, GRPC_HEADER: key} if key else {}


def new_key() -> str:
    return secrets.token_hex(16)


def key_arguments(key: str) -> list[str]:
    """Arguments of `tritonserver` by which its control takes the key."""
    return [f"--{option}={CONTROL}:{HEADER}={key}" for option in ("http-restricted-api", "grpc-restricted-protocol")]


def death(url: str) -> str:
    """How the server at an address died, in a sentence; blank where none of this user's has."""
    until = time.monotonic() + NOTICED_S
    while (record := at(url)) is not None and "death" not in record and time.monotonic() < until:
        if _lives(record["pid"], record["started"]):
            return ""
        time.sleep(0.02)  # there is nothing to wait on: the keeper, another process, writes it at once
    return "" if record is None else record.get("death", "")


def running() -> list[dict]:
    """The records of this user's servers that run, whoever started them."""
    return [record for _, record in _all() if "death" not in record and _lives(record["pid"], record["started"])]


def end(record: dict) -> None:
    """End the server of a record, as Ctrl-C would; whoever started it can start it again."""
    if _lives(record["pid"], record["started"]):
        os.kill(record["pid"], signal.SIGTERM)


def sweep() -> None:
    """Remove what is left of servers whose keeper is gone: if it was killed, memory and folder, and what still runs."""
    for file, record in _all():
        if _lives(file.stem, record["keeper_started"]):
            continue
        keeper.end_processes(record["shm_prefix"])
        keeper.remove_shared_memory(record["shm_prefix"])
        shutil.rmtree(record["folder"], ignore_errors=True)
        file.unlink(missing_ok=True)


def _all() -> Iterator[tuple[Path, dict]]:
    """The records of this machine; one that ends meanwhile is none."""
    here = machine()
    for file in sorted(folder().glob("*.json")):
        with contextlib.suppress(FileNotFoundError, ValueError):
            record = json.loads(file.read_text())
            if record["machine"] == here:
                yield file, record


def _lives(pid: int | str, started: int) -> bool:
    """Whether this process runs and does not end at this moment, and is not another that has got its number since."""
    try:
        return keeper.started(int(pid)) == started and not keeper.is_ending(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False


def _is_at(record: dict, url: str) -> bool:
    return any(_address(record[name]) == _address(url) for name in ADDRESSES)


def _address(url: str) -> str:
    """Host and port."""
    return url.rpartition("://")[2].partition("/")[0].replace("localhost", "127.0.0.1")
