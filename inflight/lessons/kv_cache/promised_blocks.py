"""Blocks that are promised and not yet held: what an iteration log cannot know, for it does not see `max_tokens`."""

from __future__ import annotations

import pandas as pd

from inflight.bench.trace_run import TraceRun
from inflight.triton import telemetry


def idle(run: TraceRun) -> pd.DataFrame:
    """Divide the free blocks into promised and unpromised ones, under `guaranteed_no_evict`.

    Parameters
    ----------
    run : TraceRun
        Whole: it has the row of each request in its log.

    Returns
    -------
    DataFrame
        One row an iteration: `iteration`, `promised` to those who run, and `to_nobody`; both in blocks.
    """
    log, table = run.log, telemetry.shares(run.log)
    names = {share[0]: name for row in log.itertuples() for share, name in zip(row.requests, row.client_ids)}
    longest = run.requests.set_index("request_id")[["input_len", "max_tokens"]].sum(axis=1)
    whole = -(-longest.loc[table["request"].map(names)].to_numpy() // int(log["tokens_per_block"].iloc[0]))
    promised = (whole - table["blocks"]).groupby(table["iteration"]).sum()
    free = log.set_index("iteration")["kv_blocks_free"]
    promised = promised.reindex(free.index, fill_value=0).clip(upper=free)  # who has just left holds no promise
    return pd.DataFrame({"promised": promised, "to_nobody": free - promised}).reset_index()
