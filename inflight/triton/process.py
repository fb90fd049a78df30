"""A `tritonserver` of our own: the program inside the nvidia-pytriton wheel, its folder, and the keeper beside it.

The folder has the log and the Python backend for this Python. It goes when the server ends. The keeper's standard input
is ours, so that the server ends with this program, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from inflight import tiers
from inflight.errors import CourseError
from inflight.triton import keeper, records, repository
from inflight.triton.client import is_ok

HOST = "127.0.0.1"
START_TIMEOUT_S = 60
PORT_ATTEMPTS = 3
LOG_LINES = 15
MAX_ROW = 160  # columns of a row of Triton's tables that are read in a notebook
PORTS = ("http", "grpc", "metrics")
REINSTALL = "install the course's requirements (`make course` does it)."


class Process:
    """A `tritonserver`, its keeper, and the folder that both share.

    Parameters
    ----------
    repo : path
    ports : dict
        By "http", "grpc" and "metrics" the port, or None for a free one.
    open_control : bool
        See `Server`.
    arguments : sequence of str, optional
        Of `tritonserver`, in place of those with which the course starts it; what it takes to keep it is added.

    Attributes
    ----------
    http_url, grpc_url, metrics_url : str
        Where it answers: ports of 127.0.0.1.
    pid : int or None
        Of `tritonserver`.
    """

    def __init__(
        self,
        repo: Path,
        ports: Mapping[str, int | None],
        open_control: bool = False,
        arguments: Sequence[str] | None = None,
    ):
        self.repo = repo
        self.http_url = self.grpc_url = self.metrics_url = ""
        self._named_ports = self._ports = ports
        self._has_key = not open_control
        self._given = arguments
        self._keeper: subprocess.Popen | None = None
        self._folder: Path | None = None  # of the keeper and us
        self.pid: int | None = None

    # Start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start `tritonserver` until its API answers; with free ports, try others if somebody was faster.

        Started once more, it has the ports that it had: its clients find it again.
        """
        self.stop(drain_s=0)  # what is left of one that has died
        records.sweep()
        for _ in range(PORT_ATTEMPTS):
            self._ports = _free_ports(self._ports)
            self._launch()
            if self._answers():
                return
            log = self.log_tail()
            self.stop(drain_s=0)
            if "already in use" not in log:
                raise CourseError(f"tritonserver ended while starting. Its last lines:\n{log}")
            self._ports = self._named_ports
        raise CourseError(
            "There are no free ports for tritonserver. Name three with http_port, grpc_port and metrics_port."
        )

    def _launch(self) -> None:
        triton = installation()
        shm_prefix = f"inflight_{uuid.uuid4().hex[:12]}_"
        try:
            folder = self._folder = Path(tempfile.mkdtemp(prefix="inflight-server-"))
            _link_backend(triton, folder / "backends")
        except OSError as error:
            raise CourseError(
                f"No folder for the server could be made in {tempfile.gettempdir()} ({error.strerror}). "
                "Make room there, or set TMPDIR."
            ) from error
        self._set_addresses()
        key = records.new_key() if self._has_key else ""
        record = {
            "http": self.http_url,
            "grpc": self.grpc_url,
            "metrics": self.metrics_url,
            "key": key,
            "folder": str(folder),
            "shm_prefix": shm_prefix,
            "machine": records.machine(),
            "starter": os.getpid(),
            "notebook": os.environ.get("JPY_SESSION_NAME", ""),  # JupyterLab's, of a kernel
        }
        (folder / keeper.RECORD).write_text(json.dumps(record))
        ours = [f"--model-repository={self.repo}", "--model-control-mode=explicit"]
        if not repository.is_llmapi(self.repo):  # whose model.yaml decides what its config.pbtxt leaves open
            ours.append("--disable-auto-complete-config")
        arguments = self._given or ours
        given = {argument.partition("=")[0] for argument in arguments} - {"--backend-config"}  # there may be several
        added = [one for one in self._added(folder, shm_prefix, key) if one.partition("=")[0] not in given]
        program = [str(triton / "bin" / "tritonserver"), *arguments, *added]
        self._keeper = subprocess.Popen(
            [sys.executable, "-S", keeper.__file__, str(folder), str(records.folder()), *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment(),
            start_new_session=True,
        )
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        # Popen keeps itself, and so the pipe, when it is forgotten while its process runs.
        weakref.finalize(self, self._keeper.stdin.close)
        said = self._keeper.stdout.readline()
        if not said:
            self._could_not_start()
        self.pid = int(said)

    def _could_not_start(self) -> None:
        assert self._keeper is not None and self._keeper.stderr is not None
        reason = self._keeper.stderr.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        self.stop(drain_s=0)
        raise CourseError(f"tritonserver cannot be started ({reason}). If its installation is incomplete, {REINSTALL}")

    def _set_addresses(self) -> None:
        self.http_url, self.grpc_url = f"http://{HOST}:{self._ports['http']}", f"{HOST}:{self._ports['grpc']}"
        self.metrics_url = f"http://{HOST}:{self._ports['metrics']}/metrics"

    def _added(self, folder: Path, shm_prefix: str, key: str) -> list[str]:
        """Those that have it answer here alone, with this Python's backend, and end when the keeper wants it to."""
        where = [f"--{name}-{kind}={value}" for name in PORTS
                 for kind, value in (("address", HOST), ("port", self._ports[name]))]  # fmt: skip
        return [
            *where,
            *(records.key_arguments(key) if key else []),
            f"--backend-directory={folder / 'backends'}",
            f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
            "--exit-timeout-secs=3600",  # the keeper does not wait as long
        ]

    def _answers(self) -> bool:
        """True when the API answers, False when the process has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ends(within_s=0.05):
            if is_ok(self.http_url, "/v2/health/live", timeout_s=1):
                record = records.at(self.http_url)  # not another's, who took the port first
                return record is not None and record["pid"] == self.pid and not self.ends(within_s=0)
            if time.monotonic() > deadline:
                raise CourseError(
                    f"tritonserver did not answer within {START_TIMEOUT_S} s. Its last lines:\n{self.log_tail()}"
                )
        return False

    def ends(self, within_s: float | None) -> bool:
        """Whether the server has ended, or ends in the next seconds; None waits for it. Returns as soon as it has."""
        process = self._keeper
        if process is None or process.stdout is None or process.poll() is not None:
            return True
        try:
            return bool(select.select([process.stdout], [], [], within_s)[0])  # the keeper says that it has ended
        except ValueError:  # another thread has stopped it meanwhile, and closed this
            return True

    def death(self) -> str:
        """How it died, in a sentence; blank if nothing is known."""
        return records.death(self.http_url) if self.http_url else ""

    def stop(self, drain_s: float) -> None:
        """Stop the server and wait until nothing of it is left; see `Server.stop`."""
        process, self._keeper = self._keeper, None
        if process is not None:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # it was killed itself
                    process.stdin.write(f"stop {drain_s}\n".encode())
                process.stdout.readline()
            finally:
                process.stdin.close()
                process.wait()
                process.stdout.close()
                process.stderr.close()
                if process.returncode != 0:
                    records.sweep()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self.pid = None

    # What it says -----------------------------------------------------------------------------------------------------

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of the server's log; see `Server.log_tail`."""
        path = None if self._folder is None else self._folder / keeper.LOG
        if path is None or not path.exists():
            return ""
        kept = [line for line in keeper.last_lines(path, 10_000) if not _is_noise(line)]
        return "\n".join(kept[-lines:])


# The wheel ------------------------------------------------------------------------------------------------------------


def installation() -> Path:
    """Folder of the `tritonserver` that comes with the nvidia-pytriton wheel."""
    spec = find_spec("pytriton")
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if folder is None or not (folder / "bin" / "tritonserver").exists():
        raise CourseError(f"There is no tritonserver here: {REINSTALL}")
    return folder


def environment() -> dict[str, str]:
    """What `tritonserver` runs with: the libraries of the wheel and of this Python, and this Python first on the path.

    The Python backend embeds an interpreter that takes its packages from where it finds `python3` on the path.
    """
    # Some containers have the driver's own library on this path alone.
    given = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    drivers = [folder for folder in given if (Path(folder) / "libcuda.so.1").exists()]
    triton = installation()
    libraries = [triton.parent.parent / "nvidia_pytriton.libs", triton / "lib", sysconfig.get_config_var("LIBDIR")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, [*libraries, *drivers])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


def _link_backend(triton: Path, backends: Path) -> None:
    """A backend folder for this Python, of links, so that nothing is written into site-packages."""
    folder = backends / "python"
    folder.mkdir(parents=True)
    for file in (triton / "backends" / "python").iterdir():
        (folder / file.name).symlink_to(file)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise CourseError(f"tritonserver has no Python backend for Python {version}. Use Python 3.11 or 3.12.")
    (folder / stub.name).unlink(missing_ok=True)
    (folder / stub.name).symlink_to(stub)


def _is_noise(line: str) -> bool:
    """Rows too wide to be read, of the table of all options; and what only says that there is no GPU, on tier cpu."""
    if line.startswith(("|", "+")):
        return len(line) > MAX_ROW
    return tiers.here().name == tiers.CPU and any(
        word in line
        for word in ("NVML", "nvml", "CUDA driver", "CudaDriver", "cuda_memory", "pinned memory", "libcuda.so", "DCGM")
    )


# Ports ----------------------------------------------------------------------------------------------------------------


def _free_ports(named: Mapping[str, int | None]) -> dict[str, int | None]:
    """A free port for each name: the one that is named, or any; all different, as each is held until all are found."""
    with contextlib.ExitStack() as held:
        probes = {name: held.enter_context(socket.socket()) for name in named}
        return {name: _bound_port(probes[name], name, port) for name, port in named.items()}


def _bound_port(probe: socket.socket, name: str, named: int | None) -> int:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((HOST, named or 0))
        probe.listen()  # or a second one could have the same
    except OverflowError:
        raise CourseError(f"The {name} port {named} is not a port number: name one between 1 and 65535.") from None
    except OSError as error:
        raise CourseError(
            f"The {name} port {named} cannot be used ({error.strerror}). Stop what uses it, name another "
            "port, or leave it out for a free one."
        ) from None
    return probe.getsockname()[1]
