"""Triton's Performance Analyzer against a real server."""

import json
import subprocess

import pandas as pd
import pytest

from inflight.lessons import batchers
from inflight.triton import repository
from inflight.triton.repository import BATCH_COST
from inflight.triton.serving.server import Server

pytestmark = [pytest.mark.server, pytest.mark.slow]


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


def test_what_the_performance_analyzer_measures_agrees_with_littles_law(server, data, tmp_path):
    """44 ms and more a batch: a throughput that counts time after the last answer would be far too low."""
    report = tmp_path / "report.csv"
    flags = f"-m {BATCH_COST} -i grpc -u {server.grpc_url} --input-data {data} --concurrency-range 2 -f {report}"
    flags += " --verbose-csv --measurement-mode count_windows --measurement-request-count 10"
    subprocess.run([batchers.perf_analyzer(tmp_path), *flags.split()], check=True, capture_output=True)
    [row] = pd.read_csv(report).to_dict("records")
    assert row["Inferences/Second"] * row["Avg latency"] / 1e6 == pytest.approx(2, rel=0.25)
