"""What holds for the whole test run: fast tests first, and no server left behind."""

import os
import secrets
import signal

import psutil
import pytest
from nbval.plugin import IPyNbCell

from tests.engines import (  # noqa: F401  fixtures for every test file
    checkpoint,
    course_engine,
    small_checkpoint,
    small_engine,
    small_repo,
    streaming_server,
    whole_server,
)

SERVER_PROCESSES = ("tritonserver", "triton_python_backend_stub")
MARK = "INFLIGHT_TEST_RUN"


def pytest_configure(config):
    config.addinivalue_line("markers", "browser: needs Chromium; runs after the other tests")
    # A shell has what it starts in the background ignore interrupts, of which some tests send one.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Unit tests, then browser tests, then notebooks; the sort is stable, so a notebook's cells stay in order."""

    def rank(item):
        if isinstance(item, IPyNbCell):
            return 2
        return int("browser" in item.path.name or item.get_closest_marker("browser") is not None)

    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def no_server_left():
    """At the end, no Triton process that a test started is alive, whoever its parent is by then."""
    os.environ[MARK] = secrets.token_hex(8)
    yield
    _, alive = psutil.wait_procs(started_servers(os.environ.pop(MARK)), timeout=10)
    left = [f"{process.name()} ({process.pid})" for process in alive]
    for process in alive:
        process.kill()
    assert not left, f"tests left these processes: {', '.join(left)}"


def started_servers(mark):
    """Server processes that are our descendants, or that carry this run's mark in the environment they inherited."""
    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    servers = []
    for process in psutil.process_iter(["name", "environ"]):
        if process.info["name"] and process.info["name"].startswith(tuple(name[:15] for name in SERVER_PROCESSES)):
            if process.pid in ours or (process.info["environ"] or {}).get(MARK) == mark:
                servers.append(process)
    return servers
