"""A `tritonserver` of our own: the program inside the nvidia-pytriton wheel, its folder, and the keeper beside it.

The folder has the log and the Python backend for this Python; the keeper removes it when the server has ended. The
keeper's standard input is a pipe from this program, so that the server ends with this program, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import select
import shlex
import shutil
import site
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inflight import tiers
from inflight.errors import CourseError
from inflight.paths import temporary
from inflight.triton import keeper, records
from inflight.triton.address import Address
from inflight.triton.client.connection import is_ok
from inflight.triton.records import SERVICES

HOST = "127.0.0.1"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"  # of this Python
START_TIMEOUT_S = 60
LOOK_EVERY_S = 0.05
PORT_ATTEMPTS = 3
LOOPBACK_S = 5  # to reach a port of this machine
LOG_LINES = 15
MAX_ROW = 160  # columns of a row of Triton's tables that are read in a notebook
CONTROL = "model-repository,shared-memory,trace,logging"  # what takes the key
# Services that listen on every address and take no key in 2.51 (NVIDIA's security bulletin 5828).
CLOSED = ("--allow-vertex-ai", "--allow-sagemaker")
VERTEX_AI = "AIP_"  # how the variables begin that open the first, close HTTP and gRPC, and name a port
TMP, SHM = "/tmp", "/dev/shm"
SHM_MIB = 4  # Triton's Python backend takes one for each model
# Limits of the shell: the option of `ulimit`, the least that a server runs with, and what it limits.
LIMITS = (
    (resource.RLIMIT_NOFILE, "-n", 256, "open files"),
    (resource.RLIMIT_NPROC, "-u", 256, "threads of this user"),
    (resource.RLIMIT_AS, "-v", 3_000_000_000, "bytes of addresses"),
)
MODEL_PROCESS = Path(__file__).parents[1] / "model" / "model_process.py"
REINSTALL = "install the course's requirements (`make setup` does it)."


def start_triton(arguments: Sequence[str], ports: Mapping[str, int | None], has_key: bool) -> Process:
    """Start a `tritonserver`; returns when its API answers. With free ports, tries others if somebody was faster.

    Parameters
    ----------
    arguments : sequence of str
        Of `tritonserver`; those that its keeper needs are added.
    ports : dict
        By "http", "grpc" and "metrics" the port, or None for a free one; the arguments may name others.
    has_key : bool
        Whether its control takes a key.

    Raises
    ------
    CourseError
        A named port is in use; there is no `tritonserver` here, or no room for it; it ends while starting, or does not
        answer in time.
    """
    values = dict(argument.partition("=")[::2] for argument in arguments)
    named = {name: values.get(f"--{name}-port", port) for name, port in ports.items()}
    records.sweep()  # which may make room
    _refuse_without_room()
    for _ in range(PORT_ATTEMPTS):
        process = Process(arguments, free_ports(named), has_key)
        try:
            process.wait_until_it_answers()
            return process
        except BaseException as error:  # an interrupt too: nothing half-started is left
            was_taken = isinstance(error, CourseError) and "already in use" in process.log_tail()
            process.stop(drain_s=0)
            if not was_taken:
                raise
    raise CourseError(
        "There are no free ports for tritonserver. Name three with http_port, grpc_port and metrics_port."
    )


def _refuse_without_room() -> None:
    """Raise CourseError for what would keep a server from answering, or its models from loading, without a word."""
    for limit, option, least, what in LIMITS:
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY and allowed < least:
            raise CourseError(
                f"A server needs {least:,} {what}, and {allowed:,} are allowed here. Raise the limit "
                f"(ulimit {option}), then start it again."
            )
    if not os.access(TMP, os.W_OK):
        raise CourseError(
            f"Triton makes files in {TMP}, whatever TMPDIR says, and it cannot be written. Mount a folder there, then "
            "start the server again."
        )
    if os.statvfs(place := _place()).f_flag & os.ST_NOEXEC:
        raise CourseError(f"Nothing in {place} may be executed. Set TMPDIR to a folder where it may, then start again.")
    free = shutil.disk_usage(SHM).free / 2**20 if os.access(SHM, os.W_OK) else 0
    if free < SHM_MIB:
        raise CourseError(
            f"A server needs {SHM_MIB} MiB of shared memory, and {free:.1f} MiB are free in {SHM}. Remove stale files "
            "there; a container gets more by --shm-size=256m."
        )
    try:
        with socket.create_server((HOST, 0)) as probe:
            socket.create_connection(probe.getsockname(), timeout=LOOPBACK_S).close()
    except OSError as error:
        raise CourseError(
            f"This machine does not reach itself at {HOST} ({error.strerror or error}), where a server listens. Bring "
            "the network interface `lo` up, or ask who runs the machine."
        ) from None


class Process:
    """A `tritonserver` and its keeper, launched; `pid` is that of `tritonserver`."""

    def __init__(self, arguments: Sequence[str], ports: Mapping[str, int], has_key: bool):
        triton = installation()
        folder = self._folder = _place() / f"inflight-server-{uuid.uuid4().hex[:12]}"
        records.announce(folder)
        self.ports = ports
        http, grpc, metrics = (f"{HOST}:{ports[name]}" for name in SERVICES)
        self.address = Address(f"http://{http}", grpc, f"http://{metrics}/metrics")
        self._key = secrets.token_hex(16) if has_key else ""
        self._shm_prefix = f"inflight_{uuid.uuid4().hex[:12]}_"
        try:
            folder.mkdir(mode=0o700)
            _link_backend(triton, folder)
            given = _link_repositories(arguments, folder)
            (folder / keeper.RECORD).write_text(json.dumps(self._record()))
        except OSError as error:
            records.withdraw(folder)
            raise CourseError(
                f"No folder for the server could be made in {folder.parent} ({error.strerror}). Make room there, or "
                "set TMPDIR."
            ) from error
        self.pid = self._launch([str(triton / "bin" / "tritonserver"), *given, *self._added(given)])

    def _record(self) -> dict[str, Any]:
        """Return what the keeper writes down of the server; see `records`."""
        return {
            **dict(zip(SERVICES, self.address)),
            "key": self._key,
            "folder": str(self._folder),
            "shm_prefix": self._shm_prefix,
            "machine": records.machine(),
            "starter": os.getpid(),
            "notebook": os.environ.get("JPY_SESSION_NAME", ""),  # JupyterLab's, of a kernel
        }

    def _added(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of `tritonserver` that are added to those given, which come first."""
        control = f"{CONTROL}:{records.HEADER}={self._key}"
        ours = {
            **{f"--{name}-address": HOST for name in SERVICES},
            **{f"--{name}-port": port for name, port in self.ports.items()},
            **({"--http-restricted-api": control, "--grpc-restricted-protocol": control} if self._key else {}),
            "--backend-directory": self._folder / "backends",
            "--backend-config": f"python,shm-region-prefix-name={self._shm_prefix}",
            "--exit-timeout-secs": 3600,  # the keeper does not wait as long
            **dict.fromkeys(CLOSED, "false"),  # last: also for a name that is shortened, Triton takes the last value
        }
        given = {argument.partition("=")[0] for argument in arguments} - {"--backend-config"}  # there may be several
        return [f"{name}={value}" for name, value in ours.items() if name not in given]

    def _launch(self, program: list[str]) -> int:
        """Start the keeper, and the server with it; return the server's process id."""
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", keeper.__file__, str(self._folder), str(records.folder()), *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment(self._folder),
            start_new_session=True,
        )
        assert self._keeper.stdin and self._keeper.stdout and self._keeper.stderr
        self._orders, self._news, self._errors = self._keeper.stdin, self._keeper.stdout, self._keeper.stderr
        # Popen keeps itself, and so the pipe, when it is forgotten while its process runs.
        weakref.finalize(self, self._orders.close)
        if not (said := self._news.readline()):
            reason = self._errors.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            self.stop(drain_s=0)
            records.withdraw(self._folder)
            if self._keeper.returncode == keeper.NO_RECORD:
                raise records.no_room(records.folder(), reason)
            raise CourseError(
                f"tritonserver cannot be started ({reason}). If its installation is incomplete, {REINSTALL}"
            )
        return int(said)

    def wait_until_it_answers(self) -> None:
        """Wait for the API; CourseError where the process has ended before, or takes too long."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.has_ended():
            if is_ok(self.address.http_url, "/v2/health/live", timeout_s=1):
                record = records.at(self.address.http_url)
                # Another server may have taken the port first.
                if record is not None and record["pid"] == self.pid and not self.has_ended():
                    return
            if time.monotonic() > deadline:
                raise CourseError(f"tritonserver did not answer within {START_TIMEOUT_S} s.", log=self.log_tail())
            time.sleep(LOOK_EVERY_S)
        raise CourseError("tritonserver ended while starting.", log=self.log_tail())

    def has_ended(self) -> bool:
        """Say whether the server has ended."""
        if self._keeper.poll() is not None:
            return True
        try:
            return bool(select.select([self._news], [], [], 0)[0])  # the keeper says that it has ended
        except ValueError:  # another thread has stopped it meanwhile, and closed this
            return True

    def stop(self, drain_s: float) -> None:
        """Stop the server and wait until nothing of it is left; see `Server.stop`."""
        try:
            with contextlib.suppress(BrokenPipeError):  # the keeper was killed itself
                self._orders.write(f"stop {drain_s}\n".encode())
            self._news.readline()
        finally:
            self._orders.close()
            self._keeper.wait()
            self._news.close()
            self._errors.close()
            if self._keeper.returncode != 0:
                records.sweep()

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of the server's log; see `Server.log_tail`."""
        log = self._folder / keeper.LOG
        kept = [line for line in keeper.last_lines(log, 10_000) if not _is_noise(line)] if log.exists() else []
        return "\n".join(kept[-lines:])


def _place() -> Path:
    """Return the folder for temporary files, or /tmp where Triton could not read its path, or run its stub there."""
    given = temporary()
    return Path(given if _is_plain(given) and not os.statvfs(given).f_flag & os.ST_NOEXEC else TMP)


# The wheel ------------------------------------------------------------------------------------------------------------


def installation() -> Path:
    """Return the folder of the `tritonserver` that comes with the nvidia-pytriton wheel."""
    spec = find_spec("pytriton")
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if folder is None or not (folder / "bin" / "tritonserver").exists():
        raise CourseError(f"There is no tritonserver here: {REINSTALL}")
    return folder


def environment(server: Path) -> dict[str, str]:
    """Return the environment of `tritonserver`: the wheel's and this Python's libraries, and its models' Python.

    The Python backend embeds an interpreter that takes its packages from where it finds `python3` on the path.
    """
    # Some containers have the driver's own library on this path alone.
    given = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    drivers = [folder for folder in given if (Path(folder) / "libcuda.so.1").exists()]
    triton = installation()
    libraries = [triton.parent.parent / "nvidia_pytriton.libs", triton / "lib", sysconfig.get_config_var("LIBDIR")]
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(VERTEX_AI)},
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, [*libraries, *drivers])),
        "PATH": os.pathsep.join([f"{server}/python/bin", os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


def _make_python(server: Path) -> None:
    """Make an environment with this Python's packages, at paths that are plain; `model_process` runs first in it."""
    packages = server / "python" / "lib" / f"python{VERSION}" / "site-packages"
    packages.mkdir(parents=True)
    first = MODEL_PROCESS.read_text(encoding="utf-8")
    # By a .pth file: Debian's Python has a sitecustomize of its own, which would hide ours.
    (packages / "inflight_first.py").write_text(f"{first}\nadd_packages({site.getsitepackages()!a})\n")
    (packages / "inflight_first.pth").write_text("import inflight_first\n")
    (server / "base").symlink_to(sys.base_prefix)
    (server / "python" / "pyvenv.cfg").write_text(f"home = {server}/base/bin\ninclude-system-site-packages = false\n")
    (server / "python" / "bin").mkdir()
    (server / "python" / "bin" / "python3").symlink_to(Path(sys.executable).resolve())


def _link_backend(triton: Path, server: Path) -> None:
    """Make a backend folder for this Python, so that nothing is written into site-packages: links, and the stub.

    Triton sets the mode of the stub, so it is given a copy: the wheel's may be another user's, or shared with others.
    """
    _make_python(server)
    folder = server / "backends" / "python"
    folder.mkdir(parents=True)
    for file in (triton / "backends" / "python").iterdir():
        (folder / file.name).symlink_to(file)
    stub = triton / "python_backend_stubs" / VERSION / "triton_python_backend_stub"
    if not stub.exists():
        raise CourseError(f"tritonserver has no Python backend for Python {VERSION}. Use Python 3.11 or 3.12.")
    (folder / stub.name).unlink(missing_ok=True)
    shutil.copyfile(stub, folder / stub.name)


def _link_repositories(arguments: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments; a repository gets a link in `folder` unless its path leads there from any line of shell."""
    linked = []
    for number, argument in enumerate(arguments):
        name, _, path = argument.partition("=")
        if name == "--model-repository" and not (_is_plain(path) and Path(path).is_absolute()):
            link = folder / f"repository-{number}"
            link.symlink_to(Path(path).absolute())
            argument = f"{name}={link}"
        linked.append(argument)
    return linked


def _is_plain(path: str) -> bool:
    """Say whether a path is of ASCII letters that mean themselves in a shell.

    Triton's Python backend starts a model's process by a line of shell, in which the paths of the server's folder and
    of the model stand without quotes, and the process reads them as ASCII.
    """
    return shlex.quote(path) == path


def _is_noise(line: str) -> bool:
    """Say whether a line is too wide to be read, as rows of Triton's tables are, or says only that there is no GPU."""
    if line.startswith(("|", "+")):
        return len(line) > MAX_ROW
    return tiers.here().name == tiers.CPU and any(
        word in line
        for word in ("NVML", "nvml", "CUDA driver", "CudaDriver", "cuda_memory", "pinned memory", "libcuda.so", "DCGM")
    )


# Ports ----------------------------------------------------------------------------------------------------------------


def free_ports(named: Mapping[str, int | str | None]) -> dict[str, int]:
    """Find a free port for each name: the given one, or any; all different, as each is held until all are found."""
    found = {}
    with contextlib.ExitStack() as held:
        for name, port in named.items():
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, int(port or 0)))
                probe.listen()  # or a second one could have the same
            except (OverflowError, ValueError):
                raise CourseError(
                    f"The {name} port {port} is not a port number: name one between 1 and 65535."
                ) from None
            except OSError as error:
                raise CourseError(
                    f"The {name} port {port} cannot be used ({error.strerror}). Stop what uses it, name another port, "
                    "or leave it out for a free one."
                ) from None
            found[name] = probe.getsockname()[1]
    return found
