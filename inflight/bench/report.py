"""What a benchmark leaves behind: figures, a row a request, a line of statistics, a time line to look at.

figures = summary(run)
write(Path("run.csv"), requests_csv(run))
write(Path("run.json"), json.dumps(timeline(run)))     # open it at ui.perfetto.dev
"""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench.load import Run
from inflight.errors import CourseError

TIMES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "latency_ms": "end-to-end latency"}
MOST_STATS_BYTES = 1 << 26
# A client keeps up if nearly all requests go out within this time after they were due, or within this share of what an
# answer takes: less is lost in the noise of any machine.
LATE_MS, LATE_SHARE = 10.0, 0.05
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

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


# Figures --------------------------------------------------------------------------------------------------------------


def summary(run: Run) -> dict[str, float | None]:
    """The figures of a run, from the requests that were answered.

    Percentiles lie between the two nearest values in proportion, as in numpy. `in_flight_mean` is Little's law: the sum
    of all latencies over the time in which they passed.

    Returns
    -------
    dict
        `requests` (answered), `errors`; `total_latency_ms` (first request sent to last answer), `requests_per_s`,
        `tokens_per_s` (output), `in_flight_mean`; `input_len_mean`, `output_len_mean` (tokens); of `ttft_ms`, `itl_ms`
        and `latency_ms` each `_mean`, `_p50`, `_p90`, `_p99`; `late_ms_p99`, `late_ms_max`, how much later than due a
        request was sent, of all that were. None where there is nothing to count.
    """
    rows = run.answered
    total_s = rows["last_s"].max() - rows["sent_s"].min()
    figures = {
        "requests": len(rows),
        "errors": len(run.requests) - len(rows),
        "total_latency_ms": total_s * 1000,
        "requests_per_s": len(rows) / total_s,
        "tokens_per_s": rows["output_len"].sum() / total_s,
        "in_flight_mean": rows["latency_ms"].sum() / 1000 / total_s,
        "input_len_mean": rows["input_len"].mean(),
        "output_len_mean": rows["output_len"].mean(),
    }
    for name in TIMES:
        values = rows[name].astype(float)
        figures[f"{name}_mean"] = values.mean()
        figures |= {f"{name}_{label}": values.quantile(share) for label, share in PERCENTILES.items()}
    late_ms = _late_ms(run)
    figures |= {"late_ms_p99": late_ms.quantile(0.99), "late_ms_max": late_ms.max()}
    return {name: _number(value) for name, value in figures.items()}


def _late_ms(run: Run) -> pd.Series:
    """How much later than due each request was sent that was."""
    return ((run.requests["sent_s"] - run.requests["due_s"]).astype(float) * 1000).dropna().clip(lower=0)


def lateness(run: Run) -> str:
    """A sentence when the client could not keep up with its own plan; blank if it did.

    It did if 99 of 100 requests were sent within `LATE_MS` after they were due, or within `LATE_SHARE` of the median
    latency.
    """
    late_ms, latency_ms = _late_ms(run), run.answered["latency_ms"].astype(float)
    least_ms = max(LATE_MS, LATE_SHARE * latency_ms.median()) if len(latency_ms) else LATE_MS
    late = late_ms[late_ms > least_ms]
    if len(late) <= 0.01 * len(late_ms):
        return ""
    return (
        f"The client could not keep up: it sent {len(late)} of {len(late_ms)} requests more than "
        f"{least_ms:.0f} ms after they were due, the latest by {late_ms.max():,.0f} ms. Latency and TTFT "
        "count from when they were due, so that wait is in them; raise --concurrency, lower the rate, or send from "
        "another machine."
    )


def _number(value: float) -> float | None:
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


# Tables ---------------------------------------------------------------------------------------------------------------


def requests_csv(run: Run) -> str:
    """A copy of `Run.requests` as CSV, one line a request; times in seconds and ms rounded to the microsecond."""
    return requests_table(run).to_csv(index=False, lineterminator="\n")


def requests_table(run: Run) -> pd.DataFrame:
    """A copy of `Run.requests`, its times rounded to the microsecond."""
    table = run.requests.copy()
    for column in table.columns:
        if column.endswith(("_s", "_ms")):
            table[column] = table[column].astype(float).round(6 if column.endswith("_s") else 3)
    return table


def with_op_stats(path: Path, run: Run) -> str:
    """The content of the statistics file `path` with a line for `run` added; with a header if there was none.

    Raises
    ------
    CourseError
        As `check_op_stats`.
    """
    before = check_op_stats(path)
    figures, text = summary(run), io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    if not before:
        lines.writerow(OP_STATS)
    lines.writerow([figures[key] if key == "requests" else _precise(figures[key]) for key in OP_STATS.values()])
    return before + text.getvalue()


def _precise(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def check_op_stats(path: Path) -> str:
    """What the statistics file holds; blank if it is not there.

    Raises
    ------
    CourseError
        It cannot be read, or is another kind of table.
    """
    text = files.read_text(path, "statistics", MOST_STATS_BYTES, "Name another file.") if path.exists() else ""
    if text and text.splitlines()[0] != ",".join(OP_STATS):
        raise CourseError(
            f"{path} is a table with other columns than these statistics. Name another file, or a new one."
        )
    return text if not text or text.endswith("\n") else text + "\n"


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


# Files ----------------------------------------------------------------------------------------------------------------


def check_writable(*paths: Path | None) -> None:
    """Refuse now what could not be written after the benchmark.

    Raises
    ------
    CourseError
        A path is a folder, or its folder is not there or cannot be written.
    """
    for path in filter(None, paths):
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise CourseError(f"{path} cannot be written: name a file in a folder that exists and is yours to write.")


def write(path: Path, text: str) -> None:
    """Write `text` to a file that is whole or not there: beside it at first, then renamed.

    Raises
    ------
    CourseError
        The file cannot be written, or the disk is full; what was at `path` is still there.
    """
    try:
        files.replace_text(path, text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise CourseError(
            f"{path} cannot be written ({reason}). Name a file in a folder that exists and has room."
        ) from None
