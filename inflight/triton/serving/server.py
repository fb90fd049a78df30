"""`Server` serves a model repository with Triton, on 127.0.0.1 and on free ports unless others are named.

    with Server("repo") as server:
        print(server.http_url, server.grpc_url)

`Server` starts the `tritonserver` inside the nvidia-pytriton wheel (`process`). Where an address is given, or is in the
environment, what is made is an `AttachedServer`, which uses one that somebody else has started (`attached`). Models are
loaded one by one through the server's API (`--model-control-mode=explicit`), so that the reason of a failure is known
at once. That API takes a key (`records`). A server that dies stays down until `start` is called again.
"""

from __future__ import annotations

import re
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CONFIG_REFUSED, CourseError
from inflight.triton import address as addresses
from inflight.triton import records, repository
from inflight.triton.address import Address
from inflight.triton.client.connection import Connection, NoAnswer, Refused, ServerGone, errors, http_client, is_ok
from inflight.triton.records import SERVICES
from inflight.triton.serving import attached
from inflight.triton.serving.attached import Attached
from inflight.triton.serving.process import LOG_LINES, Process, start_triton

LOAD_TIMEOUT_S = 300
DRAIN_S = 10
LOOK_EVERY_S = 0.2

_made: list[weakref.ref[Server]] = []


def running() -> list[Server]:
    """Return the running servers that this process has started or attached, the oldest first."""
    return [server for known in list(_made) if (server := known()) is not None and server.is_alive()]


@dataclass(frozen=True)
class ModelState:
    """A row of the server's model table. `state` is READY, UNAVAILABLE, LOADING, UNLOADING or blank (never loaded)."""

    name: str
    version: str
    state: str
    reason: str


class Server:
    """A Triton server and its life: start, load, stop. A context manager that starts and stops it.

    Parameters
    ----------
    repo : path
        Model repository. It is checked before anything starts.
    http_port, grpc_port, metrics_port : int, optional
        Ports on 127.0.0.1; a free one each unless named.
    open_control : bool
        Let every request load models and change settings, without a key: any user of this machine can then run code
        as you. For tools that must do so and can send no key.
    address : Address, optional
        Of a server that runs already, by whomever it was started; `stop` lets go of it, and it runs on. By default as
        the environment's INFLIGHT_URL says, and else none: it is started on this machine, from the wheel.
    arguments : sequence of str, optional
        Those of `tritonserver`, as `tritonserver` takes them. They decide what is loaded, and the repository is not
        checked; it runs on this machine, whatever the environment says.
    drain_s : float
        As `stop` takes it, for the end of a `with`.

    Attributes
    ----------
    repo : Path
        The model repository.
    open_control : bool
    is_attached : bool
        Whether somebody else has started it (`AttachedServer`): then it is not ours to stop or to start.
    http_url, metrics_url : str
        "http://host:port" and "http://host:port/metrics"; blank before the first start.
    grpc_url : str
        "host:port".

    Raises
    ------
    CourseError
        When starting: the repository has a problem, a named port is in use, or a model cannot be loaded; nobody answers
        at the address.
    """

    is_attached = False

    def __new__(
        cls, repo: str | Path, *, address: Address | None = None, arguments: Sequence[str] | None = None, **ports: Any
    ) -> Server:
        if arguments is None and (address or addresses.of_environment()):
            cls = AttachedServer
        return super().__new__(cls)

    def __init__(
        self,
        repo: str | Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        open_control: bool = False,
        address: Address | None = None,
        arguments: Sequence[str] | None = None,
        drain_s: float = DRAIN_S,
    ):
        self.repo = Path(repo).absolute()
        self.open_control = open_control
        self.http_url, self.grpc_url, self.metrics_url = "", "", ""
        self._ports: Mapping[str, int | None] = dict(zip(SERVICES, (http_port, grpc_port, metrics_port)))
        self._arguments, self._drain_s = arguments, drain_s
        self._running: Process | Attached | None = None  # until it is stopped or let go, also when it has died
        _made.append(weakref.ref(self))

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver` on this machine, None when there is none.

        Raises
        ------
        CourseError
            The server was attached: its process is not ours.
        """
        return None if self._running is None else self._running.pid

    @property
    def http(self) -> httpx.Client:
        """A client of httpx with the server's address: `server.http.get("/v2")`."""
        return http_client(self.http_url)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request, over HTTP and gRPC, that loads models or changes settings: the key."""
        return records.headers(self.http_url)

    # Start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Start the server and load every model of the repository; returns when all are ready.

        An attached one gets the repository's settings, as far as it lets us. One that has run before gets the same
        ports: its clients find it again.
        """
        if self.is_alive():
            return self
        self.stop(drain_s=0)  # what is left of one that has died
        try:
            self._begin()
            if self._arguments is None:
                self.load_all()
        except BaseException:  # an interrupt too: nothing half-started is left
            self.stop(drain_s=0)
            raise
        return self

    def _begin(self) -> None:
        if self._arguments is None and (found := repository.problems(self.repo)):
            raise CourseError(f"The repository at {self.repo} is not ready to be served: {found[0]}")
        self._running = ours = start_triton(self._arguments or self._usual(), self._ports, not self.open_control)
        self.http_url, self.grpc_url, self.metrics_url = ours.address
        self._ports = ours.ports

    def _usual(self) -> list[str]:
        """Return the arguments of `tritonserver` where none are given."""
        arguments = [f"--model-repository={self.repo}", "--model-control-mode=explicit"]
        if not repository.serves_llmapi(self.repo):  # whose model.yaml decides what its config.pbtxt leaves open
            arguments.append("--disable-auto-complete-config")
        return arguments

    def is_alive(self) -> bool:
        """Whether the server's process runs, or an attached one answers."""
        return (running := self._running) is not None and not running.has_ended()

    def wait(self) -> None:
        """Block until the server ends by itself, which is an error; an interrupt ends the waiting.

        Raises
        ------
        CourseError
            The server died: of what, and the last lines of its log.
        """
        while self.is_alive():
            time.sleep(LOOK_EVERY_S)
        said = records.death(self.http_url) or f"The server at {self.http_url} does not answer any more."
        raise CourseError(said, log=self.log_tail())

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop the server and wait until nothing of it is left; an attached one runs on. May be called twice.

        Parameters
        ----------
        drain_s : float
            How many seconds the requests that run may take to their end; new ones are refused, and streams end. The
            clients of those that take longer are told that the server went away. Triton waits as long for connections
            over HTTP that other programs keep open. An interrupt ends the server at once.
        """
        running, self._running = self._running, None
        if running is not None:
            running.stop(drain_s)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop(self._drain_s)

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Return the last lines of the server's log, without wide tables and lines that only say that there is no GPU.

        Blank where there is none here: of a server that is attached, or was stopped.
        """
        return "" if (running := self._running) is None else running.log_tail(lines)

    # Models -----------------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Load every model; an ensemble takes the models that it is made of along, side by side.

        Triton itself leaves those as they are whose settings have not changed.
        """
        names = repository.models(self.repo)
        configs = [repository.read_config(self.repo / name / repository.CONFIG) for name in names]
        parts = {step.model_name for config in configs for step in config.ensemble_scheduling.step}
        try:
            for name in names:
                if name not in parts:
                    self._load(name)
        except CourseError:
            failed = [row for row in self.models() if row.state != "READY" and row.reason]
            if not failed:
                raise
            cause = min(failed, key=lambda row: row.name not in parts)  # not the ensemble that fails with it
            raise self._not_loaded(cause.name, cause.reason) from None

    def load(self, model: str, **values: Any) -> None:
        """Load a model, or load it again from its files.

        An attached server keeps its own files, and takes the settings from here; where it loads nothing on request,
        that is said and nothing happens.

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
        repository.note_files(config)
        self._load_with(model, config)

    def _load_with(self, model: str, config: ModelConfig) -> None:
        # Always with a config: told to load files that have not changed, Triton keeps an earlier override.
        self._load(model, json_format.MessageToJson(config, preserving_proto_field_name=True))

    def _load(self, model: str, config: str | None = None) -> None:
        try:
            self._control(lambda triton, **how: triton.load_model(model, config=config, **how))
        except Refused as error:
            # Of a config that Triton refuses, the log alone says why.
            poll = rf"Poll failed for model directory '{re.escape(model)}': (.+?)\"?$"
            said = re.findall(poll, self.log_tail(), re.M) if error.code == CONFIG_REFUSED else []
            raise self._not_loaded(model, said[-1] if said else _sentence(str(error))) from error

    def _not_loaded(self, model: str, reason: str) -> CourseError:
        return CourseError(f"The model {model!r} could not be loaded: {reason}", log=self.log_tail())

    def models(self) -> list[ModelState]:
        """Return the state of each model of the repository, as in the table that Triton logs."""
        known = repository.models(self.repo)
        told = self._control(lambda triton, **how: triton.get_model_repository_index(as_json=True, **how))
        rows = [
            ModelState(row["name"], row.get("version", "1"), row.get("state", ""), _sentence(row.get("reason", "")))
            for row in told.get("models", [])
        ]
        return sorted(rows, key=lambda row: known.index(row.name) if row.name in known else len(known))

    def _control(self, ask: Callable[..., Any]) -> Any:
        """Call `ask` with tritonclient's client and the key; CourseError with the log's end when nobody answers."""
        what = "The server does not run."
        if self.is_alive():
            try:
                with Connection(self.grpc_url) as connection, errors(self.grpc_url, LOAD_TIMEOUT_S):
                    return ask(connection.triton, headers=self.headers, client_timeout=LOAD_TIMEOUT_S)
            except (ServerGone, NoAnswer):
                what = f"The server at {self.grpc_url} does not answer."
        said = " ".join(filter(None, (what, records.death(self.http_url))))
        raise CourseError(said, "Start it with start().", log=self.log_tail())


class AttachedServer(Server):
    """A Triton that somebody else has started, used as far as it lets this user; `stop` lets go of it."""

    is_attached = True
    _running: Attached | None

    def __init__(self, repo: str | Path, *, address: Address | None = None, **given: Any):
        super().__init__(repo, **given)
        self.http_url, self.grpc_url, self.metrics_url = address or addresses.of_environment() or ("", "", "")

    def _begin(self) -> None:
        self._running = theirs = attached.look(self.http_url, self.grpc_url)
        limits = "; it ".join(theirs.limits(self.repo, self._ready()))
        said = f"Attached to Triton {theirs.version} at {self.http_url}."
        _tell(f"{said} It {limits}." if limits else said)

    def load_all(self) -> None:
        """Load, where it loads on request, the models that it has, or all where it reads this user's files."""
        theirs, ready = self._running, self._ready()
        for name in repository.models(self.repo):
            if theirs is not None and theirs.can_load and (theirs.has_our_files or name in ready):
                self.load(name)

    def _load_with(self, model: str, config: ModelConfig) -> None:
        theirs = self._running
        if theirs is not None and not theirs.can_load:
            _tell(
                f"{model} stays as it is: the server at {self.http_url} loads no model on request "
                "(--model-control-mode=explicit, and control that is open to you, would let it)."
            )
            return
        super()._load_with(model, config if theirs is None or theirs.has_our_files else theirs.fitted(config))

    def models(self) -> list[ModelState]:
        """Return the state of each model; where it refuses to say, of those of the repository that are ready."""
        try:
            return super().models()
        except Refused:
            known = repository.models(self.repo)
            ready = [name for name in known if is_ok(self.http_url, f"/v2/models/{name}/ready")]
            return [ModelState(name, "1", "READY", "") for name in ready]

    def _ready(self) -> set[str]:
        return {row.name for row in self.models() if row.state == "READY"}


def _sentence(reason: str) -> str:
    """Return Triton's reason without the traceback of Python models: the sentence of a CourseError if there is one."""
    for line in reason.splitlines():
        if told := re.search(r"(?:CourseError|PartError|SchedulerError): (.*)", line):
            return told[1].strip()
    return " ".join(reason.partition("\n\nAt:")[0].split())


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)
