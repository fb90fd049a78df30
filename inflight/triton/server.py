"""A model repository in, a running Triton server out, on 127.0.0.1 and on free ports unless told.

    with Server("repo") as server:
        print(server.http_url, server.grpc_url)

It runs in one of two ways: the `tritonserver` inside the nvidia-pytriton wheel (`process`), or one that runs already,
started by somebody else (`attached`). Models are loaded one by one through the server's API
(`--model-control-mode=explicit`), so that the state of each is known at any time and the reason of a failure at once.
That API takes a key (`records`). A server that dies stays down until `start` is called again.
"""

from __future__ import annotations

import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from google.protobuf import json_format

from inflight.errors import CourseError
from inflight.triton import attached, client, records, repository
from inflight.triton.attached import Attached
from inflight.triton.process import LOG_LINES, PORTS, Process
from inflight.triton.records import Address

LOAD_TIMEOUT_S = 300
DRAIN_S = 10

_started: weakref.WeakSet[Server] = weakref.WeakSet()
_listing = threading.Lock()  # a set that grows while a thread goes over it is an error


def running() -> list[Server]:
    """The servers that this process has started, or attached, and that run; the oldest first."""
    with _listing:
        known = sorted(_started, key=lambda server: server.started_at)
    return [server for server in known if server.is_alive()]


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
    on_state : callable, optional
        Called with a `ModelState` whenever the state of a model changes while starting.
    open_control : bool
        Let every request load models and change settings, without a key: any user of this machine can then run code
        as you. For tools that must do so and can send no key.
    place : Address, optional
        Of a server that runs already, by whomever it was started; `stop` lets go of it, and it runs on. By default as
        the environment's INFLIGHT_URL says, and else none: it is started on this machine, from the wheel.
    arguments : sequence of str, optional
        Those of `tritonserver`, as `tritonserver` takes them. What it loads they say, and nothing of the repository is
        checked; it runs on this machine, whatever the environment says.

    Attributes
    ----------
    repo : Path
        The model repository.
    open_control : bool
    is_attached : bool
        Whether somebody else has started it: then it is not ours to stop or to start.
    started_at : float
        When it was started last, in seconds since 1970; 0 before.

    Raises
    ------
    CourseError
        When starting: the repository has a problem, a named port is in use, or a model cannot be loaded; nobody answers
        at the address.
    """

    def __init__(
        self,
        repo: str | Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        on_state: Callable[[ModelState], None] | None = None,
        open_control: bool = False,
        place: Address | None = None,
        arguments: Sequence[str] | None = None,
    ):
        self.repo = Path(repo).absolute()
        self.open_control = open_control
        if arguments is None:
            place = place or attached.of_environment()
        self.is_attached = place is not None
        self._way: Process | Attached
        if place is not None:
            self._way = Attached(self.repo, place)
        else:
            ports = dict(zip(PORTS, (http_port, grpc_port, metrics_port)))
            self._way = Process(self.repo, ports, open_control, arguments)
        self._loads_by_itself = arguments is not None
        self._on_state = on_state or (lambda state: None)
        self._overridden: set[str] = set()  # models that were loaded with other values than their files have
        self.started_at = 0.0

    @property
    def pid(self) -> int | None:
        """Process id of `tritonserver` on this machine, None when there is none.

        Raises
        ------
        CourseError
            The server was attached: its process is not ours.
        """
        return self._way.pid

    @property
    def http_url(self) -> str:
        """Address of HTTP, "http://host:port"."""
        return self._way.http_url

    @property
    def grpc_url(self) -> str:
        """Address of gRPC, "host:port"."""
        return self._way.grpc_url

    @property
    def metrics_url(self) -> str:
        """Address of the metrics page, "http://host:port/metrics"."""
        return self._way.metrics_url

    @property
    def http(self) -> httpx.Client:
        """A client of httpx with the server's address: `server.http.get("/v2")`."""
        return client.http_client(self.http_url)

    @property
    def headers(self) -> dict[str, str]:
        """What a request carries, over HTTP and gRPC, to load models or change settings: the key."""
        return records.headers(self.http_url)

    # Start and stop ---------------------------------------------------------------------------------------------------

    def start(self) -> Server:
        """Start the server and load every model of the repository; returns when all are ready.

        Attached, it loads what has other settings in the repository, as far as the server lets it. One that has run
        before gets the same ports, where they are free.
        """
        if self.is_alive():
            return self
        if not (self.is_attached or self._loads_by_itself) and (problems := repository.check(self.repo)):
            raise CourseError(f"The repository is not ready to be served: {problems[0]}")
        if self._overridden:
            _tell(
                f"Loaded as its files say, without what was overridden before: {', '.join(sorted(self._overridden))}."
            )
            self._overridden.clear()
        self.started_at = time.time()
        with _listing:
            _started.add(self)
        try:
            self._way.start()
            if not self._loads_by_itself:
                self.load_all()
        except BaseException:  # an interrupt too: nothing half-started is left
            self.stop()
            raise
        return self

    def is_alive(self) -> bool:
        """Whether the server's process runs, or an attached one answers."""
        return not self._way.ends(within_s=0)

    def wait(self) -> None:
        """Block until the server ends by itself, which is an error; an interrupt ends the waiting.

        Raises
        ------
        CourseError
            The server died: of what, and the last lines of its log.
        """
        self._way.ends(within_s=None)
        raise CourseError(f"{self._way.death()} Its last lines:\n{self.log_tail()}".strip())

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop the server and wait until nothing of it is left. May be called twice.

        Parameters
        ----------
        drain_s : float
            How many seconds the requests that run may take to their end; new ones are refused, and streams end. The
            clients of those that take longer are told that the server went away. An interrupt ends the server at once.
        """
        self._way.stop(drain_s)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of the server's log, without what says only that there is no GPU, and without wide tables."""
        return self._way.log_tail(lines)

    # Models -----------------------------------------------------------------------------------------------------------

    def load_all(self) -> None:
        """Load every model; an ensemble takes the models that it is made of along, side by side.

        On an attached server, those that have other settings in the repository than there.
        """
        if isinstance(self._way, Attached):
            for model in self._way.differing():
                self.load(model)
            for row in self.models():
                self._on_state(row)
            return
        names = repository.models(self.repo)
        configs = {name: repository.read_config(self.repo / name / repository.CONFIG) for name in names}
        parts = {step.model_name for config in configs.values() for step in config.ensemble_scheduling.step}
        with ThreadPoolExecutor(max_workers=len(names)) as pool:
            loads = [pool.submit(self._load, name) for name in names if name not in parts]
            try:
                self._report_until_done(loads)
            except BaseException:  # an interrupt: without a server the loads end, which this block waits for
                self.stop(drain_s=0)
                raise
        failed = [row for row in self.models() if row.state != "READY" and row.reason]
        for row in sorted(failed, key=lambda row: row.name not in parts):  # the cause, before what it drags along
            raise self._not_loaded(row.name, row.reason)
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
        repository.note_scheduler(config)
        if isinstance(self._way, Attached):
            if not self._way.can_load:
                _tell(
                    f"{model} stays as it is: the server at {self.http_url} loads no model on request "
                    "(--model-control-mode=explicit, and control that is open to you, would let it)."
                )
                return
            config = self._way.fitted(config)
        # Always with a config: told to load files that have not changed, Triton keeps an earlier override.
        self._load(model, json_format.MessageToJson(config, preserving_proto_field_name=True))
        (self._overridden.add if values else self._overridden.discard)(model)

    def _load(self, model: str, config: str | None = None) -> None:
        try:
            self._control(lambda triton, **how: triton.load_model(model, config=config, **how))
        except client.Refused as error:
            # Of a config that Triton refuses, the log alone says why.
            poll = rf"Poll failed for model directory '{re.escape(model)}': (.+?)\"?$"
            said = re.findall(poll, self.log_tail(), re.M) if "failed to poll" in str(error) else []
            raise self._not_loaded(model, said[-1] if said else _sentence(str(error))) from error

    def _not_loaded(self, model: str, reason: str) -> CourseError:
        return CourseError(
            f"The model {model!r} could not be loaded: {reason}\nLast lines of the log:\n{self.log_tail()}"
        )

    def models(self) -> list[ModelState]:
        """State of each model of the repository, as in the table that Triton logs."""
        known = repository.models(self.repo)
        rows = [
            ModelState(row["name"], row.get("version", "1"), row.get("state", ""), _sentence(row.get("reason", "")))
            for row in self._index()
        ]
        return sorted(rows, key=lambda row: known.index(row.name) if row.name in known else len(known))

    def _index(self) -> list[dict]:
        """What the server tells of the models in its repository; of one that does not let us ask, which are ready."""
        try:
            told = self._control(lambda triton, **how: triton.get_model_repository_index(as_json=True, **how))
            return told.get("models", [])
        except client.Refused:
            if not isinstance(self._way, Attached) or self._way.can_load:
                raise
            return [{"name": name, "state": "READY"} for name in self._way.names()]

    def _control(self, ask: Callable[..., Any]) -> Any:
        """What `ask` has tritonclient's client do, with the key; CourseError with the log's end when nobody answers."""
        what = "The server does not run."
        if self.is_alive():
            try:
                with client.Connection(self.grpc_url) as connection, client.errors(self.grpc_url, LOAD_TIMEOUT_S):
                    return ask(connection.triton, headers=self.headers, client_timeout=LOAD_TIMEOUT_S)
            except (client.ServerGone, client.NoAnswer):
                what = f"The server at {self.grpc_url} does not answer."
        said, log = " ".join(filter(None, (what, self._way.death(), "Start it with start()."))), self.log_tail()
        raise CourseError(f"{said} Last lines of its log:\n{log}" if log else said)


def _sentence(reason: str) -> str:
    """Triton's reason without the traceback that Python models add: the sentence of a CourseError if there is one."""
    for line in reason.splitlines():
        if told := re.search(r"(?:CourseError|SchedulerError): (.*)", line):
            return told[1].strip()
    return " ".join(reason.partition("\n\nAt:")[0].split())


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)
