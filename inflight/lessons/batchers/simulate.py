"""The dynamic batcher on paper: which requests share a batch, from when they come and what a batch costs.

    played = simulate([0, 10, 21, 32], delay_ms=0, max_batch_size=8, fixed_ms=40, item_ms=4)
    played.sizes                                            # [1, 3]
    played.mean_batch, played.p95_ms                        # 2.0, 84.7

Play it event by event: a batch leaves when the model is free and either the batch is full or its oldest request has
waited for the delay. It takes all that wait at that moment, and keeps the model busy for `fixed_ms + item_ms · size`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SimulatedBatches:
    """The result of a run on paper.

    Attributes
    ----------
    sizes : list of int
        Requests in each batch, in the order in which batches leave.
    latencies_ms : ndarray of float
        Milliseconds from each request's arrival to the end of its batch.
    """

    sizes: list[int]
    latencies_ms: np.ndarray

    @property
    def mean_batch(self) -> float:
        """Requests in a batch, on average."""
        return float(np.mean(self.sizes))

    @property
    def p95_ms(self) -> float:
        return float(np.quantile(self.latencies_ms, 0.95))


def simulate(
    arrivals_ms: Sequence[float], delay_ms: float, max_batch_size: int, fixed_ms: float, item_ms: float
) -> SimulatedBatches:
    """Batches of one instance.

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
    sizes, latencies_ms, first, free_ms = [], [], 0, 0.0
    while first < len(arrivals):
        tired_ms, full = arrivals[first] + delay_ms, first + max_batch_size
        leaves_ms = max(free_ms, min(tired_ms, arrivals[full - 1]) if full <= len(arrivals) else tired_ms)
        end = first
        while end < min(full, len(arrivals)) and arrivals[end] <= leaves_ms:
            end += 1
        free_ms = leaves_ms + fixed_ms + item_ms * (end - first)
        sizes.append(end - first)
        latencies_ms += [free_ms - arrival for arrival in arrivals[first:end]]
        first = end
    return SimulatedBatches(sizes, np.array(latencies_ms))
