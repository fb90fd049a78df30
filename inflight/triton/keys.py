"""The key of a server: what Triton asks it for, how it is kept, and who finds it again.

A server that we start answers some of its endpoints only to requests that carry a key, made at random at its start.
By default that is CONTROL: loading and unloading of models, shared memory, the settings of traces and logs. Inference,
health, metadata, model configuration, statistics and metrics are open to every user of the machine. Of a private
server only the health is: CONTROL and INFERENCE take the key, and the metrics lie on a socket that only the user can
open. With open control nothing takes a key.

Model configuration and statistics stay open by default because outside clients read them before and after they send:
Triton's Performance Analyzer does. They tell of models and counts, and change nothing.

The key lies in one file of the server's own folder, which the user alone can open. A process of the same user finds it
by the server's address: `of` looks for the process that listens there, and takes the key only if that process is a
`tritonserver` of this user, started by us. So a key goes to no other address, and to no other program at the same one.

What remains: root reads everything, and so do programs of the same user. While a server ends, its ports are free a
moment before its process is gone; what is sent then may reach whoever takes them, with a key that opens nothing more.
The names of a user's models and folders are in the arguments of its processes, as ever.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from inflight.triton import hidden_arguments, watch

HEADER = "inflight-key"
GRPC_HEADER = f"triton-grpc-protocol-{HEADER}"
CONTROL = ("model-repository", "shared-memory", "trace", "logging")
INFERENCE = ("inference", "metadata", "model-config", "statistics")
HOST = "127.0.0.1"
BACKENDS = "backends"  # in the server's folder
LOOK_AGAIN_S = 1.0  # where another's server was found


class Key(str):
    """A key that shows itself to nobody who prints it or what it is in."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{HEADER} {hidden_arguments.PLACEHOLDER}>"

    __str__ = __repr__

    def __format__(self, format_spec: str) -> str:
        return format(repr(self), format_spec)

    def reveal(self) -> str:
        """The key as plain text."""
        return str.__str__(self)


def create(workdir: Path) -> None:
    """Make a server's key and keep it in its folder."""
    descriptor = os.open(workdir / watch.KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{HEADER}: {secrets.token_hex(32)}\n")


def arguments(private: bool) -> list[str]:
    """Arguments of `tritonserver` that restrict it; the supervisor puts the key where the placeholder is."""
    apis = ",".join(CONTROL + INFERENCE if private else CONTROL)
    restriction = f"{apis}:{HEADER}={hidden_arguments.PLACEHOLDER}"
    return [f"--http-restricted-api={restriction}", f"--grpc-restricted-protocol={restriction}"]


def headers(url: str) -> dict[str, str]:
    """What a request to `url` must carry, over HTTP and over gRPC; nothing for a server that is not ours or is open."""
    key = of(url)
    return {} if key is None else {HEADER: key, GRPC_HEADER: key}


def addresses(url: str) -> dict[str, int | str] | None:
    """Ports of HTTP and gRPC ("http", "grpc") and address of the metrics ("metrics") of a server of this user.

    `url` is that of its HTTP or of its gRPC; None where no `tritonserver` of this user listens.
    """
    process = server_at(url)
    try:
        options = {} if process is None else dict(one.partition("=")[::2] for one in process.cmdline())
    except psutil.Error:
        return None
    if not {"--http-port", "--grpc-port", "--metrics-port", "--metrics-address"} <= set(options):
        return None
    place, port = options["--metrics-address"], options["--metrics-port"]
    metrics = place if place.startswith("unix:") else f"http://{place}:{port}/metrics"
    return {"http": int(options["--http-port"]), "grpc": int(options["--grpc-port"]), "metrics": metrics}


def server_at(url: str) -> psutil.Process | None:
    """The `tritonserver` of this user that listens at an address here and sees our files: in no container."""
    port = _split(url)[1]
    if not is_local(url):
        return None
    return next((each for each in _servers() if _sees_our_files(each) and _listens_at(each, port)), None)


def _sees_our_files(process: psutil.Process) -> bool:
    try:
        return os.readlink(f"/proc/{process.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _listens_at(process: psutil.Process, port: int) -> bool:
    return any(watch.listens(process.pid, (host, port)) for host in (HOST, "0.0.0.0"))


def is_local(url: str) -> bool:
    """Whether the address is on this machine's loopback, which no proxy is ever asked for."""
    return _split(url)[0] in (HOST, "localhost", "[::1]")


# Finding --------------------------------------------------------------------------------------------------------------

_found: dict[int, tuple[psutil.Process | None, Key | None]] = {}  # by port
_missed: dict[int, float] = {}  # when another's server was found, by port


def of(url: str) -> Key | None:
    """The key of the server at `url`, "http://127.0.0.1:port" or "127.0.0.1:port", if this user started it here."""
    host, port = _split(url)
    if host != HOST:
        return None
    process, key = _found.get(port, (None, None))
    if process is None or not _is_alive(process):
        process, key = _find(port)
        _found[port] = process, key
    return key


def _is_alive(process: psutil.Process) -> bool:
    """Whether it still runs, and so holds its ports; another that has got its number since is not it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _find(port: int) -> tuple[psutil.Process | None, Key | None]:
    if time.monotonic() - _missed.get(port, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
        return None, None
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) != 0:  # nobody listens, and ours may any moment
            return None, None
    for process in _servers():
        if watch.listens(process.pid, (HOST, port)):
            return process, _key_of(process)
    _missed[port] = time.monotonic()  # another's server
    return None, None


def _servers() -> Iterator[psutil.Process]:
    """The processes of this user that are Triton."""
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if process.info["name"] == "tritonserver" and uids and set(uids) == {os.getuid()}:
            yield process


def _key_of(process: psutil.Process) -> Key | None:
    try:
        arguments = process.cmdline()
    except psutil.Error:
        return None
    backends = next((one.partition("=")[2] for one in arguments if one.startswith("--backend-directory=")), "")
    return read(Path(backends).parent) if backends.endswith(f"/{BACKENDS}") else None


def read(workdir: Path) -> Key | None:
    """The key in a server's folder; None if there is none, or if others may have written or read it."""
    try:
        descriptor = os.open(workdir / watch.KEY_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
            return None
        name, _, value = file.read(1000).partition(":")
    return Key(value.strip()) if name == HEADER else None


def _split(url: str) -> tuple[str, int]:
    """Host and port of either kind of address; port 0 if there is none."""
    host, _, port = url.rpartition("://")[2].partition("/")[0].rpartition(":")
    return host, int(port) if port.isdecimal() else 0
