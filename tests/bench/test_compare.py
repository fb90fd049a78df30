"""Two ways of serving in turns: what comes out, what arithmetic says, and what is refused before anything starts."""

from dataclasses import replace

import pandas as pd
import pytest

from inflight.bench import compare as compare_module
from inflight.bench import trace_run, workload
from inflight.bench.compare import compare, predicted
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.prediction import IterationCost
from inflight.errors import CourseError
from inflight.triton.client import Client
from tests.engines import build_small


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """The small model with room for the chat template, which its few tokens make long."""
    return build_small(
        small_checkpoint,
        tmp_path_factory.mktemp("compare") / "engine",
        max_batch_size=8,
        max_input_len=512,
        max_seq_len=1024,
        max_num_tokens=4096,
    )


def test_a_prediction_takes_lengths_and_costs_only():
    requests = [TimedRequest("", length, 0.0, 20) for length in (1, 4, 2, 3)]
    cost = IterationCost(pd.Series({0: 0.0, 1: 10.0, 2: 12.0}), prompt_token_ms=0.5)
    result = predicted(requests, 2, ("V1", "inflight_fused_batching"), cost)
    # Static: the first alone (one prompt, 10 ms), two together (20 + 12 + 10 + 10), the last alone (30): 92 ms.
    # In flight: the first 10; the next two sit down, 20 + 12; the last joins one, 20 + 12; and ends, 10: 84 ms.
    assert result["iterations"] == {"V1": 8, "inflight_fused_batching": 6}
    assert result["throughput"] == pytest.approx(92 / 84)
    assert result["mean_latency"] == pytest.approx((10 + 74 + 42 + 84) / (10 + 62 + 62 + 92))


def test_no_two_prompts_that_measure_a_cost_begin_alike_but_for_what_the_traffic_shares(monkeypatch):
    """Found in the KV cache, they would cost next to nothing."""
    sent = []

    def run(client, requests, *_, **__):
        sent.append(requests)
        return trace_run.TraceRun(None, pd.DataFrame())

    monkeypatch.setattr(compare_module.trace_run, "run", run)
    rules = "Be brief, name the place. "
    articles = ["A train left the station of the town too late.", "The bridge over the river is closed until noon."]
    traffic = [
        TimedRequest(rules + article, length, 3.0, 20, after=None) for article, length in zip(articles, (10, 30))
    ]
    for _ in range(2):  # before and after what is measured
        compare_module.calibrate(None, traffic, 3, "log")
    assert [len(requests) for requests in sent] == [1, 1, 2, 3] * 2
    everything = [request for requests in sent for request in requests]
    assert {request.max_tokens for requests in sent[1:4] for request in requests} == {25}  # (100 + 900) / 40
    assert all(request.text.startswith(rules) and request.at_s == 0.0 for request in everything)
    beginnings = {request.text.removeprefix(rules).partition(":")[0] for request in everything}
    assert len(beginnings) == len(everything)


@pytest.mark.server
@pytest.mark.slow
def test_both_types_serve_the_trace_and_no_iteration_holds_more_than_the_slots(engine_dir, tmp_path):
    # All at once: the small model is through with most answers before a next request 5 ms later.
    steps, mild = [], [replace(one, at_s=0.0) for one in workload.trace("mild", load_tokenizer(engine_dir))[:16]]
    result = compare("V1", "inflight_fused_batching", engine_dir, mild, tmp_path, rounds=1, progress=steps.append)
    static, in_flight, alone = result["rows"]
    assert [static["way"], in_flight["way"], alone["way"]] == [
        "V1",
        "inflight_fused_batching",
        "inflight_fused_batching, in process",
    ]
    assert static["most_in_an_iteration"] == in_flight["most_in_an_iteration"] == 8
    assert static["iterations"] >= in_flight["iterations"] >= sum(request.max_tokens for request in mild) / 8
    assert result["predicted"]["iterations"]["V1"] > result["predicted"]["iterations"]["inflight_fused_batching"]
    assert set(result["ratios"]) == {
        "throughput",
        "mean_latency",
        "p99_latency",
        "served_over_in_process",
        "throughput_measured_over_predicted",
        "mean_latency_measured_over_predicted",
    }
    assert result["settings"]["requests"] == 16 and result["machine"]["cores"] >= 1
    assert "round 1 of 1: engine in process" in steps


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("V1", "V2"),
            "no way of serving called 'V2' to compare. There are: V1, inflight_batching, inflight_fused_batch",
        ),
        (("V1", "V1"), "Both sides are V1: name two different ones"),
        (("V1", "inflight_batching", {"policy": "fair"}), "must be guaranteed_no_evict or max_utilization"),
        (("V1", "inflight_batching", {"rounds": 0}), "The number of rounds is 0; it must be at least 1."),
        (("llama-python", "ensemble", {}), "checkpoint_dir"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(engine_dir, tmp_path, arguments, message):
    first, second, *options = arguments
    with pytest.raises(CourseError, match=message):
        compare(first, second, engine_dir, [TimedRequest("Hello", 4, 0.0, 1)], tmp_path, **dict(*options))
    assert list(tmp_path.iterdir()) == []


def test_a_trial_says_that_the_server_is_gone(tmp_path):
    message = "The server at 127.0.0.1:1 went away after 0 of 1 answers"
    with Client("127.0.0.1:1") as client, pytest.raises(CourseError, match=message):
        trace_run.run(client, [TimedRequest("Hello", 4, 0.0, 1)], tmp_path / "log")
