"""Batching libraries: built, checked, and asked by a real server who may join a batch."""

import ctypes
import os

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers.batch_run import Arrival
from inflight.lessons.batchers.custom_batching import FUNCTIONS, SOURCES, build
from inflight.triton import repository
from inflight.triton.serving.server import Server
from tests.lessons.answers import written

pytestmark = pytest.mark.server

MODEL, PARAMETER = "batch-cost", "TRITON_BATCH_STRATEGY_PATH"
MAX_BATCH_SIZE, MAX_VOLUME = 8, 12  # the second is LIMIT in the lab's joins.h
# With every size a preferred one, a batch does not grow any more while it waits: see volume.c.
CLOSED_BATCHES = f"dynamic_batching {{ preferred_batch_size: {list(range(1, MAX_BATCH_SIZE + 1))} }}"


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "joins.h").write_text(written("batchers", "labs", "joins.h"))  # as the lab hands it out
    (folder / "volume.c").write_text((SOURCES / "volume.c").read_text())
    return build(folder / "volume.c", folder / "volume.so")


# Building -------------------------------------------------------------------------------------------------------------


def test_the_library_has_the_five_functions(volume):
    assert all(hasattr(ctypes.CDLL(str(volume), os.RTLD_LAZY), name) for name in FUNCTIONS)


@pytest.mark.parametrize(
    "source, fact",
    [
        ("int one;\nint two(void) { return three; }\n", "mine.c:2"),
        ("int one;\n", "TRITONBACKEND_ModelBatcherInitialize"),
    ],
)
def test_a_source_that_is_no_library_is_told_and_the_old_library_kept(volume, tmp_path, source, fact):
    (tmp_path / "mine.c").write_text(source)
    library = tmp_path / "mine.so"
    library.write_bytes(volume.read_bytes())
    with pytest.raises(CourseError, match=fact):
        build(tmp_path / "mine.c", library)
    assert library.read_bytes() == volume.read_bytes()


# With a server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def shared_server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("volume") / "repo",
        models=(MODEL,),
        execution_log_path=log_path,
        batch_cost_max_batch_size=MAX_BATCH_SIZE,
        batch_cost_fixed_ms=300,
        batch_cost_item_ms=0,
    )
    repository.edit(repo, MODEL, CLOSED_BATCHES)
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture
def server(shared_server):
    """With closed batches and without a library, whatever a test does to it."""
    path = shared_server.repo / MODEL / repository.CONFIG
    plain = repository.read_config(path)
    yield shared_server
    repository.write_config(plain, path)


def set_library(server, library):
    """As a learner would with an editor: unchecked."""
    path = server.repo / MODEL / repository.CONFIG
    config = repository.read_config(path)
    config.parameters[PARAMETER].string_value = str(library)
    repository.write_config(config, path)


@pytest.fixture
def batches(server, log_path):
    """Load the model, send requests, and tell the work of each batch: `batches(works)`, a table of size and work."""

    def run(works, interval_s=0.0):
        server.load(MODEL)
        arrivals = [Arrival(number * interval_s, work) for number, work in enumerate(works)]
        return batch_run.run(server, MODEL, arrivals, log_path).executions

    return run


def test_the_volume_and_not_the_number_fills_a_batch(volume, server, batches):
    set_library(server, volume)
    works = np.random.default_rng(0).integers(0, 11, 40).tolist()
    table = batches(works, interval_s=0.004)
    assert table["work"].max() <= MAX_VOLUME
    assert table["size"].nunique() > 2
    small = batches([1] * 40)
    assert small["size"].max() == MAX_BATCH_SIZE  # Triton's own limit stays
    large = batches([1, 30, 1, 30, 1, 1, 1, 1])
    assert large.loc[large["work"] >= 30, "size"].tolist() == [1, 1]  # more than the limit: a batch of its own


@pytest.mark.parametrize("text", [None, "int main(void);"], ids=["missing", "no library"])
def test_a_file_that_is_no_library_is_named_at_the_load(server, tmp_path, text):
    if text:
        (tmp_path / "mine.so").write_text(text)
    set_library(server, tmp_path / "mine.so")
    with pytest.raises(CourseError, match="mine.so"):
        server.load(MODEL)
