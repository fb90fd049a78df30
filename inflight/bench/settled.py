"""What of a run counts: where its beginning ends, in which queue and batch still fill, and what came after.

    window = steady(run)
    window.served_per_s, window.arrived_per_s

How long the beginning is differs by load, so it is found in the latencies and not guessed: by MSER-5 (White 1997, "An
effective truncation heuristic for bias reduction in simulation output"; in batches of five: Spratt 1998). Of all points
at which a run could be cut, it takes the one after which the mean of what is left is known best: the least variance
over the number of values.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from inflight.bench.load_generator import Run

BATCH = 5


@dataclass(frozen=True)
class Window:
    """The part of a run that counts: from the end of its beginning to its last arrival.

    Attributes
    ----------
    requests : DataFrame
        The rows of `Run.requests` that were due in it, in that order.
    skipped : int
        Requests before it.
    seconds : float
    arrived, served : int
        Requests that were due in it; answers that ended in it, whenever they were asked for.
    """

    requests: pd.DataFrame
    skipped: int
    seconds: float
    arrived: int
    served: int

    @property
    def arrived_per_s(self) -> float:
        return self.arrived / self.seconds if self.seconds > 0 else 0.0

    @property
    def served_per_s(self) -> float:
        return self.served / self.seconds if self.seconds > 0 else 0.0


def steady(run: Run) -> Window:
    """The part of an open loop's run that counts; of a run that ended early, of what was sent.

    The last arrival is its end, not the last answer: when nothing comes any more, batch and queue only empty.
    """
    rows = run.requests[run.requests["sent_s"].notna()].sort_values("due_s", kind="stable")
    answered = rows[rows["error"] == ""]
    if answered.empty:
        return Window(rows, 0, 0.0, 0, 0)
    skipped = beginning(answered["latency_ms"].astype(float).tolist())
    start_s = answered["due_s"].iloc[skipped]
    end_s = rows["due_s"].iloc[-1]
    counted = rows[rows["due_s"] >= start_s]
    served = answered["last_s"].between(start_s, end_s, inclusive="right").sum()
    # One arrival opens the window, and is no arrival within it.
    return Window(counted, len(rows) - len(counted), end_s - start_s, len(counted) - 1, int(served))


def beginning(values: list[float]) -> int:
    """How many of the first values belong to the beginning: a multiple of `BATCH`, at most half of them; MSER-5.

    Values are in the order of their time. Fewer than four batches tell nothing, and none is left out.
    """
    means = [sum(values[at : at + BATCH]) / BATCH for at in range(0, len(values) - BATCH + 1, BATCH)]
    if len(means) < 4:
        return 0

    def doubt(cut: int) -> float:
        left = means[cut:]
        mean = sum(left) / len(left)
        return sum((value - mean) ** 2 for value in left) / len(left) ** 2

    return BATCH * min(range(len(means) // 2 + 1), key=doubt)
