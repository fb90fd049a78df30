"""Whatever is killed of a server, at whatever moment: nothing of it is left, at the latest after the next sweep."""

import contextlib
import subprocess
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from inflight.triton import records, repository
from tests.engines import start_python, wait_until
from tests.triton import foreign

pytestmark = pytest.mark.server

MOMENTS = ("start", "loading", "serving", "stopping")
VICTIMS = ("kernel", "keeper", "tritonserver", "models")
CASES = [
    ("serving", ("kernel",)),
    *(
        pytest.param(moment, victims, marks=pytest.mark.slow)
        for moment in MOMENTS
        for victims in (*combinations(VICTIMS, 1), ("kernel", "keeper"), VICTIMS)
        if (moment, victims) != ("serving", ("kernel",))
    ),
]

KERNEL_SCRIPT = """
import sys, threading
from inflight.errors import CourseError
from inflight.triton.client import Client
from inflight.triton import records
from inflight.triton.process import Process
from inflight.triton.server import Server

launch = Process._launch

def launch_and_tell(process):
    launch(process)
    prefix = records.at(process.http_url)["shm_prefix"]
    print("start", process.pid, process._keeper.pid, process._folder, prefix, flush=True)

Process._launch = launch_and_tell
server = Server(sys.argv[1], on_state=lambda row: print("loading", flush=True))

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


def of_server(workdir: Path) -> list[psutil.Process]:
    """Processes that were started for a server: their arguments name its folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(str(workdir) in each for each in process.cmdline()):
                found.append(process)
    return found


def left(workdir: Path, shm_prefix: str) -> list[str]:
    """What is left of a server."""
    files = [workdir, *Path("/dev/shm").glob(f"{shm_prefix}*")]
    return [str(process) for process in of_server(workdir)] + [str(file) for file in files if file.exists()]


@pytest.mark.parametrize("moment, victims", CASES, ids=lambda case: case if isinstance(case, str) else "+".join(case))
def test_nothing_is_left(small_repo, moment, victims):
    kernel = start_python(KERNEL_SCRIPT, small_repo, stdin=subprocess.PIPE)
    lines: list[str] = []

    def reach(wanted):
        while True:
            lines.append(kernel.stdout.readline())
            assert lines[-1], f"{wanted} was not reached: {lines}"
            if lines[-1].split()[0] == wanted:
                return lines[-1].split()[1:]

    pid, keeper, workdir, shm_prefix = reach("start")
    for each in MOMENTS[1 : MOMENTS.index(moment) + 1]:
        if each == "stopping":
            kernel.stdin.write("\n")
            kernel.stdin.flush()
        reach(each)
    with contextlib.suppress(psutil.NoSuchProcess):
        models = psutil.Process(int(pid)).children()
        parts = {
            "kernel": [psutil.Process(kernel.pid)],
            "keeper": [psutil.Process(int(keeper))],
            "tritonserver": [psutil.Process(int(pid))],
            "models": models,
        }
        for process in [process for name in victims for process in parts[name]]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    with contextlib.suppress(BrokenPipeError, ValueError):
        kernel.communicate(timeout=120)  # closes its input: it stops the server if it lives
    wait_until(lambda: not of_server(Path(workdir)), "no process is left")
    if "keeper" in victims:
        records.sweep()  # as the next start does
    wait_until(lambda: not left(Path(workdir), shm_prefix), "nothing is left")


def test_a_model_ends_with_its_triton_in_the_middle_of_telling_its_figures(small_repo, tmp_path):
    """Without a keeper: it waits for the answer to a gauge nearly all the time, and none comes any more."""
    repository.edit(small_repo, "tensorrt_llm", stats_check_period_ms=1)
    with foreign.running(small_repo, tmp_path):
        assert len(of_server(tmp_path)) == 1 + len(repository.PIPELINE[:-1])
    wait_until(lambda: not of_server(tmp_path), "no process is left")
