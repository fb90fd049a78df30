"""A model repository in, a running Triton server out, on 127.0.0.1 and on free ports unless told.

    with Server("repo") as server:
        print(server.http_url, server.grpc_url)

The `tritonserver` binary is the one inside the nvidia-pytriton wheel. Models are loaded one by one through the server's
API (`--model-control-mode=explicit`), so that the state of each is known at any time and the reason of a failure at
once. That API, and others that could be turned against the user, take a key that only the user's own processes find;
`keys` says which.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from inflight import leftovers, tiers
from inflight.errors import CourseError
from inflight.triton import keys, repository, supervisor, transport, watch
from inflight.triton.repository import batchers

HOST = keys.HOST
PRIVATE = "INFLIGHT_PRIVATE"  # environment: 1 makes every server private that is not told otherwise
START_TIMEOUT_S = 60
LOAD_TIMEOUT_S = 300
PORT_ATTEMPTS = 5
METRICS_SOCKET = "metrics.sock"
LONGEST_SOCKET_PATH = 107  # bytes, of sockaddr_un
LOG_LINES = 15
DRAIN_S = 10


@dataclass(frozen=True)
class ModelState:
    """A row of the server's model table. `state` is READY, UNAVAILABLE, LOADING, UNLOADING or blank (never loaded)."""

    name: str
    version: str
    state: str
    reason: str


@dataclass(frozen=True)
class Event:
    """What happened to a model that died: it did, it was loaded again, it stays down. `time` in seconds since 1970."""

    time: float
    model: str
    what: str


class Server:
    """A Triton server and its life: start, load, unload, stop. A context manager that starts and stops it.

    Parameters
    ----------
    repo : path
        Model repository. It is checked before anything starts.
    http_port, grpc_port, metrics_port : int, optional
        Ports on 127.0.0.1; a free one each unless named. The metrics of a private server have none.
    on_state : callable, optional
        Called with a `ModelState` whenever the state of a model changes while starting.
    private : bool, optional
        Whether other users of the machine can ask it nothing but its health; `keys` has the details. By default as the
        environment's INFLIGHT_PRIVATE says, which the configuration of a hub sets to 1 for all, and else not.
    open_control : bool
        Let every request load models and change settings, without a key: any user of this machine can then run code
        as you. For tools that must do so and can send no key.

    Raises
    ------
    CourseError
        It is to be private and open; INFLIGHT_PRIVATE is neither 0 nor 1. When starting: the machine does not let a
        server be closed to other users; the repository has a problem, a named port is in use, or a model cannot be
        loaded.
    """

    def __init__(
        self,
        repo: str | Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        on_state: Callable[[ModelState], None] | None = None,
        private: bool | None = None,
        open_control: bool = False,
    ):
        self.private = _is_private(private, open_control)
        self.open_control = open_control
        self.repo = Path(repo).absolute()
        self._named_ports = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._ports: dict[str, int] = {}
        self._on_state = on_state or (lambda state: None)
        self._supervisor: subprocess.Popen | None = None
        self._workdir: Path | None = None
        self._shm_prefix = ""
        self._pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver`, None when there is none; another one after a crash."""
        return self._pid if self._workdir is None else watch.read_status(self._workdir).get("pid", self._pid)

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        return f"{HOST}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        """Address of the page; of a private server the path of a socket, "unix:/…", which `telemetry.page` reads."""
        if self.private:
            return f"{transport.UNIX}{self._folder / METRICS_SOCKET}"
        return f"http://{HOST}:{self._ports['metrics']}/metrics"

    @property
    def headers(self) -> dict[str, str]:
        """What a request to the server carries, over HTTP and gRPC, to do what others may not: for tools of your own.

        The course's own tools send it by themselves. Printed, it does not show the key.
        """
        return keys.headers(self.http_url)

    @property
    def key_file(self) -> Path:
        """The key as a header in a file that you alone can open: `curl -H @FILE`. There is none with open control."""
        return self._folder / watch.KEY_FILE

    @property
    def _folder(self) -> Path:
        if self._workdir is None:
            raise CourseError("The server does not run, so it has no folder. Start it first.")
        return self._workdir

    @property
    def backend_dir(self) -> Path:
        """Folder of the Python backend that this server alone uses: links that go when it stops."""
        return self._folder / keys.BACKENDS / "python"

    # Start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Start the server and load every model of the repository; returns when all are ready."""
        if self.is_alive():
            return self
        problems = repository.check(self.repo)
        if problems:
            raise CourseError(f"The repository is not ready to be served: {problems[0]}")
        leftovers.sweep()
        try:
            self._start_process()
            self.load_all()
        except BaseException:  # an interrupt too: nothing half-started is left
            self.stop()
            raise
        return self

    def _start_process(self) -> None:
        """Start `tritonserver` until its API answers; with free ports, try others if somebody was faster."""
        for _ in range(PORT_ATTEMPTS):
            self._ports = _free_ports(self._named_ports)
            self._launch()
            if self._wait_until_live():
                return
            log = self.log_tail()
            self.stop()
            if "Address already in use" not in log and "failed to start" not in log.lower():
                raise CourseError(f"tritonserver ended while starting. Its last lines:\n{log}")
        raise CourseError(
            "No free ports could be had for tritonserver. Name three with http_port, grpc_port and metrics_port."
        )

    def _launch(self) -> None:
        triton = _installation()
        self._shm_prefix = f"inflight_{uuid.uuid4().hex[:12]}_"
        try:
            self._workdir, owner = leftovers.server_folder(self._shm_prefix)
            _link_backend(triton, self._workdir / keys.BACKENDS)
            if not self.open_control:
                keys.create(self._workdir)
        except OSError as error:
            raise CourseError(
                f"No folder for the server could be made in {tempfile.gettempdir()} ({error.strerror}). "
                "Make room there, or set TMPDIR."
            ) from error
        try:
            command = self._command(triton)
            self._supervisor = subprocess.Popen(
                [sys.executable, "-S", supervisor.__file__, str(self._workdir), self._shm_prefix, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=_environment(triton),
                start_new_session=True,
                pass_fds=[owner],
            )
        finally:
            os.close(owner)  # the folder is the supervisor's
        assert self._supervisor.stdout is not None
        answer = self._supervisor.stdout.readline().decode().strip()
        if answer.startswith(supervisor.CANNOT_CLOSE):
            reason = answer.removeprefix(supervisor.CANNOT_CLOSE).strip()
            raise CourseError(
                f"The server cannot be closed to the other users of this machine ({reason}). If "
                "you trust all of them, start it with --open-control (in Python open_control=True): any of them can "
                "then run code as you."
            )
        if not answer.isdecimal():
            raise CourseError(
                f"tritonserver cannot be started ({answer or 'its supervisor ended'}). Install the course's "
                "requirements again (`make course` does it)."
            )
        self._pid = int(answer)

    def _command(self, triton: Path) -> list[str]:
        return [
            str(triton / "bin" / "tritonserver"),
            f"--model-repository={self.repo}",
            f"--backend-directory={self._folder / keys.BACKENDS}",
            "--model-control-mode=explicit",
            "--exit-timeout-secs=3600",  # the supervisor does not wait as long
            "--disable-auto-complete-config",
            f"--http-address={HOST}",
            f"--http-port={self._ports['http']}",
            f"--grpc-address={HOST}",
            f"--grpc-port={self._ports['grpc']}",
            f"--metrics-address={self._metrics_address()}",
            f"--metrics-port={self._ports['metrics']}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            *([] if self.open_control else keys.arguments(self.private)),
        ]

    def _metrics_address(self) -> str:
        if not self.private:
            return HOST
        path = self._folder / METRICS_SOCKET
        if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
            raise CourseError(
                f"The path of the metrics' socket is too long for Linux ({path}). Set TMPDIR to a shorter one."
            )
        return f"{transport.UNIX}{path}"

    def _wait_until_live(self) -> bool:
        """True when the API answers, False when the process has ended."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.is_alive():
            if transport.is_ok(self.http_url, "/v2/health/live", timeout_s=1):
                return self._owns_http_port()
            if time.monotonic() > deadline:
                raise CourseError(
                    f"tritonserver did not answer within {START_TIMEOUT_S} s. Its last lines:\n{self.log_tail()}"
                )
            self._ends(within_s=0.05)
        return False

    def _owns_http_port(self) -> bool:
        """Whether it is this server that listens there, and not one that took the port first."""
        return self.pid is not None and watch.listens(self.pid, (HOST, self._ports["http"]))

    def is_alive(self) -> bool:
        """Whether the server's process runs; whether it can answer is what `is_ready` tells."""
        return not self._ends(within_s=0)

    def is_ready(self) -> bool:
        """Whether the server runs, all its models are loaded, and the process of none is gone."""
        if not self.is_alive() or not transport.is_ok(self.http_url, "/v2/health/ready"):
            return False
        try:
            return all(row.state == "READY" for row in self.models())
        except CourseError:  # it has gone since
            return False

    def events(self) -> list[Event]:
        """What happened to models whose processes ended by themselves or were killed; the oldest first.

        It is noticed at once, and such a model is loaded again, up to 3 times in 10 minutes (`inflight.triton.watch`).
        """
        return [Event(**event) for event in watch.read_status(self._folder)["events"]] if self.is_alive() else []

    def _ends(self, within_s: float | None) -> bool:
        """Whether the server has ended, or ends in the next seconds; None waits for it. Returns as soon as it has."""
        process = self._supervisor
        if process is None or process.stdout is None or process.poll() is not None:
            return True
        return bool(select.select([process.stdout], [], [], within_s)[0])  # the supervisor writes a second line then

    def wait(self, within_s: float | None = None) -> None:
        """Block until the server ends by itself, which is an error, or for some seconds; an interrupt ends the waiting.

        Raises
        ------
        CourseError
            The server died, with the last lines of its log.
        """
        if self._ends(within_s):
            raise CourseError(f"tritonserver ended unexpectedly. Its last lines:\n{self.log_tail()}")

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop the server and wait until nothing of it is left. May be called twice.

        Parameters
        ----------
        drain_s : float
            How many seconds the requests that run may take to their end; new ones are refused. The clients of those
            that take longer are told that the server went away. An interrupt meanwhile ends the server at once.
        """
        if self._supervisor is None:
            if self._workdir is not None:  # it could not be started
                shutil.rmtree(self._workdir, ignore_errors=True)
                self._workdir = None
            return
        process, self._supervisor = self._supervisor, None
        try:
            _wait_for_end(process, drain_s)
        finally:
            self._clean_up(process)

    def _clean_up(self, process: subprocess.Popen) -> None:
        """Wait for the supervisor's end, which is soon now, and remove what is left."""
        assert process.stdin is not None and process.stdout is not None and self._workdir is not None
        process.stdin.close()
        process.stdout.read()
        if process.wait() != 0 and self._pid is not None:  # the supervisor was killed itself: do its work
            supervisor.clean_up(self._pid, self._shm_prefix)
        process.stdout.close()
        shutil.rmtree(self._workdir, ignore_errors=True)
        self._workdir = self._pid = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of the server's log, without the notes about a missing GPU."""
        path = self._workdir / "triton.log" if self._workdir else None
        if path is None or not path.exists():
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 100_000))
            text = file.read().decode("utf-8", "replace")
        kept = [line for line in text.splitlines() if line.strip() and not _is_gpu_note(line)]
        return "\n".join(kept[-lines:])

    # Models -----------------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Load every model; an ensemble takes the models that it is made of along, side by side."""
        with self._alone_with_models():
            self._load_all()

    def _load_all(self) -> None:
        names = repository.models(self.repo)
        configs = {name: repository.read_config(self.repo / name / repository.CONFIG) for name in names}
        parts = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            loads = [pool.submit(self._load, name, {}) for name in names if name not in parts]
            try:
                self._report_until_done(loads)
            except BaseException:  # an interrupt: without a server the loads end, which this block waits for
                self.stop(drain_s=0)
                raise
        failed = [row for row in self.models() if row.state != "READY" and row.reason]
        if failed:
            first = next(
                (row for row in failed if row.name in parts), failed[0]
            )  # the cause, before what it drags along
            raise CourseError(
                f"The model {first.name!r} could not be loaded: {first.reason}\n"
                f"Last lines of the log:\n{self.log_tail()}"
            )
        for load in loads:
            load.result()

    def _report_until_done(self, loads: list[Future]) -> None:
        """Tell `on_state` what changes while models load; return when all are loaded or one has failed."""
        known: dict[str, ModelState] = {}
        while True:
            done = wait(loads, timeout=0.05).not_done == set()
            for row in self.models():
                if row.state and known.get(row.name) != row:
                    known[row.name] = row
                    self._on_state(row)
            if done:
                return

    def load(self, model: str, **values) -> None:
        """Load a model, or load it again from its files.

        Parameters
        ----------
        model : str
        **values
            Values to override for this load only, as in `repository.edit`; the file stays as it is.

        Raises
        ------
        CourseError
            The model cannot be loaded, with Triton's reason; a wrong override, before anything happens.
        """
        config = repository.read_config(self.repo / model / repository.CONFIG)
        for name, value in values.items():
            repository.set_value(config, name, value)
        batchers.check(config)
        for problem in repository.batch_library_problems(self.repo / model, config):
            raise CourseError(str(problem))
        repository.note_scheduler(config)
        self._wait_until_mended(model)
        # Always with a config: told to load files that have not changed, Triton keeps an earlier override.
        with self._alone_with_models(model):
            self._load(
                model, {"parameters": {"config": json_format.MessageToJson(config, preserving_proto_field_name=True)}}
            )

    def _load(self, model: str, body: dict) -> None:
        started = time.time()

        def has_failed() -> bool:
            return any(event.time > started and event.what.startswith(watch.LOAD_FAILED) for event in self.events())

        try:
            self._post(f"/v2/repository/models/{model}/load", body, model, has_failed)
        except transport.ModelGone as error:
            reasons = [f"{event.model}: {event.what}" for event in self.events() if event.time > started]
            raise CourseError(f"The model {model!r} could not be loaded. {' '.join(reasons)}") from error
        except transport.Refused as error:
            raise CourseError(
                f"The model {model!r} could not be loaded: {watch.sentence(str(error))}\n"
                f"Last lines of the log:\n{self.log_tail()}"
            ) from error

    def unload(self, model: str) -> None:
        """Unload a model and wait until it is gone: its running requests end first, with their answers."""
        self._wait_until_mended(model)
        with self._alone_with_models(model):
            try:
                self._post(f"/v2/repository/models/{model}/unload", {})
            except transport.Refused as error:
                raise CourseError(f"The model {model!r} could not be unloaded: {error}") from error
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while any(row.name == model and row.state in ("READY", "UNLOADING") for row in self.models()):
            if time.monotonic() > deadline:
                raise CourseError(f"The model {model!r} still runs {LOAD_TIMEOUT_S} s after it was told to stop.")
            self._ends(within_s=0.05)

    def models(self) -> list[ModelState]:
        """State of each model of the repository, as in the table that Triton logs.

        Of a model whose process is gone Triton says that it is READY, and later that it is being unloaded: here it is
        UNAVAILABLE, with the reason.
        """
        down = watch.read_status(self._folder)["down"] if self.is_alive() else {}
        states = {name: ModelState(name, "1", "UNAVAILABLE", reason) for name, reason in down.items()}
        try:
            for row in self._post("/v2/repository/index", {}):
                reason = watch.sentence(row.get("reason", ""))
                told = ModelState(row["name"], row.get("version", "1"), row.get("state", ""), reason)
                states.setdefault(row["name"], told)
        except CourseError:
            if not states:  # else it has crashed, and is being started again
                raise
        known = repository.models(self.repo)
        return sorted(states.values(), key=lambda row: known.index(row.name) if row.name in known else len(known))

    def _alone_with_models(self, model: str = "") -> contextlib.AbstractContextManager:
        """Loading and unloading, here and by the supervisor, is done by one at a time."""
        return watch.held(self._folder / watch.LOCK, model)

    def _is_being_mended(self, model: str) -> bool:
        return watch.read_status(self._folder)["down"].get(model, "").endswith(watch.BEING_MENDED)

    def _lacks_processes(self, model: str) -> bool:
        """Whether a process of a loaded model has ended, which the supervisor is about to notice."""
        try:
            config = transport.get_json(self.http_url, f"/v2/models/{model}/config")
            return self.pid is not None and watch.living(self.pid, model) < watch.num_processes(config)
        except (CourseError, FileNotFoundError):  # it is not loaded; the server has ended
            return False

    def _wait_until_mended(self, model: str) -> None:
        """Return when the supervisor has loaded a model again that died, or has given up on it."""
        deadline = time.monotonic() + LOAD_TIMEOUT_S
        while self.is_alive() and (self._is_being_mended(model) or self._lacks_processes(model)):
            if time.monotonic() > deadline:
                return
            self._ends(within_s=0.05)

    def _post(self, path: str, body: dict, model: str = "", is_gone: Callable[[], bool] | None = None) -> Any:
        """What an endpoint of the model repository answers; CourseError with the log's end when nothing comes."""
        if not self.is_alive():
            raise CourseError(f"The server does not run. Start it first. Last lines of its log:\n{self.log_tail()}")
        try:
            return transport.post_json(self.http_url, path, body, LOAD_TIMEOUT_S, model, is_gone)
        except transport.ModelGone:
            raise
        except (transport.ServerGone, transport.NoAnswer) as error:
            raise CourseError(
                f"The server at {self.http_url} does not answer. Last lines of its log:\n{self.log_tail()}"
            ) from error


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


def _is_private(private: bool | None, open_control: bool) -> bool:
    """What is asked for, or else the environment's setting."""
    setting = os.environ.get(PRIVATE, "") or "0"
    if setting not in ("0", "1"):
        raise CourseError(f"{PRIVATE} is {setting!r}. Set it to 1 for servers that only you can ask, or to 0.")
    if not open_control:
        return setting == "1" if private is None else private
    if private or (private is None and setting == "1"):
        raise CourseError(
            "A server cannot be private and its control open: leave one of them out"
            + ("." if private else f" ({PRIVATE} is set here: for an open one, say that it is not private).")
        )
    return False


def _free_ports(named: dict[str, int | None]) -> dict[str, int]:
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


def _installation() -> Path:
    """Folder of the `tritonserver` that comes with the nvidia-pytriton wheel."""
    spec = find_spec("pytriton")
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if folder is None or not (folder / "bin" / "tritonserver").exists():
        raise CourseError("There is no tritonserver here: install the course's requirements (`make course` does it).")
    return folder


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


def _environment(triton: Path) -> dict[str, str]:
    """The server's environment: the libraries of the wheel and of this Python, and this Python first on the path.

    The Python backend embeds an interpreter that takes its packages from where it finds `python3` on the path. Of the
    GPUs it sees the one that was chosen.
    """
    tiers.device()  # names the GPU in the environment
    libraries = [triton.parent.parent / "nvidia_pytriton.libs", triton / "lib", sysconfig.get_config_var("LIBDIR")]
    # Some containers have the driver's own library on this path alone.
    given = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    libraries += [folder for folder in given if (Path(folder) / "libcuda.so.1").exists()]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }
