"""The dynamic batcher on paper: which requests share a batch, from when they come and what a batch costs.

    batches = batches_on_paper([0, 10, 21, 32], delay_ms=0, max_batch_size=8, fixed_ms=40, item_ms=4)
    batches["size"].tolist()                                # [1, 3]
    in_figures([0, 10, 21, 32], batches).mean_batch         # 2.0

Play it event by event: a batch leaves when the model is free and either the batch is full or its oldest request has
waited for the delay. It takes all that wait at that moment, and keeps the model busy for `fixed_ms + item_ms · size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd


def batches_on_paper(
    arrivals_ms: Sequence[float], delay_ms: float, max_batch_size: int, fixed_ms: float, item_ms: float
) -> pd.DataFrame:
    """Batches of one instance: one row each, with `start_ms`, `end_ms` and `size`.

    Parameters
    ----------
    arrivals_ms : sequence of float
        When the requests come. They are served in this order, which is that of time.
    delay_ms : float
        `max_queue_delay_microseconds`, in milliseconds.
    max_batch_size : int
    fixed_ms, item_ms : float
        What a batch costs, and each request in it on top.
    """
    arrivals = sorted(arrivals_ms)
    rows, first, free_ms = [], 0, 0.0
    while first < len(arrivals):
        tired_ms, full = arrivals[first] + delay_ms, first + max_batch_size
        leaves_ms = max(free_ms, min(tired_ms, arrivals[full - 1]) if full <= len(arrivals) else tired_ms)
        end = first
        while end < min(full, len(arrivals)) and arrivals[end] <= leaves_ms:
            end += 1
        free_ms = leaves_ms + fixed_ms + item_ms * (end - first)
        rows.append((leaves_ms, free_ms, end - first))
        first = end
    return pd.DataFrame(rows, columns=["start_ms", "end_ms", "size"])


@dataclass(frozen=True)
class Figures:
    """What a run on paper comes to.

    Attributes
    ----------
    mean_batch : float
        Requests a batch.
    p50_ms, p95_ms : float
        Latency, from the arrival to the end of the batch.
    wait_ms : float
        Mean time from the arrival to the start of the batch.
    busy : float
        Share of the time up to the last answer, 0 to 1, in which the model computes.
    """

    mean_batch: float
    p50_ms: float
    p95_ms: float
    wait_ms: float
    busy: float


def in_figures(arrivals_ms: Sequence[float], batches: pd.DataFrame) -> Figures:
    """The figures of `batches_on_paper`, of the same arrivals."""
    arrivals, sizes = np.sort(arrivals_ms), batches["size"].to_numpy()
    starts, ends = (np.repeat(batches[column].to_numpy(), sizes) for column in ("start_ms", "end_ms"))
    p50_ms, p95_ms = np.quantile(ends - arrivals, [0.5, 0.95])
    computed_ms = (batches["end_ms"] - batches["start_ms"]).sum()
    return Figures(
        float(sizes.mean()), p50_ms, p95_ms, float((starts - arrivals).mean()), float(computed_ms / ends[-1])
    )


def most_a_second(max_batch_size: int, fixed_ms: float, item_ms: float) -> float:
    """Requests a second that one instance answers in full batches: what more comes waits without end."""
    return 1000 * max_batch_size / (fixed_ms + item_ms * max_batch_size)
