"""What a run leaves for colleagues: the classic client's columns, and a time line in the format that Perfetto reads."""

import json
from collections import Counter, defaultdict

import pandas as pd
import pytest

from inflight.bench.load import Run
from inflight.lessons.batching.run_files import ENGINE, op_stats, timeline
from tests.bench.test_report import ROWS, STARTED_AT


@pytest.fixture
def run():
    return Run(ROWS, STARTED_AT)


@pytest.fixture
def iterations():
    """One iteration before the run; in it two that the wall clock lets overlap, and a third."""
    rows = [(1, -5.0, 4.0, 1, 0, 0), (2, 0.01, 100.0, 2, 1, 0), (3, 0.1, 30.0, 2, 0, 1), (4, 0.2, 30.0, 3, 0, 0)]
    return pd.DataFrame(
        [
            {
                "iteration": number,
                "timestamp": STARTED_AT + at,
                "iteration_ms": ms,
                "scheduled": scheduled,
                "waiting": waiting,
                "paused": paused,
                "context_tokens": 5,
                "generation_tokens": scheduled,
                "kv_blocks_used": number,
                "finished": 0,
            }
            for number, at, ms, scheduled, waiting, paused in rows
        ]
    )


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


# Trace ----------------------------------------------------------------------------------------------------------------

KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}


def check_schema(content: dict) -> None:
    """What a reader of the Chrome JSON trace event format relies on."""
    assert set(content) == {"traceEvents", "displayTimeUnit"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    last_ts, named, open_slices = 0, set(), defaultdict(list)
    for event in content["traceEvents"]:
        kind = event["ph"]
        assert set(event) - ({"tid"} if event["name"] == "thread_name" else set()) == KEYS[kind]
        assert isinstance(event["name"], str) and event["name"]
        assert all(isinstance(event[key], int) for key in ("ts", "dur", "pid", "tid") if key in event)
        assert all(event[key] >= 0 for key in ("ts", "dur") if key in event)
        if kind == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            named.add((event["pid"], event.get("tid")))
            continue
        assert event["ts"] >= last_ts
        last_ts = event["ts"]
        assert (event["pid"], None) in named
        if kind == "C":
            assert event["args"] and all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        else:
            assert (event["pid"], event["tid"]) in named
            check_nesting(open_slices[event["pid"], event["tid"]], event)


def check_nesting(stack: list[int], event: dict) -> None:
    """`stack` has the ends of the slices of a track that are open; a slice begins after them or lies in them."""
    while stack and stack[-1] <= event["ts"]:
        stack.pop()
    end = event["ts"] + event["dur"]
    assert not stack or end <= stack[-1]
    stack.append(end)


def slices(content: dict, category: str) -> list[dict]:
    return [event for event in content["traceEvents"] if event.get("cat") == category]


def test_trace_keeps_to_the_format(run, iterations):
    for log in (None, iterations):
        check_schema(json.loads(json.dumps(timeline(run, log), allow_nan=False)))


def test_trace_has_each_answered_request_with_its_lengths_and_its_parts(run):
    content = timeline(run)
    requests = {event["name"]: event for event in slices(content, "batch")}
    assert set(requests) == {"req_0", "req_1", "req_2", "req_3"}
    assert (requests["req_2"]["ts"], requests["req_2"]["dur"]) == (500_000, 1_750_000)
    assert requests["req_2"]["args"] == {"isl": 9, "osl": 30}
    assert requests["req_3"]["tid"] == requests["req_0"]["tid"]  # it begins when that one ends
    assert len({requests[f"req_{number}"]["tid"] for number in range(3)}) == 3
    assert sorted(event["dur"] for event in slices(content, "prefill")) == [100_000, 200_000, 300_000]
    assert sorted(event["dur"] for event in slices(content, "decode")) == [900_000, 1_450_000, 1_900_000]


def test_trace_counts_requests_in_flight(run):
    counts = [(event["ts"], event["args"]["requests"]) for event in timeline(run)["traceEvents"] if event["ph"] == "C"]
    assert counts == [(0, 2), (500_000, 3), (1_000_000, 3), (2_100_000, 2), (2_250_000, 1), (2_500_000, 0)]


def test_trace_has_the_engine_beside_the_requests(run, iterations):
    content = timeline(run, iterations)
    spans = [(event["name"], event["ts"], event["dur"]) for event in slices(content, "iteration")]
    assert spans == [
        ("iteration 2", 10_000, 90_000),
        ("iteration 3", 100_000, 30_000),
        ("iteration 4", 200_000, 30_000),
    ]
    counters = Counter(
        event["name"] for event in content["traceEvents"] if event["ph"] == "C" and event["pid"] == ENGINE
    )
    assert counters == dict.fromkeys(("scheduled", "waiting", "paused", "KV cache blocks used"), 3)
