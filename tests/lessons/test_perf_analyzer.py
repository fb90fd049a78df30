"""The real Performance Analyzer against a real server."""

import pytest

from inflight.errors import CourseError
from inflight.lessons.batchers import perf_analyzer
from inflight.triton import repository
from inflight.triton.server import Server

pytestmark = pytest.mark.server


@pytest.mark.slow
def test_a_sweep_agrees_with_littles_law(tmp_path):
    """44 ms and more a batch: a throughput that counts time after the last answer would be far too low."""
    with Server(repository.assemble(tmp_path / "repo", models=("batch-cost",), batch_cost_fixed_ms=40)) as server:
        repository.edit(server.repo, "batch-cost", "dynamic_batching { }")
        server.load("batch-cost")
        table = perf_analyzer.sweep(server.grpc_url, "batch-cost", {"data": [{"work": [1]}]}, (1, 4), requests=30)
    under_way = table["throughput"] * table["latency_ms_mean"] / 1000
    assert (under_way / table["concurrency"]).between(0.8, 1.25).all()
    assert table["throughput"][1] > 1.5 * table["throughput"][0]


def test_an_http_address_is_refused():
    with pytest.raises(CourseError, match="HTTP address: name the server's gRPC port"):
        perf_analyzer.sweep("http://127.0.0.1:1", "batch-cost", {"data": []}, (1,))
