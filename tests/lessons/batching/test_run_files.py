"""What a run leaves for colleagues: the classic client's columns, and a time line in the format that Perfetto reads."""

import json

import pandas as pd
import pytest

from inflight.bench.load import Run
from inflight.lessons.batching.run_files import ENGINE, REQUESTS, op_stats, timeline
from tests.bench.test_report import ROWS, STARTED_AT


@pytest.fixture
def run():
    return Run(ROWS, STARTED_AT)


@pytest.fixture
def iterations():
    """One iteration before the run; in it two that the wall clock lets overlap, and a third."""
    rows = [(1, -5.0, 4.0, 1), (2, 0.01, 100.0, 2), (3, 0.1, 30.0, 2), (4, 0.2, 30.0, 3)]
    log = pd.DataFrame(rows, columns=["iteration", "timestamp", "iteration_ms", "scheduled"])
    log["timestamp"] += STARTED_AT
    return log.assign(context_tokens=5, generation_tokens=log["scheduled"])


def test_op_stats_has_the_classic_columns(run):
    line = op_stats(run)
    assert list(line) == [
        "Requests/Sec",
        "OP tokens/sec",
        "Avg. latency (ms)",
        "P99 latency (ms)",
        "P90 latency (ms)",
        "Avg. Input tokens per request",
        "Avg. Output tokens per request",
        "Avg. InFlight requests",
        "Total latency (ms)",
        "Total requests",
    ]
    assert list(line.values()) == pytest.approx([1.6, 25.6, 1587.5, 2089.5, 1995, 8, 16, 2.54, 2500, 4])


def slices(content: dict, pid: int) -> list[tuple]:
    """Of each slice of a process: its track, name, start and length."""
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    events = [event for event in content["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]
    return [(event["tid"], event["name"], event["ts"], event["dur"]) for event in events]


def test_a_time_line_has_each_answered_request_and_its_parts_on_a_track_of_its_own(run, iterations):
    content = timeline(run, iterations)
    assert slices(content, REQUESTS) == [
        (1, "req_0", 0, 1_000_000),
        (1, "waiting and prefill", 0, 100_000),
        (1, "decode", 100_000, 900_000),
        (2, "req_1", 0, 2_100_000),
        (2, "waiting and prefill", 0, 200_000),
        (2, "decode", 200_000, 1_900_000),
        (3, "req_2", 500_000, 1_750_000),
        (3, "waiting and prefill", 500_000, 300_000),
        (3, "decode", 800_000, 1_450_000),
        (4, "req_3", 1_000_000, 1_500_000),
    ]
    [third] = [event for event in content["traceEvents"] if event["name"] == "req_2"]
    assert third["args"] == {"isl": 9, "osl": 30}


def test_a_time_line_has_the_iterations_of_the_run(run, iterations):
    content = timeline(run, iterations)
    assert slices(content, ENGINE) == [
        (1, "iteration 2", 10_000, 90_000),
        (1, "iteration 3", 100_000, 30_000),
        (1, "iteration 4", 200_000, 30_000),
    ]
    assert content["traceEvents"][-1]["args"] == {"scheduled": 3, "context_tokens": 5, "generation_tokens": 3}
