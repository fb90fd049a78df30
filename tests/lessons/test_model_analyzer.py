"""The real Model Analyzer against a real server; skipped where it cannot be installed."""

import subprocess
import sys

import pytest

from inflight.bench import dynamic_batching
from inflight.errors import CourseError
from inflight.lessons.batchers import model_analyzer, perf_analyzer
from inflight.models import huggingface
from inflight.triton import repository, telemetry
from inflight.triton.client import Connection
from inflight.triton.repository import EMBEDDING
from inflight.triton.server import Server

pytestmark = [pytest.mark.server, pytest.mark.slow]

DATA = perf_analyzer.text_data(list(dynamic_batching.TEXTS))
BUDGET_MS = 60_000  # whatever the machine, no request takes so long


@pytest.fixture(scope="module")
def installed():
    try:
        return model_analyzer.prepare()
    except CourseError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server(small_checkpoint, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        folder = huggingface.folder(small_checkpoint)
    repo = repository.assemble(
        tmp_path_factory.mktemp("served") / "repo",
        models=(EMBEDDING,),
        checkpoint_dir=folder,
        embedding_dtype="float32",
    )
    with Server(repo) as server:
        yield server


def connect(server):
    return Connection(server.grpc_url)


def test_it_searches_and_leaves_the_model_as_it_was(installed, server):
    told = []
    before = (server.repo / EMBEDDING / repository.CONFIG).read_text()
    found = model_analyzer.search(
        server,
        EMBEDDING,
        DATA,
        concurrency=(16,),
        max_queue_delays_us=(500,),
        latency_budget_ms=BUDGET_MS,
        requests=48,
        progress=told.append,
    )
    assert told == [f"{EMBEDDING}_config_{name}: concurrency=16" for name in ("default", "0")]
    table = found.table.set_index("config")
    assert table["batching"].to_dict() == {"default": "", "0": "dynamic_batching { max_queue_delay_microseconds: 500 }"}
    assert (table["throughput"] > 0).all() and table["within_budget"].all()
    assert found.table["throughput"].is_monotonic_decreasing
    assert f"{EMBEDDING}_config_0" in found.summary and "Throughput vs. Latency" in found.summary
    assert (server.repo / EMBEDDING / repository.CONFIG).read_text() == before
    dynamic_batching.embed(connect(server), ["once more"])
    done = telemetry.statistics_when(server.http_url, EMBEDDING, lambda now: now.executions)
    assert done.batches.to_dict() == {1: 1}, "loaded again from its files"
    assert repository.edit(server.repo, EMBEDDING, found.best) or found.table["config"][0] == "default"


def test_requests_that_do_not_fit_the_model_are_told(installed, server):
    with pytest.raises(CourseError, match="The Model Analyzer failed: .*text_input.*search again"):
        model_analyzer.search(server, EMBEDDING, {"data": [{"prompt": ["Hi"]}]}, concurrency=(2,), requests=12)
    assert dynamic_batching.embed(connect(server), ["once more"]).shape[0] == 1


def test_a_server_that_does_not_run_is_one_sentence(tmp_path):
    with pytest.raises(CourseError, match=r"^The server does not run\. Start it with start\(\)\.$"):
        model_analyzer.search(Server(tmp_path), EMBEDDING, DATA)


@pytest.mark.parametrize(
    "nothing", [{"concurrency": ()}, {"instance_counts": ()}, {"max_queue_delays_us": ()}, {"requests": 0}]
)
def test_a_search_of_nothing_is_refused(nothing):
    with pytest.raises(CourseError, match="There is nothing to measure"):
        model_analyzer.search(None, EMBEDDING, DATA, **nothing)


def test_its_pins_agree_with_the_course(installed):
    """What it imports is its own where it has its own, and the course's server does not see it."""
    script = "import numba, tritonclient, model_analyzer; print(numba.__file__, tritonclient.__file__, sep='|')"
    paths = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=True
    ).stdout.split("|")
    assert paths[0].startswith(str(installed)) and not paths[1].startswith(str(installed))
