"""The engines and servers that many tests share."""

import os
import signal
from pathlib import Path

import pytest

from inflight import engine
from inflight.checkpoint import sources as checkpoints
from inflight.checkpoint import weights
from inflight.triton import repository
from inflight.triton.serving.server import Server
from tests.engines import build_small, write_small_gguf, write_tiny


def pytest_configure(config):
    # A shell has what it starts in the background ignore interrupts, of which some tests send one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A worker, with all that it starts, keeps to its share of the processors: beside others an engine with two threads
    # is hardly quicker than one with one, and takes half as much again of the time of the processors.
    if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
        processors, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = int(worker.removeprefix("gw")) % len(processors)
        os.sched_setaffinity(0, processors[first::workers])


def pytest_xdist_auto_num_workers(config):
    """Two a processor: a test waits some of its time, for a server or for a limit of time."""
    return 2 * (os.cpu_count() or 1)


@pytest.fixture(scope="module")  # while it is open an event loop runs in this thread, and no other test's can
def browser():
    """One for all tests of a file: Playwright takes no second one in the same thread."""
    from tests.browser.chromium import chromium  # here, as most workers need none

    with chromium() as browser:
        yield browser


# Models and engines ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def checkpoint() -> checkpoints.Checkpoint:
    """The course's own model."""
    return checkpoints.fetch()


@pytest.fixture(scope="session")
def course_engine(checkpoint) -> Path:
    """The engine that the course serves: the whole model, default options."""
    return engine.cached(checkpoint)


@pytest.fixture(scope="session")
def small_checkpoint(checkpoint, tmp_path_factory) -> checkpoints.Checkpoint:
    target = tmp_path_factory.mktemp("checkpoint") / "small.gguf"
    return checkpoints.fetch(str(write_small_gguf(weights.GgufFile(checkpoint.path), target)))


@pytest.fixture(scope="session")
def small_engine(small_checkpoint, tmp_path_factory) -> Path:
    return build_small(small_checkpoint, tmp_path_factory.mktemp("small") / "engine")


@pytest.fixture(scope="session")
def roomy_engine(small_checkpoint, tmp_path_factory) -> Path:
    """The small model with room for a named trace."""
    folder = tmp_path_factory.mktemp("roomy") / "engine"
    return build_small(small_checkpoint, folder, max_input_len=128, max_seq_len=300, max_num_tokens=512)


@pytest.fixture(scope="session")
def tiny_llama(small_checkpoint, tmp_path_factory) -> checkpoints.Checkpoint:
    return write_tiny(small_checkpoint.path, tmp_path_factory.mktemp("tiny") / "llama")


# Servers, for tests that ask and neither load nor kill, for as long as a worker runs ----------------------------------


@pytest.fixture(scope="session")
def streaming_server(course_engine, tmp_path_factory):
    """The course's model behind a decoupled repository; its iteration log is `iterations.jsonl` beside that."""
    folder = tmp_path_factory.mktemp("streaming")
    log = folder / "iterations.jsonl"
    repo = repository.assemble(folder / "repo", course_engine, decoupled_mode=True, iteration_log_path=log)
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture(scope="session")
def whole_server(course_engine, tmp_path_factory):
    """The course's model behind a repository that is not decoupled: one response a request."""
    repo = repository.assemble(tmp_path_factory.mktemp("whole") / "repo", course_engine, decoupled_mode=False)
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture
def small_repo(small_engine, tmp_path) -> Path:
    """The small model; without the chat template, which takes more tokens than its prompts may have."""
    return repository.assemble(tmp_path / "repo", small_engine, decoupled_mode=True, apply_chat_template=False)
