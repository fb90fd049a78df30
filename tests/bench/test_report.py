"""Figures, files and traces of a benchmark, from rows made by hand."""

import json
from collections import Counter, defaultdict

import pandas as pd
import pytest

from inflight.bench import report
from inflight.bench.load import COLUMNS, Run
from inflight.errors import CourseError

# Three streamed requests of 10, 20 and 30 tokens in two seconds, a whole answer, and one that failed.
ROWS = [
    {
        "request": 0,
        "sent_s": 0.0,
        "first_s": 0.1,
        "last_s": 1.0,
        "input_len": 5,
        "output_len": 10,
        "max_tokens": 10,
        "ttft_ms": 100.0,
        "itl_ms": 100.0,
        "latency_ms": 1000.0,
        "error": "",
    },
    {
        "request": 1,
        "sent_s": 0.0,
        "first_s": 0.2,
        "last_s": 2.1,
        "input_len": 7,
        "output_len": 20,
        "max_tokens": 20,
        "ttft_ms": 200.0,
        "itl_ms": 100.0,
        "latency_ms": 2100.0,
        "error": "",
    },
    {
        "request": 2,
        "sent_s": 0.5,
        "first_s": 0.8,
        "last_s": 2.25,
        "input_len": 9,
        "output_len": 30,
        "max_tokens": 30,
        "ttft_ms": 300.0,
        "itl_ms": 50.0,
        "latency_ms": 1750.0,
        "error": "",
    },
    {
        "request": 3,
        "sent_s": 1.0,
        "last_s": 2.5,
        "input_len": 11,
        "output_len": 4,
        "max_tokens": 4,
        "latency_ms": 1500.0,
        "error": "",
    },
    {
        "request": 4,
        "sent_s": 1.5,
        "last_s": 9.0,
        "input_len": 13,
        "output_len": 0,
        "max_tokens": 4,
        "error": 'no, "never"',
    },
]
STARTED_AT = 1_700_000_000.0


@pytest.fixture
def run():
    return Run(pd.DataFrame(ROWS, columns=COLUMNS), STARTED_AT)


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


# Figures --------------------------------------------------------------------------------------------------------------


def test_figures_by_hand(run):
    figures = report.summary(run)
    assert (figures["requests"], figures["errors"]) == (4, 1)
    assert figures["total_latency_ms"] == pytest.approx(2500)  # the failed request does not count
    assert figures["requests_per_s"] == pytest.approx(4 / 2.5)
    assert figures["tokens_per_s"] == pytest.approx(64 / 2.5)
    assert figures["in_flight_mean"] == pytest.approx((1.0 + 2.1 + 1.75 + 1.5) / 2.5)
    assert (figures["input_len_mean"], figures["output_len_mean"]) == (8.0, 16.0)
    assert figures["latency_ms_mean"] == pytest.approx(1587.5)
    assert figures["latency_ms_p50"] == pytest.approx((1500 + 1750) / 2)
    assert figures["latency_ms_p90"] == pytest.approx(1750 + 0.7 * 350)  # place 0.9 × 3 = 2.7 of 1000, 1500, 1750, 2100
    assert figures["latency_ms_p99"] == pytest.approx(1750 + 0.97 * 350)
    assert (figures["ttft_ms_mean"], figures["ttft_ms_p50"]) == (200.0, 200.0)  # of the three that streamed
    assert figures["itl_ms_mean"] == pytest.approx(250 / 3)


# Tables ---------------------------------------------------------------------------------------------------------------


def test_csv_has_a_line_a_request_and_can_be_read_again(run, tmp_path):
    report.write(tmp_path / "run.csv", report.requests_csv(run))
    read = pd.read_csv(tmp_path / "run.csv", keep_default_na=True).fillna({"error": ""})
    pd.testing.assert_frame_equal(read, run.requests, check_dtype=False)


def test_op_stats_has_the_classic_columns_and_grows_by_a_line(run, tmp_path):
    path = tmp_path / "stats.csv"
    for _ in range(2):
        report.write(path, report.with_op_stats(path, run))
    header, *lines = path.read_text().splitlines()
    assert header == (
        "Requests/Sec,OP tokens/sec,Avg. latency (ms),P99 latency (ms),P90 latency (ms),Avg. Input tokens per "
        "request,Avg. Output tokens per request,Avg. InFlight requests,Total latency (ms),Total requests"
    )
    assert lines == ["1.600,25.600,1587.500,2089.500,1995.000,8.000,16.000,2.540,2500.000,4"] * 2


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


def test_trace_keeps_to_the_format(run, iterations, tmp_path):
    for log in (None, iterations):
        report.write(tmp_path / "trace.json", json.dumps(report.timeline(run, log), allow_nan=False))
        check_schema(json.loads((tmp_path / "trace.json").read_text()))


def test_trace_has_each_answered_request_with_its_lengths_and_its_parts(run):
    content = report.timeline(run)
    requests = {event["name"]: event for event in slices(content, "batch")}
    assert set(requests) == {"req_0", "req_1", "req_2", "req_3"}
    assert (requests["req_2"]["ts"], requests["req_2"]["dur"]) == (500_000, 1_750_000)
    assert requests["req_2"]["args"] == {"isl": 9, "osl": 30}
    assert requests["req_3"]["tid"] == requests["req_0"]["tid"]  # it begins when that one ends
    assert len({requests[f"req_{number}"]["tid"] for number in range(3)}) == 3
    assert sorted(event["dur"] for event in slices(content, "prefill")) == [100_000, 200_000, 300_000]
    assert sorted(event["dur"] for event in slices(content, "decode")) == [900_000, 1_450_000, 1_900_000]


def test_trace_counts_requests_in_flight(run):
    counts = [
        (event["ts"], event["args"]["requests"]) for event in report.timeline(run)["traceEvents"] if event["ph"] == "C"
    ]
    assert counts == [(0, 2), (500_000, 3), (1_000_000, 3), (2_100_000, 2), (2_250_000, 1), (2_500_000, 0)]


def test_trace_has_the_engine_beside_the_requests(run, iterations):
    content = report.timeline(run, iterations)
    spans = [(event["name"], event["ts"], event["dur"]) for event in slices(content, "iteration")]
    assert spans == [
        ("iteration 2", 10_000, 90_000),
        ("iteration 3", 100_000, 30_000),
        ("iteration 4", 200_000, 30_000),
    ]
    counters = Counter(
        event["name"] for event in content["traceEvents"] if event["ph"] == "C" and event["pid"] == report.ENGINE
    )
    assert counters == dict.fromkeys(("scheduled", "waiting", "paused", "KV cache blocks used"), 3)


# Files ----------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_refused_and_nothing_left(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "nowhere" / "run.csv", tmp_path / "file" / "run.csv", tmp_path):
        with pytest.raises(CourseError, match="cannot be written"):
            report.check_writable(path)
    report.check_writable(tmp_path / "file", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_write_that_fails_keeps_what_was_there(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text("before")
    with pytest.raises(CourseError, match="cannot be written"):
        report.write(path, "\udcff")  # no UTF-8
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
