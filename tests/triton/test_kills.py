"""Whatever is killed of a server, at whatever moment: nothing of it is left, at the latest after the next sweep."""

import contextlib
import signal
import subprocess
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from inflight.triton import records, repository
from tests.engines import start_python, wait_until
from tests.triton import foreign
from tests.triton.traces import Traces, processes_with

pytestmark = pytest.mark.server

MOMENTS = ("start", "loading", "serving", "stopping")
VICTIMS = ("kernel", "keeper", "tritonserver", "models")
IN_THE_GATE = [("serving", ("kernel",)), ("loading", ("interrupt",)), ("serving", ("interrupt",))]
CASES = [
    *IN_THE_GATE,
    *(
        pytest.param(moment, victims, marks=pytest.mark.slow)
        for moment in MOMENTS
        for victims in (*combinations(VICTIMS, 1), ("kernel", "keeper"), VICTIMS)
        if (moment, victims) not in IN_THE_GATE
    ),
]

KERNEL_SCRIPT = """
import sys, threading
from inflight.errors import CourseError
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server

server = Server(sys.argv[1])

def ask():
    try:
        for _ in Client(server.grpc_url, timeout_s=20).stream("Hello", max_tokens=60, min_length=60):
            print("serving", flush=True)
    except CourseError as error:
        print("told:", error, flush=True)

try:
    server.start()
    for _ in range(8):
        threading.Thread(target=ask, daemon=True).start()
    sys.stdin.readline()
    print("stopping", flush=True)
finally:
    server.stop(drain_s=3)
"""


@pytest.mark.parametrize("moment, victims", CASES, ids=lambda case: case if isinstance(case, str) else "+".join(case))
def test_nothing_is_left(small_repo, moment, victims):
    kernel = start_python(KERNEL_SCRIPT, small_repo, stdin=subprocess.PIPE)
    said: list[str] = []

    def reach(word):
        while word not in said:
            said.extend(kernel.stdout.readline().split()[:1] or [pytest.fail(f"{word} was not reached: {said}")])

    wait_until(lambda: Traces.of(small_repo), "the keeper is started")
    traces = Traces.of(small_repo)
    wait_until((records.folder() / f"{traces.keeper.pid}.json").exists, "the keeper has written its record")
    if moment != "start":
        wait_until(lambda: processes_with(f"{small_repo}/preprocessing"), "a model is loading")
    if moment in ("serving", "stopping"):
        reach("serving")
    if moment == "stopping":
        kernel.stdin.write("\n")
        kernel.stdin.flush()
        reach("stopping")
    with contextlib.suppress(psutil.NoSuchProcess):
        servers = traces.keeper.children()
        parts = {
            "kernel": [psutil.Process(kernel.pid)],
            "keeper": [traces.keeper],
            "tritonserver": servers,
            "models": [model for server in servers for model in server.children()],
        }
        for process in [process for victim in victims for process in parts.get(victim, [])]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    if victims == ("interrupt",):
        kernel.send_signal(signal.SIGINT)
    with contextlib.suppress(BrokenPipeError, ValueError):
        kernel.communicate(timeout=120)  # closes its input: it stops the server if it lives
    wait_until(lambda: not processes_with(str(traces.folder)), "no process is left")
    if "keeper" in victims:
        records.sweep()  # as the next start does
    wait_until(lambda: not traces.left(), "nothing is left")


KILLED_BEFORE_ITS_KEEPER = """
import signal, sys
from inflight.triton.serving import process, server

def begins(arguments, **_):
    print(arguments[arguments.index(process.keeper.__file__) + 1], flush=True)
    signal.pause()

process.subprocess.Popen = begins
server.Server(sys.argv[1]).start()
"""


def test_nothing_is_left_of_a_server_whose_keeper_has_not_begun(small_repo):
    kernel = start_python(KILLED_BEFORE_ITS_KEEPER, small_repo)
    folder = Path(kernel.stdout.readline().strip())
    records.sweep()
    assert folder.is_dir() and list(records.folder().glob(f"{folder.name}*"))
    kernel.kill()
    kernel.communicate()
    records.sweep()  # another server that starts meanwhile may have begun to
    wait_until(lambda: not folder.exists() and not list(records.folder().glob(f"{folder.name}*")), "nothing is left")


def test_a_model_ends_with_its_triton_in_the_middle_of_telling_its_figures(small_repo, tmp_path):
    """Without a keeper: it waits for the answer to a gauge nearly all the time, and none comes any more."""
    repository.edit(small_repo, "tensorrt_llm", stats_check_period_ms=1)
    with foreign.running(small_repo, tmp_path):
        assert len(processes_with(str(tmp_path))) == 1 + len(repository.PIPELINE[:-1])
    wait_until(lambda: not processes_with(str(tmp_path)), "no process is left")
