"""Files of a run that colleagues can open: a line of statistics, and a time line to look at.

op_stats(run)                                           # the columns of TensorRT-LLM's own client
Path("run.json").write_text(json.dumps(timeline(run)))  # open it at ui.perfetto.dev
"""

from __future__ import annotations

import math

import pandas as pd

from inflight.bench import report
from inflight.bench.load import Run

# Column of the classic client's statistics -> key of `summary`.
OP_STATS = {
    "Requests/Sec": "requests_per_s",
    "OP tokens/sec": "tokens_per_s",
    "Avg. latency (ms)": "latency_ms_mean",
    "P99 latency (ms)": "latency_ms_p99",
    "P90 latency (ms)": "latency_ms_p90",
    "Avg. Input tokens per request": "input_len_mean",
    "Avg. Output tokens per request": "output_len_mean",
    "Avg. InFlight requests": "in_flight_mean",
    "Total latency (ms)": "total_latency_ms",
    "Total requests": "requests",
}

REQUESTS, ENGINE = 1, 2  # processes of the time line


def op_stats(run: Run) -> dict[str, float | None]:
    """A run as a line of the classic client's statistics, which it writes with `--op-stats-csv`."""
    figures = report.summary(run)
    return {column: figures[key] for column, key in OP_STATS.items()}


# Time line ------------------------------------------------------------------------------------------------------------


def timeline(run: Run, iterations: pd.DataFrame | None = None) -> dict:
    """The run in the Chrome JSON trace event format, which ui.perfetto.dev opens. Times in µs since the run's start.

    Parameters
    ----------
    run : Run
    iterations : DataFrame, optional
        `telemetry.iterations` of the engine's log; what was before the run is left out.

    Returns
    -------
    dict
        `traceEvents`: the answered requests as complete events, each on a track where no other is meanwhile, divided at
        the first token if that is known, and the number of them in flight; with a log also iterations, and the counts
        of scheduled, waiting and paused requests and of used KV cache blocks.
    """
    events = [*_names(REQUESTS, "requests"), *_request_events(run.answered)]
    if iterations is not None:
        events += [*_names(ENGINE, "engine"), _thread_name(ENGINE, 1, "iterations"), *_engine_events(run, iterations)]
    names = [event for event in events if event["ph"] == "M"]
    timed = [event for event in events if event["ph"] != "M"]
    # A slice comes before what lies in it: earlier first, then longer first.
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {"traceEvents": [*names, *timed], "displayTimeUnit": "ms"}


def _names(pid: int, name: str) -> list[dict]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}},
    ]


def _thread_name(pid: int, tid: int, name: str) -> dict:
    return {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _request_events(rows: pd.DataFrame) -> list[dict]:
    events, ends, changes = [], [], []  # ends: when each track gets free
    for row in rows.sort_values("sent_s").itertuples():
        sent, last = _us(row.sent_s), _us(row.last_s)
        track = next((number for number, end in enumerate(ends) if end <= sent), len(ends))
        ends[track : track + 1] = [last]
        events += _slices(row, sent, last, track + 1)
        changes += [(sent, 1), (last, -1)]
    events += [_thread_name(REQUESTS, number, f"requests {number:03}") for number in range(1, len(ends) + 1)]
    return events + _in_flight(changes)


def _slices(row, sent: int, last: int, tid: int) -> list[dict]:
    """A request's slice, and in it, if the first token's time is known, what came before that and what after."""
    args = {"isl": int(row.input_len), "osl": int(row.output_len)}
    events = [_slice(REQUESTS, tid, f"req_{row.request}", "batch", sent, last, args)]
    if not math.isnan(row.first_s):
        first = _us(row.first_s)
        events += [
            _slice(REQUESTS, tid, "waiting and prefill", "prefill", sent, first, {"ttft_ms": round(row.ttft_ms, 3)}),
            _slice(REQUESTS, tid, "decode", "decode", first, last, {"tokens": int(row.output_len) - 1}),
        ]
    return events


def _in_flight(changes: list[tuple[int, int]]) -> list[dict]:
    under_way, counts = 0, {}
    for ts, change in sorted(changes):
        under_way += change
        counts[ts] = under_way  # of changes in one microsecond, what is left after the last
    return [_counter(REQUESTS, "in flight", ts, {"requests": count}) for ts, count in counts.items()]


def _engine_events(run: Run, iterations: pd.DataFrame) -> list[dict]:
    log = iterations[iterations["timestamp"] >= run.started_at]
    starts = [_us(timestamp - run.started_at) for timestamp in log["timestamp"]]
    events = []
    for row, start, limit in zip(log.itertuples(), starts, [*starts[1:], math.inf]):
        # The wall clock of the log may be adjusted a little meanwhile; iterations follow each other all the same.
        end = max(start, min(start + round(row.iteration_ms * 1000), limit))
        args = {
            "scheduled": int(row.scheduled),
            "context_tokens": int(row.context_tokens),
            "generation_tokens": int(row.generation_tokens),
            "finished": int(row.finished),
        }
        events.append(_slice(ENGINE, 1, f"iteration {row.iteration}", "iteration", start, end, args))
        events += [
            _counter(ENGINE, name, start, {"requests": int(getattr(row, name))})
            for name in ("scheduled", "waiting", "paused")
        ]
        events.append(_counter(ENGINE, "KV cache blocks used", start, {"blocks": int(row.kv_blocks_used)}))
    return events


def _slice(pid: int, tid: int, name: str, category: str, start: int, end: int, args: dict) -> dict:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start,
        "dur": end - start,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _counter(pid: int, name: str, ts: int, values: dict[str, int]) -> dict:
    return {"name": name, "ph": "C", "ts": ts, "pid": pid, "args": values}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
