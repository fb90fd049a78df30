"""What the engine's log tells of single requests."""

from __future__ import annotations

import math

import pandas as pd

from inflight.triton import telemetry


def last_requests(log: pd.DataFrame, number: int) -> pd.DataFrame:
    """In how many iterations each of the last requests was computed: `iterations`, one row a request.

    NaN where the log does not tell who was in an iteration.
    """
    counted = telemetry.shares(log).groupby("request").agg(iterations=("iteration", "size")).tail(number)
    return counted if telemetry.names_requests(log) else pd.DataFrame({"iterations": [math.nan] * number})
