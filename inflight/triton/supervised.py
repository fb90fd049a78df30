"""What a server of ours is, whichever way it came to run: a `tritonserver` that a supervisor keeps.

`wheel` starts the supervisor as a process of this machine. Its standard input and output are ours: it says when the
server runs and when it has ended, and ends the server when its input does. So a server ends with the program that
started it, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
import weakref
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import leftovers, tiers
from inflight.errors import CourseError
from inflight.triton import keys, repository, supervisor, transport, watch

HOST = keys.HOST
START_TIMEOUT_S = 60
PORT_ATTEMPTS = 5
METRICS_SOCKET = "metrics.sock"
LONGEST_SOCKET_PATH = 107  # bytes, of sockaddr_un
LOG_LINES = 15
PORTS = ("http", "grpc", "metrics")


@dataclass(frozen=True)
class Options:
    """What a server of ours is started with; see `Server`."""

    http_port: int | None = None
    grpc_port: int | None = None
    metrics_port: int | None = None
    private: bool = False
    open_control: bool = False

    def named_port(self, name: str) -> int | None:
        return getattr(self, f"{name}_port")


class Supervised:
    """A `tritonserver`, its supervisor, and the folder that both share. `wheel` says how it starts.

    Attributes
    ----------
    can_load : bool
        Whether models are loaded and unloaded on request.
    loads_by_itself : bool
        Whether its own arguments say what it loads: then nothing is checked before, and nothing loaded after.
    """

    can_load = True
    loads_by_itself = False

    def __init__(self, repo: Path, options: Options):
        self.repo = repo
        self.options = options
        self._ports: dict[str, int] = {}
        self._supervisor: subprocess.Popen | None = None
        self._made: Path | None = None
        self._shm_prefix = ""
        self._pid: int | None = None

    # What a way adds --------------------------------------------------------------------------------------------------

    def _command(self) -> list[str]:
        """The command that runs the supervisor; `self.folder` is there."""
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Put what the server needs into its folder."""

    def _is_ours(self) -> bool:
        """Whether it is this server that answers at its port, and not one that took the port first."""
        raise NotImplementedError

    def _why_not_started(self, said: str) -> str:
        """A sentence for a supervisor that ended before the server ran; `said` is its last line."""
        raise NotImplementedError

    def _lost_a_port(self) -> bool:
        """Whether the server ended because somebody was faster at a free port."""
        log = self.log_tail()
        return "Address already in use" in log or "failed to start" in log.lower()

    # Where it is ------------------------------------------------------------------------------------------------------

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        return f"{HOST}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        if self.options.private:
            return f"{transport.UNIX}{self.folder / METRICS_SOCKET}"
        return f"http://{HOST}:{self._ports['metrics']}/metrics"

    @property
    def folder(self) -> Path:
        """The folder that the supervisor shares with us: log, key, status, lock."""
        if self._made is None:
            raise CourseError("The server does not run, so it has no folder. Start it first.")
        return self._made

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver`, None when there is none; another one after a crash."""
        made = self._made  # looked at once: another thread may stop the server meanwhile
        return self._pid if made is None else watch.read_status(made).get("pid", self._pid)

    # Start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start `tritonserver` until its API answers; with free ports, try others if somebody was faster.

        Started once more, it has the ports that it had, where they are free: its clients find it again.
        """
        leftovers.sweep()
        for _ in range(PORT_ATTEMPTS):
            before = {name: port for name, port in self._ports.items() if _is_free(port)}
            self._ports = _free_ports({name: self.options.named_port(name) or before.get(name) for name in PORTS})
            self._launch()
            if self._wait_until_live():
                return
            log, may_try_again = self.log_tail(), self._lost_a_port()
            self.stop(drain_s=0)
            self._ports = {}
            if not may_try_again:
                raise CourseError(f"tritonserver ended while starting. Its last lines:\n{log}")
        raise CourseError(
            "No free ports could be had for tritonserver. Name three with http_port, grpc_port and metrics_port."
        )

    def _launch(self) -> None:
        self._shm_prefix = f"inflight_{uuid.uuid4().hex[:12]}_"
        try:
            self._made, owner = leftovers.server_folder(self._shm_prefix)
            self._prepare()
            if not self.options.open_control:
                keys.create(self.folder)
        except OSError as error:
            raise CourseError(
                f"No folder for the server could be made in {tempfile.gettempdir()} ({error.strerror}). "
                "Make room there, or set TMPDIR."
            ) from error
        try:
            self._supervisor = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=self._environment(),
                start_new_session=True,
                pass_fds=[owner],
            )
        finally:
            os.close(owner)  # the folder is the supervisor's
        # Popen keeps itself, and so the pipe, when it is forgotten while its process runs.
        assert self._supervisor.stdin is not None
        weakref.finalize(self, self._supervisor.stdin.close)
        self._pid = self._read_pid()

    def _read_pid(self) -> int:
        """The server's number, which the supervisor says first."""
        assert self._supervisor is not None and self._supervisor.stdout is not None
        said = ""
        for line in iter(self._supervisor.stdout.readline, b""):
            said = line.decode("utf-8", "replace").strip() or said
            if said.isdecimal():
                return int(said)
            if said.startswith(supervisor.CANNOT_CLOSE):
                reason = said.removeprefix(supervisor.CANNOT_CLOSE).strip()
                raise CourseError(
                    f"The server cannot be closed to the other users of this machine ({reason}). If "
                    "you trust all of them, start it with --open-control (in Python open_control=True): any of them "
                    "can then run code as you."
                )
        raise CourseError(self._why_not_started(said))

    def _triton_options(self, repo: Path, host: str, ports: dict[str, int], metrics_address: str) -> list[str]:
        """Options of `tritonserver` that all ways share."""
        return [
            f"--model-repository={repo}",
            "--model-control-mode=explicit",
            "--exit-timeout-secs=3600",  # the supervisor does not wait as long
            "--disable-auto-complete-config",
            f"--http-address={host}",
            f"--http-port={ports['http']}",
            f"--grpc-address={host}",
            f"--grpc-port={ports['grpc']}",
            f"--metrics-address={metrics_address}",
            f"--metrics-port={ports['metrics']}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            *([] if self.options.open_control else keys.arguments(self.options.private)),
        ]

    def _metrics_address(self, host: str) -> str:
        if not self.options.private:
            return host
        path = self.folder / METRICS_SOCKET
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            raise CourseError(
                f"The path of the metrics' socket is too long for Linux ({path}). Set TMPDIR to a shorter one."
            )
        return f"{transport.UNIX}{path}"

    def _wait_until_live(self) -> bool:
        """True when the API answers, False when the process has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.ends(within_s=0):
            if transport.is_ok(self.http_url, "/v2/health/live", timeout_s=1):
                return self._is_ours()
            if time.monotonic() > deadline:
                raise CourseError(
                    f"tritonserver did not answer within {START_TIMEOUT_S} s. Its last lines:\n{self.log_tail()}"
                )
            self.ends(within_s=0.05)
        return False

    def ends(self, within_s: float | None) -> bool:
        """Whether the server has ended, or ends in the next seconds; None waits for it. Returns as soon as it has."""
        process = self._supervisor
        if process is None or process.stdout is None or process.poll() is not None:
            return True
        try:
            return bool(
                select.select([process.stdout], [], [], within_s)[0]
            )  # the supervisor writes a second line then
        except ValueError:  # another thread has stopped it meanwhile, and closed this
            return True

    def stop(self, drain_s: float) -> None:
        """Stop the server and wait until nothing of it is left; see `Server.stop`."""
        if self._supervisor is None:
            self._remove_folder()  # it could not be started
            return
        process, self._supervisor = self._supervisor, None
        try:
            _wait_for_end(process, drain_s)
        finally:
            self._clean_up(process)

    def _clean_up(self, process: subprocess.Popen) -> None:
        """Wait for the supervisor's end, which is soon now, and remove what is left."""
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.read()
        if process.wait() != 0:
            self._do_its_work()
        process.stdout.close()
        self._remove_folder()

    def _do_its_work(self) -> None:
        """The supervisor was killed itself: clean up in its place."""
        raise NotImplementedError

    def _remove_folder(self) -> None:
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
        self._made = self._pid = None

    # What it says -----------------------------------------------------------------------------------------------------

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of the server's log, without the notes about a missing GPU."""
        path = self.folder / watch.LOG if self._made is not None else None
        if path is None or not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 100_000))
            text = file.read().decode("utf-8", "replace")
        kept = [line for line in text.splitlines() if line.strip() and not _is_gpu_note(line)]
        return "\n".join(kept[-lines:])

    # Models -----------------------------------------------------------------------------------------------------------

    def may_load(self, model: str) -> bool:
        """Whether a model may be loaded or unloaded; what is ours may."""
        return True

    def files(self, model: str) -> dict[str, str]:
        """Files that a load must bring along: none, for the server sees the repository."""
        return {}

    def names(self) -> list[str]:
        """The models that it serves."""
        return repository.models(self.repo)

    def fitted(self, config: ModelConfig) -> ModelConfig:
        """A model's config as this server takes it: its files are ours."""
        return config


def _wait_for_end(process: subprocess.Popen, drain_s: float) -> None:
    """Tell the supervisor to end the server, and wait until it has."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it was killed itself
        process.stdin.write(f"stop {drain_s}\n".encode())
    process.stdout.readline()


def _is_gpu_note(line: str) -> bool:
    """Lines that only say that there is no GPU, which is no fault on the tier cpu."""
    return tiers.here().name == tiers.CPU and any(
        word in line
        for word in ("NVML", "nvml", "CUDA driver", "CudaDriver", "cuda_memory", "pinned memory", "libcuda.so", "DCGM")
    )


def _free_ports(named: dict[str, int | None]) -> dict[str, int]:
    """A free port for each name: the one that is named, or any; all different, as each is held until all are found."""
    with contextlib.ExitStack() as held:
        probes = {name: held.enter_context(socket.socket()) for name in named}
        return {name: _bound_port(probes[name], name, port) for name, port in named.items()}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
        return True


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
