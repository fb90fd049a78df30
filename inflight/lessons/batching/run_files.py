"""Files of a run that colleagues can open: a line of statistics, and a time line to look at.

op_stats(run)                                                # the columns of TensorRT-LLM's own client
Path("run.json").write_text(json.dumps(timeline(run, log)))  # open it at ui.perfetto.dev
"""

from __future__ import annotations

import math
from collections.abc import Iterator

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


def timeline(run: Run, iterations: pd.DataFrame) -> dict:
    """The run in the Chrome JSON trace event format, which ui.perfetto.dev opens. Times in µs since the run's start.

    Parameters
    ----------
    run : Run
    iterations : DataFrame
        `telemetry.iterations` of the engine's log; what was before the run is left out.

    Returns
    -------
    dict
        `traceEvents`: each answered request on a track of its own, divided at the first token if its time is known, and
        below the requests the engine's iterations.
    """
    names = [
        {"name": "process_name", "ph": "M", "pid": REQUESTS, "args": {"name": "requests"}},
        {"name": "process_name", "ph": "M", "pid": ENGINE, "args": {"name": "engine"}},
    ]
    return {"traceEvents": [*names, *_requests(run.answered), *_iterations(run, iterations)]}


def _requests(rows: pd.DataFrame) -> Iterator[dict]:
    for row in rows.itertuples():
        track = {"pid": REQUESTS, "tid": int(row.request) + 1}  # thread 0 is the idle one
        lengths = {"isl": int(row.input_len), "osl": int(row.output_len)}
        yield _slice(f"req_{row.request}", row.sent_s, row.last_s, **track, **lengths)
        if not math.isnan(row.first_s):
            yield _slice("waiting and prefill", row.sent_s, row.first_s, **track)
            yield _slice("decode", row.first_s, row.last_s, **track)


def _iterations(run: Run, iterations: pd.DataFrame) -> Iterator[dict]:
    log = iterations[iterations["timestamp"] >= run.started_at]
    starts_s = (log["timestamp"] - run.started_at).tolist()
    for row, start_s, next_s in zip(log.itertuples(), starts_s, [*starts_s[1:], math.inf]):
        # The wall clock of the log may be adjusted a little meanwhile; iterations follow each other all the same.
        end_s = max(start_s, min(start_s + row.iteration_ms / 1000, next_s))
        counts = {name: int(getattr(row, name)) for name in ("scheduled", "context_tokens", "generation_tokens")}
        yield _slice(f"iteration {row.iteration}", start_s, end_s, ENGINE, 1, **counts)


def _slice(name: str, start_s: float, end_s: float, pid: int, tid: int, **args: int) -> dict:
    start, end = round(start_s * 1e6), round(end_s * 1e6)
    return {"name": name, "ph": "X", "ts": start, "dur": end - start, "pid": pid, "tid": tid, "args": args}
