"""Triton's own tools against a real server; the Model Analyzer where it can be installed."""

import json
import subprocess

import pandas as pd
import pytest

from inflight.errors import CourseError
from inflight.lessons import batchers
from inflight.lessons.batchers import analyzers
from inflight.triton import repository, telemetry
from inflight.triton.client import Connection
from inflight.triton.repository import BATCH_COST
from inflight.triton.server import Server

pytestmark = [pytest.mark.server, pytest.mark.slow]

DELAYS = {"dynamic_batching": {"max_queue_delay_microseconds": [500]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    repo = repository.assemble(tmp_path_factory.mktemp("cost") / "repo", models=(BATCH_COST,), batch_cost_fixed_ms=40)
    with Server(repo) as server:
        yield server


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "requests.json"
    path.write_text(json.dumps({"data": [{"work": [1]}]}))
    return path


@pytest.fixture(scope="module")
def installed():
    try:
        return analyzers._installed()
    except CourseError as error:
        pytest.skip(str(error))


def test_what_the_performance_analyzer_measures_agrees_with_littles_law(server, data, tmp_path):
    """44 ms and more a batch: a throughput that counts time after the last answer would be far too low."""
    report = tmp_path / "report.csv"
    flags = f"-m {BATCH_COST} -i grpc -u {server.grpc_url} --input-data {data} --concurrency-range 2 -f {report}"
    flags += " --verbose-csv --measurement-mode count_windows --measurement-request-count 10"
    subprocess.run([batchers.perf_analyzer(tmp_path), *flags.split()], check=True, capture_output=True)
    [row] = pd.read_csv(report).to_dict("records")
    assert row["Inferences/Second"] * row["Avg latency"] / 1e6 == pytest.approx(2, rel=0.25)


def test_the_model_analyzer_searches_and_leaves_the_model_as_it_was(installed, server, data):
    before = (server.repo / BATCH_COST / repository.CONFIG).read_text()
    found = batchers.search(server, BATCH_COST, data, DELAYS, requests=24)
    assert dict(zip(found["config"], found["batching"])) == {
        "default": "",
        "0": "dynamic_batching { max_queue_delay_microseconds: 500 }",
    }
    assert found["config"][0] == "0" and found["throughput"].is_monotonic_decreasing, "eight share a batch"
    assert (server.repo / BATCH_COST / repository.CONFIG).read_text() == before
    assert telemetry.statistics(server.http_url, BATCH_COST).executions == 0, "loaded again from its files"


def test_requests_that_do_not_fit_the_model_are_told(installed, server, data):
    data.write_text(json.dumps({"data": [{"prompt": ["Hi"]}]}))
    with pytest.raises(CourseError, match="The Model Analyzer failed: .*search again"):
        batchers.search(server, BATCH_COST, data, DELAYS, requests=12)
    with Connection(server.grpc_url) as connection:
        assert connection.triton.is_model_ready(BATCH_COST)
