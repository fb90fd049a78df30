"""Several servers on this machine behind the router of vLLM, as one context manager.

    with Replicas(engine_dir, enable_kv_cache_reuse="true") as replicas:
        OpenAI(base_url=replicas.url, api_key="none")

It runs `inflight serve` for each server, and `vllm-router`, as one would on three machines. All of them end with this
program, however that ends: Linux kills them with the thread that started them, and a server's keeper ends its Triton.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from inflight.errors import CourseError
from inflight.triton import keeper, telemetry
from inflight.triton.client.connection import http_client, is_ok
from inflight.triton.serving.process import HOST, free_ports

START_S, DRAIN_S, STOP_S = 120, 120, 30
# Becomes the command that follows; not a `preexec_fn`, which may hang in a program with threads.
TIED = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl({keeper.PR_SET_PDEATHSIG}, {signal.SIGKILL:d})
os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])
"""
# A lesson does not wait for a minute until the router looks at a server. Pages of other origins get no answer.
ROUTER = {
    "worker_startup_check_interval": 1,
    "health_check_interval_secs": 1,
    "health_failure_threshold": 2,
    "health_success_threshold": 1,
    "cb_timeout_duration_secs": 5,
    "cors_allowed_origins": "http://127.0.0.1",
    "log_level": "warning",
}


class Replicas:
    """Servers of one engine and a router, for as long as the block lasts, or this program.

    CourseError where one of them ends while it starts, with its last lines, or does not answer in time.

    Parameters
    ----------
    number : int
        Of servers; each takes about 0.5 GB of memory.
    **settings
        Of each server's engine, as of `inflight serve --set`.

    Attributes
    ----------
    url, metrics_url : str
        The router's, for OpenAI's clients and for Prometheus.
    servers : list of str
        Address of each server, without /v1; /metrics and /health are there.
    """

    def __init__(self, engine_dir: str | Path, number: int = 2, **settings):
        self._engine_dir, self._settings = engine_dir, settings
        names = [f"server{each}" for each in range(number)]
        self._ports = free_ports(dict.fromkeys(["router", "metrics", *names]))
        self.servers = [self._address(name) for name in names]
        self.url, self.metrics_url = f"{self._address('router')}/v1", f"{self._address('metrics')}/metrics"
        self._ending, self._running, self._below = ExitStack(), dict[str, subprocess.Popen](), list[psutil.Process]()

    def __enter__(self) -> Replicas:
        with ExitStack() as ending:
            self.folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="inflight-replicas-")))
            ending.callback(lambda: self._stop(*self._running))
            self.route()
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._ending.close()

    def route(self, policy: str = "round_robin", **options) -> None:
        """Start the router anew, with another policy and other options, and each server that has ended."""
        self._stop(*{"router"} & self._running.keys())
        ended = [number for number in range(len(self.servers)) if f"server{number}" not in self._running]
        for number in ended:
            self._serve(number)
        for number in ended:
            self._wait(f"server{number}")
        ports = {"port": self._ports["router"], "prometheus_port": self._ports["metrics"]}
        given = ROUTER | ports | {"policy": policy} | options
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        self._start("router", "vllm-router", *arguments, *self._whom())
        self._wait("router")

    def _whom(self) -> list[str]:
        """Return the router's arguments that name the servers."""
        return ["--worker-urls", *self.servers]

    def kill(self, number: int) -> None:
        """End a server at once (SIGKILL), nothing is finished; the kernel closes its connections, so clients know."""
        self._stop(f"server{number}", at_once=True)

    def drain(self, number: int) -> None:
        """Take a server from the router, wait until it has nothing to do, and end it."""
        with http_client(self._address("router")) as router:
            router.post("/remove_worker", params={"url": self.servers[number]}).raise_for_status()
        still = f"Server {number} still has requests after {DRAIN_S} s."
        quiet = lambda: telemetry.settled(lambda: self.under_way(number), DRAIN_S)  # a page is written a moment late
        telemetry.wait_for(quiet, lambda found: found == 0, still, DRAIN_S)
        self._stop(f"server{number}")

    def start(self, number: int) -> None:
        """Start a server that has ended on the port that it had; returns when it answers and the router knows it."""
        self._serve(number)
        self._wait(f"server{number}")
        with http_client(self._address("router")) as router:
            if self.servers[number] not in router.get("/list_workers").json()["urls"]:
                router.post("/add_worker", params={"url": self.servers[number]}, timeout=START_S).raise_for_status()

    def log(self, number: int) -> Path:
        """Return the file in which a server logs its iterations since its start."""
        return self.folder / f"iterations{number}.jsonl"

    def under_way(self, number: int) -> float:
        """Requests that a server has and has not answered, as its page says; they wait, or have a slot."""
        told = telemetry.metrics(telemetry.page(f"{self.servers[number]}/metrics")).set_index("name")["value"]
        return told["vllm:num_requests_running"] + told["vllm:num_requests_waiting"]

    def _address(self, name: str) -> str:
        return f"http://{HOST}:{self._ports[name]}"

    def _serve(self, number: int) -> None:
        self.log(number).unlink(missing_ok=True)
        given = [f"--set={name}={value}" for name, value in self._settings_of(number).items()]
        where = ("--engine-dir", self._engine_dir, "--openai-port", self._ports[f"server{number}"])
        self._start(f"server{number}", "inflight", "serve", *where, *given)

    def _settings_of(self, number: int) -> dict[str, object]:
        """Return the settings of a server's engine."""
        return self._settings | {"iteration_log_path": self.log(number)}

    def _start(self, name: str, program: str, *arguments: object) -> None:
        command = [Path(sys.executable).with_name(program), *arguments]
        with open(self.folder / f"{name}.log", "w") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-S", "-c", TIED, str(os.getpid()), *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TMPDIR": str(self.folder)},
            )

    def _wait(self, name: str) -> None:
        process, url = self._running[name], self._address(name)
        found = telemetry.wait_for(
            lambda: (process.poll() is not None, is_ok(url, "/health")), any, f"{name} does not answer.", START_S
        )
        if found[0]:
            said = (self.folder / f"{name}.log").read_text()[-1000:]
            raise CourseError(f"{name} ended while starting. Its last lines:\n{said}")

    def _stop(self, *names: str, at_once: bool = False) -> None:
        """End processes and what they have started. A server's keeper clears up for seconds; at once: meanwhile."""
        tops = [psutil.Process(process.pid) for name in names if (process := self._running[name]).poll() is None]
        below = [one for top in tops for one in top.children(recursive=True)]
        rest = [one for one in below if keeper.__file__ not in one.cmdline()] if at_once else []
        for one in [*tops, *rest]:
            with suppress(psutil.NoSuchProcess):  # the keeper was quicker
                one.kill()
        for name in names:
            self._running.pop(name).wait()
        self._below += below
        if not at_once:
            _, self._below = psutil.wait_procs(self._below, STOP_S)
