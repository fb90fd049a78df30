"""Notices that a model's process has ended, and loads the model again.

Triton 2.51 goes on to call a model READY whose process is gone. The supervisor therefore looks after the processes
itself: they are children of `tritonserver`, and their arguments name the model. When a model that is READY has fewer
of them than its config asks for, and no load or unload explains it, the model has died. It is then unloaded, so that
every client sees that it is not ready, stays so for as long as a client takes to look (SHOWN_S), and is loaded again
with the very config that it had, overrides included. A model that has died MOST_RELOADS times in WINDOW_S stays down.

Triton 2.51 may crash with a model: when the process of one ends while it holds a lock that they share. The supervisor
then starts the server again, and the watch of the new one loads what was served.

What happened stands in a file of the server's folder, STATUS, written whole and renamed, so that whoever reads it is
never kept waiting and never sees half of it:

    {"pid": of the server, "down": {model: sentence}, "events": [{"time": since 1970, "model": …, "what": sentence}, …]}

Standard library only: the supervisor runs without site-packages.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATUS = "status.json"
LOG = "triton.log"
LOCK = "models.lock"  # held by whoever loads or unloads models: the watch, or `Server.load` and the like
KEY_FILE = "key"  # a header, "name: value", that requests to load and unload must carry; there may be none

POLL_S = 0.25  # between two looks for new processes; the end of a known one is noticed at once
# Triton's own threads wait for a model's process for up to a second; unloaded meanwhile, Triton crashes.
SETTLE_S = 1.0
SHOWN_S = 1.5  # longer than a waiting client lets pass between two looks
MOST_RELOADS, WINDOW_S = 3, 600
LOAD_TIMEOUT_S = 300
LEARN_S, LEARN_EVERY_S = 5, 1  # after a model was loaded: until its ensembles are ready too
STOP_S = 5
MOST_EVENTS = 50
LOAD_GRACE_S = 5
LOAD_FAILED = "It could not be loaded"
SIGNALLED = "was ended by signal"
CRASHED = "the server crashed"
BEING_MENDED = "it is being loaded again"
STUB = "triton_python_backend_stub"
METRICS_TIMEOUT_S = 2
ACTIVE = r'^nv_trt_llm_request_metrics\{[^}]*request_type="active"[^}]*\} (\S+)'
LISTENING = "0A"  # a socket's state in /proc/PID/net/tcp


class Failed(Exception):
    """Triton refused a request, with its reason, or did not answer it."""


@dataclass(eq=False)
class Stub:
    """A model's process."""

    pid: int
    pidfd: int
    model: str

    def has_ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])


@dataclass
class Model:
    """What is known of a model that has died at least once."""

    reason: str = ""  # how its process ended; blank while it is served
    stays_down: str = ""  # why it is not loaded again; blank if it is
    reloads: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_RELOADS))


class Watch:
    """Looks after the model processes of one server, in threads of its own.

    Parameters
    ----------
    server_pid : int
    address : (str, int)
        Host and port of the server's HTTP API.
    workdir : path
        The server's folder, for STATUS, LOCK and KEY_FILE.
    before : Watch, optional
        That of the server which crashed, and in the place of which this one was started.
    """

    def __init__(self, server_pid: int, address: tuple[str, int], workdir: Path, before: Watch | None = None):
        self._server_pid = server_pid
        self._address = address
        self._workdir = workdir
        self._stubs: dict[int, Stub] = {}
        self._unseen: set[int] = set()  # processes that had ended before they could be told apart
        self._suspects: dict[str, str] = {}  # models of which a process has ended -> how
        self._load_ends_by: dict[str, float] = {}  # those that ended while they were loaded
        self._died: dict[str, Model] = {}
        self._events: deque[dict] = deque(maxlen=MOST_EVENTS)
        self._changed = threading.Condition()  # guards _died and _events
        self._stopping = threading.Event()
        self._served: dict[str, dict] = {}  # models that are READY -> their configs, as of a moment ago
        self._learn_until = time.monotonic() + LEARN_S
        self._learned_at = float("-inf")
        self._is_mending = False
        self._threads = [
            threading.Thread(target=self._unless_gone, args=(work,), daemon=True) for work in (self._look, self._repair)
        ]
        self._is_resumed = before is None
        if before is not None:
            self._died, self._events, self._served = before._died, before._events, before._served
            for model in self._served:
                self._died.setdefault(model, Model()).reason = CRASHED
            self._tell("", f"{CRASHED[0].upper()}{CRASHED[1:]}, and is started again.")

    def start(self) -> None:
        """Begin to look; the threads end with this process or with `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Load nothing again from now on; wait for what is under way, which fails at once if the server is gone."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(STOP_S)

    def _unless_gone(self, work: Callable[[], None]) -> None:
        """Run `work` until the watch is stopped; that a server which ends no longer answers is no error."""
        while not self._stopping.is_set():
            try:
                work()
            except (Failed, OSError) as error:
                if not self._stopping.wait(POLL_S):
                    self._log(f"The watch of the models' processes begins again after: {error}")

    # Noticing ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        while not self._stopping.is_set():
            self._find_new()
            for stub in self._ended_within(POLL_S):
                self._suspects[stub.model] = how_it_ended(stub.pid)
                self._learn_until = time.monotonic() + LEARN_S
                del self._stubs[stub.pid]
                os.close(stub.pidfd)
            if self._suspects:
                self._judge()
            if self._learned_at + LEARN_EVERY_S < time.monotonic() < self._learn_until and self._is_resumed:
                self._learn()

    def _find_new(self) -> None:
        for pid in children(self._server_pid):
            if pid in self._stubs:
                continue
            arguments = _arguments(pid)
            if arguments == [""] and pid not in self._unseen:  # it has ended already, and may have been any model's
                for model, state in self._states().items():
                    if state in ("LOADING", "READY"):
                        self._suspects.setdefault(model, how_it_ended(pid))
                self._unseen.add(pid)
            if len(arguments) < 2 or not arguments[0].endswith(STUB):  # just forked, or not a model's
                continue
            with contextlib.suppress(ProcessLookupError):
                stub = Stub(pid, os.pidfd_open(pid), model_of(arguments))
                self._stubs[pid] = stub
                self._load_ends_by.pop(stub.model, None)  # of a load before this one
                self._learn_until = time.monotonic() + LEARN_S
                if stub.model in self._died:
                    self._suspects.setdefault(stub.model, "")  # loaded again, by the watch or by a user

    def _ended_within(self, seconds: float) -> list[Stub]:
        by_fd = {stub.pidfd: stub for stub in self._stubs.values()}
        poll = select.poll()
        for pidfd in by_fd:
            poll.register(pidfd, select.POLLIN)
        return [by_fd[pidfd] for pidfd, _ in poll.poll(seconds * 1000)]

    def _judge(self) -> None:
        """Tell deaths from ends that a load or an unload explains; what is under way is looked at again later."""
        states = self._states()
        self._find_new()  # a model may have been loaded since the last look: what is READY now has its processes
        for model, how in list(self._suspects.items()):
            state = states.get(model, "UNAVAILABLE")
            if state == "LOADING" or (state == "READY" and self._may_hang(model, how)):
                self._judge_load(model, how)
                continue
            del self._suspects[model]
            self._load_ends_by.pop(model, None)
            if state == "READY" and self._lacks_processes(model):
                self._died_now(model, how)
            elif state == "READY":
                self._settle(model, "It was loaded again and is ready.")

    def _may_hang(self, model: str, how: str) -> bool:
        """Whether a process was killed that somebody loads in the place of those that serve: READY are these."""
        return SIGNALLED in how and held_for(self._workdir / LOCK) == model and not self._lacks_processes(model)

    def _judge_load(self, model: str, how: str) -> None:
        """Triton mostly says itself that a process has ended that it was loading, and sometimes waits for ever."""
        ends_by = self._load_ends_by.setdefault(model, time.monotonic() + LOAD_GRACE_S)
        living = sum(stub.model == model for stub in list(self._stubs.values()))
        served = num_processes(self._served[model]) if model in self._served else 0  # by the load before
        if time.monotonic() > ends_by and living <= served:
            del self._suspects[model], self._load_ends_by[model]
            with self._changed:
                self._tell(model, f"{LOAD_FAILED}: {how}.")

    def _lacks_processes(self, model: str) -> bool:
        living = sum(stub.model == model and not stub.has_ended() for stub in list(self._stubs.values()))
        return living < num_processes(self._config(model))

    def _died_now(self, model: str, how: str) -> None:
        with self._changed:
            known = self._died.setdefault(model, Model())
            if known.reason and not known.stays_down:
                return  # known, and being mended
            known.reason, known.stays_down = how or "its process ended", ""
            self._tell(model, f"It died: {known.reason}.")
            self._changed.notify_all()

    def _settle(self, model: str, what: str) -> None:
        """A model is dead no longer, if it was."""
        with self._changed:
            known = self._died.get(model)
            if known is not None and known.reason:
                known.reason = known.stays_down = ""
                self._tell(model, what)

    def _learn(self) -> None:
        """Remember what is served: a server that has crashed can be asked no more.

        What is unloaded or loaded again just now is served, too.
        """
        if self._is_mending or self._dead():
            return
        states, before = self._states(), self._served
        served = {model: self._config(model) for model, state in states.items() if state == "READY"}
        self._served = {model: before[model] for model in before if states.get(model) == "LOADING"} | served
        self._learned_at = time.monotonic()
        if "LOADING" in states.values():
            self._learn_until = self._learned_at + LEARN_S

    # Mending ----------------------------------------------------------------------------------------------------------

    def _repair(self) -> None:
        """Load what has died again, what died at about the same time together."""
        if not self._is_resumed:
            self._resume()
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or self._dead())
            self._stopping.wait(SETTLE_S)
            if not self._stopping.is_set():
                self._is_mending = True
                try:
                    with held(self._workdir / LOCK):
                        self._load_again(self._still_dead())
                finally:
                    self._is_mending = False

    def _resume(self) -> None:
        """Load what the server before served, once this one answers."""
        self._ask("GET", "/v2/health/live")  # until it does, this fails and is tried again
        with held(self._workdir / LOCK):
            for model, config in self._served.items():
                if "ensemble_scheduling" not in config:
                    self._died[model].reloads.clear()  # that the server crashed is not the model's fault alone
                    self._load_one(model, config)
            self._load_ensembles({name: each for name, each in self._served.items() if "ensemble_scheduling" in each})
            self._is_resumed = True

    def _dead(self) -> list[str]:
        return [model for model, known in list(self._died.items()) if known.reason and not known.stays_down]

    def _still_dead(self) -> list[str]:
        """Of the dead, those that nobody has loaded or unloaded meanwhile."""
        states, dead = self._states(), []
        for model in self._dead():
            state = states.get(model, "UNAVAILABLE")
            if state == "READY" and self._lacks_processes(model):
                dead.append(model)
            elif state == "READY":
                self._died[model].reloads.clear()  # by a user, who may want to try it again
                self._settle(model, "It was loaded again and is ready.")
            elif state != "LOADING":
                self._settle(model, "It was unloaded.")
        return dead

    def _load_again(self, models: list[str]) -> None:
        """Unload `models`, let every client see it, and load them and what went with them."""
        if not models:
            return
        configs = {model: self._config(model) for model, state in self._states().items() if state == "READY"}
        ensembles = {model: config for model, config in configs.items() if "ensemble_scheduling" in config}
        for model in models:
            self._ask("POST", f"/v2/repository/models/{model}/unload", {})
        self._stopping.wait(SHOWN_S)
        for model in models:
            if not self._stopping.is_set():
                self._load_one(model, configs[model])
        self._load_ensembles(ensembles)

    def _load_ensembles(self, ensembles: dict[str, dict]) -> None:
        """Load those that went with a model of theirs; not with one that stays down, which would be loaded with it."""
        states = self._states()
        for name, config in ensembles.items():
            parts = {step["model_name"] for step in config["ensemble_scheduling"]["step"]}
            is_whole = all(states.get(part) == "READY" for part in parts)
            if states.get(name) != "READY" and is_whole and not self._stopping.is_set():
                self._ask("POST", f"/v2/repository/models/{name}/load", {"parameters": {"config": json.dumps(config)}})
                self._settle(name, "It was loaded again and is ready.")

    def _load_one(self, model: str, config: dict) -> None:
        known, now = self._died[model], time.monotonic()
        if len(known.reloads) == MOST_RELOADS and now - known.reloads[0] < WINDOW_S:
            minutes = WINDOW_S // 60
            self._keep_down(model, f"it died {MOST_RELOADS + 1} times in {minutes} minutes and is not loaded again")
            return
        known.reloads.append(now)
        try:
            self._ask("POST", f"/v2/repository/models/{model}/load", {"parameters": {"config": json.dumps(config)}})
        except Failed as error:
            self._keep_down(model, f"it could not be loaded again: {error}")
        else:
            self._settle(model, "It was loaded again and is ready.")

    def _keep_down(self, model: str, why: str) -> None:
        with self._changed:
            self._died[model].stays_down = why
            self._tell(model, f"It stays down: {why}.")

    # Telling and asking -----------------------------------------------------------------------------------------------

    def _tell(self, model: str, what: str) -> None:
        """Write down what happened."""
        self._events.append({"time": time.time(), "model": model, "what": what})
        down = {
            name: f"{known.reason}; {known.stays_down or BEING_MENDED}"
            for name, known in self._died.items()
            if known.reason
        }
        aside = self._workdir / f"{STATUS}.new"
        aside.write_text(json.dumps({"pid": self._server_pid, "down": down, "events": list(self._events)}))
        aside.replace(self._workdir / STATUS)

    def _log(self, line: str) -> None:
        with open(self._workdir / LOG, "a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _states(self) -> dict[str, str]:
        rows = self._ask("POST", "/v2/repository/index", {})
        return {row["name"]: row.get("state", "") for row in rows}

    def _config(self, model: str) -> dict:
        return self._ask("GET", f"/v2/models/{model}/config")

    def _ask(self, method: str, path: str, body: dict | None = None) -> Any:
        """What an endpoint of the server answers. Raises Failed."""
        if not listens(self._server_pid, self._address):  # the key is for it alone, not for whoever has its port
            raise Failed("the server does not listen")
        connection = http.client.HTTPConnection(*self._address, timeout=LOAD_TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), self._key())
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Failed(f"the server does not answer ({error})") from error
        finally:
            connection.close()
        try:
            content = json.loads(text) if text else None
        except ValueError:
            content = text
        if response.status != 200:
            raise Failed(sentence(content.get("error", text) if isinstance(content, dict) else text))
        return content

    def _key(self) -> dict[str, str]:
        file = self._workdir / KEY_FILE
        if not file.exists():
            return {}
        name, _, value = file.read_text().partition(":")
        return {name.strip(): value.strip()}


@contextlib.contextmanager
def held(lock: Path, model: str = "") -> Iterator[None]:
    """Hold the lock in a file for the block, for one model or several; it is free when its holder ends, however."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.truncate(handle, 0)
        os.write(handle, model.encode())
        yield
    finally:
        os.close(handle)


def held_for(lock: Path) -> str | None:
    """The model for which somebody holds the lock in a file, blank for several; None when nobody does."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return lock.read_text()
    finally:
        os.close(handle)
    return None


def read_status(workdir: Path) -> dict:
    """What STATUS says: `down` and `events`, both empty as long as nothing has died."""
    try:
        return json.loads((workdir / STATUS).read_text())
    except FileNotFoundError:
        return {"down": {}, "events": []}


def sentence(reason: str) -> str:
    """Triton's reason without the traceback that Python models add: the sentence of a CourseError if there is one."""
    for line in reason.splitlines():
        if told := re.search(r"(?:CourseError|SchedulerError): (.*)", line):
            return told[1].strip()
    return " ".join(reason.partition("\n\nAt:")[0].split())


def children(pid: int) -> list[int]:
    """Processes that a process has started and not yet taken leave of."""
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found.extend(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
    return found


def is_busy(options: dict[str, str]) -> bool:
    """Whether an engine computes requests, by the metrics of a server; no where they cannot be had."""
    address = options["--metrics-address"]
    connection = http.client.HTTPConnection("127.0.0.1", int(options["--metrics-port"]), timeout=METRICS_TIMEOUT_S)
    try:
        if address.startswith("unix:"):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(METRICS_TIMEOUT_S)
            connection.sock.connect(address.removeprefix("unix:"))
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return any(float(number) > 0 for number in re.findall(ACTIVE, page, re.MULTILINE))


def listens(pid: int, address: tuple[str, int]) -> bool:
    """Whether it is this process that answers at an IPv4 address, through a socket of IPv4 or of both kinds."""
    host, port = address
    number = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}"
    mapped = f"{'0' * 16}{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"  # ::ffff:a.b.c.d
    wanted = f"{number}:{port:04X}", f"{mapped}{number}:{port:04X}"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        lines = [line for table in ("tcp", "tcp6") for line in _lines(Path(f"/proc/{pid}/net/{table}"))]
        rows = [line.split() for line in lines]
        inodes = {f"socket:[{row[9]}]" for row in rows if row[1] in wanted and row[3] == LISTENING}
        return any(os.readlink(file) in inodes for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _lines(table: Path) -> list[str]:
    """The rows of a table of the kernel's; none where it has no such table, as without IPv6."""
    return table.read_text().splitlines()[1:] if table.exists() else []


def how_it_ended(pid: int) -> str:
    """How a process ended that its parent has not yet taken leave of; blank when that cannot be told any more."""
    try:
        status = int(Path(f"/proc/{pid}/stat").read_text().rpartition(" ")[2])
    except (FileNotFoundError, ProcessLookupError):
        return ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"its process {SIGNALLED} {number} ({signal.strsignal(number)})"
    return f"its process ended with exit code {os.WEXITSTATUS(status)}"


def living(server_pid: int, model: str) -> int:
    """How many processes of a model run."""
    found = [_arguments(pid) for pid in children(server_pid)]  # of one that has ended they are blank
    return sum(each[0].endswith(STUB) and model_of(each) == model for each in found if len(each) > 1)


def model_of(arguments: list[str]) -> str:
    """The model that a process runs: the second argument is the path of its model.py."""
    return Path(arguments[1]).parent.parent.name


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def num_processes(config: dict) -> int:
    """Processes of a model: one an instance, none for what does not run in the Python backend."""
    if config.get("backend") != "python":
        return 0
    return sum(group.get("count", 1) * max(1, len(group.get("gpus", []))) for group in config["instance_group"])
