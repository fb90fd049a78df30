"""Who had which seat, from the client's own clock: for an engine whose log does not tell."""

from __future__ import annotations

import numpy as np
import pandas as pd

from inflight.bench.load_generator import Run
from inflight.triton import telemetry


def stays(run: Run, log: pd.DataFrame) -> pd.DataFrame:
    """The stays of a run's requests: whose answer begins first has the seat that is free first, to its last token.

    A client sees when a request was sent and when its pieces came, and not when it sat down or was paused. Of an answer
    that came whole, the time when it was sent stands for its beginning.

    Parameters
    ----------
    log : DataFrame
        The iterations of the run, counted from 1 on, for their times and the number of seats.

    Returns
    -------
    DataFrame
        As `telemetry.slots`; `prompt_until` is where the first piece came, of a whole answer its first iteration.
    """
    answered = run.answered
    answered = answered.assign(begins_s=answered["first_s"].fillna(answered["sent_s"])).sort_values("begins_s")
    if log.empty or answered.empty:
        return pd.DataFrame(columns=telemetry.STAY)
    starts = log["timestamp"].to_numpy() - run.started_at
    free_at = np.zeros(max(1, int((log["scheduled"] + log["empty_seats"]).max())))

    def iteration(seconds: float) -> int:
        return int(np.clip(np.searchsorted(starts, seconds, side="right"), 1, len(starts)))

    rows = []
    for request in answered.itertuples():
        seat = int(free_at.argmin())
        latest = request.last_s if pd.isna(request.first_s) else request.first_s  # pieces may overtake each other
        first = iteration(min(max(request.sent_s, free_at[seat]), latest))
        prompt_until = first if pd.isna(request.first_s) else iteration(request.first_s)
        rows.append((request.request, seat + 1, first, iteration(request.last_s), prompt_until))
        free_at[seat] = max(free_at[seat], request.last_s)
    return pd.DataFrame(rows, columns=telemetry.STAY)
