"""Figures of a load, and its requests as a CSV file.

figures = summary(run)
write(Path("run.csv"), run.requests)
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from inflight.bench.load import Run
from inflight.errors import CourseError

TIMES = ("ttft_ms", "tpot_ms", "latency_ms")
# A client keeps up if nearly all requests go out within this time after they were due, or within this share of what an
# answer takes: smaller delays cannot be told from noise.
LATE_MS, LATE_SHARE = 10.0, 0.05
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


# Figures --------------------------------------------------------------------------------------------------------------


def summary(run: Run) -> dict[str, Any]:
    """Compute the figures of a run, from the requests that were answered.

    Percentiles lie between the two nearest values in proportion, as in numpy. `in_flight_mean` is Little's law: the sum
    of all latencies over the time in which they passed.

    Returns
    -------
    dict
        `requests` (answered), `errors`; `total_latency_ms` (first request sent to last answer), `requests_per_s`,
        `tokens_per_s` (output), `in_flight_mean`; `input_len_mean`, `output_len_mean` (tokens); of `ttft_ms`, `tpot_ms`
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
    """Return how many milliseconds late each request was sent."""
    return ((run.requests["sent_s"] - run.requests["due_s"]).astype(float) * 1000).dropna().clip(lower=0)


def lateness(run: Run) -> str:
    """Say in a sentence that the client could not keep up with its own plan; blank if it did.

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
        "count from when they were due, so that wait is in them; lower the rate, or send from another machine."
    )


def _number(value: float) -> float | None:
    """Return a figure for JSON: None where it is not known."""
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


# Files ----------------------------------------------------------------------------------------------------------------


def write(path: Path, requests: pd.DataFrame) -> None:
    """Write `Run.requests` as CSV, one line a request, its times rounded to the microsecond.

    Raises
    ------
    CourseError
        The file cannot be written.
    """
    table = requests.copy()
    for column in table.columns:
        if column.endswith(("_s", "_ms")):
            table[column] = table[column].astype(float).round(6 if column.endswith("_s") else 3)
    try:
        table.to_csv(path, index=False, lineterminator="\n")
    except OSError as error:
        raise CourseError(
            f"{path} cannot be written ({error.strerror}). Name a file in a folder that exists and has room."
        ) from None
