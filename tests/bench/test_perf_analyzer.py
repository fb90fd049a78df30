"""The real Performance Analyzer against a real server."""

import json

import pytest

from inflight.bench import perf_analyzer, report
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import build_small

pytestmark = pytest.mark.server

LENGTHS = (1, 3, 6)
REQUESTS = [TimedRequest(f"Hi {index}", LENGTHS[index % 3], 0.0, 3 + index) for index in range(9)]


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The chat template takes many of the small model's tokens, so its prompts are allowed some more of them."""
    return build_small(small_checkpoint, tmp_path_factory.mktemp("engine") / "engine", max_input_len=64)


@pytest.fixture(scope="module", params=[False, True], ids=["whole", "streaming"])
def served(request, engine_dir, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("served") / "repo", engine_dir, decoupled_mode=request.param, apply_chat_template=False
    )
    with Server(repo) as server:
        yield server, request.param


def test_it_measures_every_request_once(served):
    server, streams = served
    run = perf_analyzer.run(server.grpc_url, REQUESTS, concurrency=3)
    rows = run.answered
    assert len(rows) == len(run.requests) == 9
    assert sorted(rows["output_len"]) == sorted(request.max_tokens for request in REQUESTS)
    assert sorted(rows["input_len"]) == list(range(3, 12))
    assert (rows["latency_ms"] > 0).all()
    assert rows["sent_s"].is_monotonic_increasing and rows["sent_s"][0] == 0
    if streams:
        assert (rows["ttft_ms"] <= rows["latency_ms"]).all()
        assert rows[rows["max_tokens"] > 1]["itl_ms"].notna().all()
    else:
        assert rows["ttft_ms"].isna().all()


@pytest.mark.parametrize(
    ("requests", "concurrency", "url", "message"),
    [
        ([], 1, "127.0.0.1:1", "no request to send"),
        (REQUESTS, 0, "127.0.0.1:1", "concurrency is 0; with 9 requests it must be from 1 to 9"),
        (REQUESTS, 10, "127.0.0.1:1", "concurrency is 10; with 9"),
        (REQUESTS, 1, "http://127.0.0.1:1", "HTTP address: name the server's gRPC port"),
    ],
)
def test_what_it_cannot_do_is_refused(requests, concurrency, url, message):
    with pytest.raises(CourseError, match=message):
        perf_analyzer.run(url, requests, concurrency)


# A sweep --------------------------------------------------------------------------------------------------------------


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


# Machines where it cannot run -----------------------------------------------------------------------------------------


# Its export -----------------------------------------------------------------------------------------------------------


def export(path, *measured):
    path.write_text(json.dumps({"experiments": [{"requests": list(measured)}]}))
    return path


def test_times_of_an_export_by_hand(tmp_path):
    given = {"text_input": "Hi 2", "max_tokens": 6}
    late = {"timestamp": 5_000_000_000, "request_inputs": given, "response_timestamps": [5_100_000_000, 5_600_000_000]}
    lost = {"timestamp": 4_000_000_000, "request_inputs": given, "response_timestamps": []}
    run = perf_analyzer.read(export(tmp_path / "profile.json", late, lost), REQUESTS, streams=True)
    assert run.requests["error"].tolist() == ["The Performance Analyzer got no response.", ""]
    row = run.answered.iloc[0]
    assert (row.sent_s, row.last_s, row.ttft_ms, row.latency_ms, row.input_len) == (1.0, 1.6, 100.0, 600.0, 5)
    assert row.itl_ms == pytest.approx(100.0)
    assert report.summary(run)["errors"] == 1
