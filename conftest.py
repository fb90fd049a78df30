"""What nbval compares of a notebook that is run again: neither the static pictures, which only an author's build makes,
nor whose home a folder is in.

Notebooks run behind a proxy that is dead: nothing of theirs leaves the machine, and what stays on it asks none.

A run ends with nothing left running, whichever of its processes has died: servers, kernels, browsers.
"""

import os
import secrets

import psutil
import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from tools.homes import without_home

DEAD_PROXY = dict.fromkeys(["http_proxy", "https_proxy", "grpc_proxy", "all_proxy"], "http://127.0.0.1:9")

MARK = "INFLIGHT_TEST_RUN"  # in the environment of all that a run starts
MAY_END_S, AFTER_A_FAILURE_S = 60, 5


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the process that has the run, and its workers
        os.environ[MARK] = secrets.token_hex(8)
    os.environ["COURSE_STRICT"] = "1"  # a check in a notebook that is not passed fails its cell
    compare = IPyNbCell.compare_outputs

    def compare_outputs(self, test, ref, skip_compare=None):
        return compare(self, without_home(test), ref, skip_compare)

    IPyNbCell.compare_outputs = compare_outputs
    start_kernel = IPyNbFile.setup

    def setup(self):
        with pytest.MonkeyPatch.context() as environment:
            for name, address in DEAD_PROXY.items():
                environment.setenv(name, address)
            start_kernel(self)

    IPyNbFile.setup = setup


def pytest_collectstart(collector):
    if hasattr(collector, "skip_compare"):  # a notebook; nbval skips PNG and JPEG by itself
        collector.skip_compare += ("image/svg+xml",)


def pytest_collection_modifyitems(items):
    for item in items:
        if isinstance(item, IPyNbCell):
            item.add_marker(pytest.mark.timeout(0))  # nbval's own limit holds for a cell


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Once the workers have ended: what is alive of all that was started is ended, and makes the run red."""
    if hasattr(session.config, "workerinput"):
        return
    _, left = psutil.wait_procs(started(), timeout=AFTER_A_FAILURE_S if exitstatus else MAY_END_S)
    left = [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    if left:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        lines = [f"{process.pid}, {process.status()}: {' '.join(process.cmdline())}" for process in left]
        print("\nThe tests left these processes, which are ended:", *lines, sep="\n")
    for process in left:
        process.kill()


def started():
    """The processes that bear this run's mark, whoever their parent is by now."""
    others = (process for process in psutil.process_iter(["environ"]) if process.pid != os.getpid())
    return [process for process in others if (process.info["environ"] or {}).get(MARK) == os.environ[MARK]]
