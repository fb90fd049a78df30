"""Blocks that are promised and not yet held: what an iteration log cannot know, for it does not see `max_tokens`."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.triton import telemetry


def idle(log: pd.DataFrame, requests: Sequence[TimedRequest]) -> pd.DataFrame:
    """Divide the free blocks into promised and unpromised ones, under `guaranteed_no_evict`.

    Parameters
    ----------
    log : DataFrame
        Of one run of `requests`: see `telemetry.iterations`. Prompts are computed whole.
    requests : sequence of TimedRequest
        Those whose prompts are equally long are told apart by their order alone.

    Returns
    -------
    DataFrame
        One row an iteration: `iteration`, `promised` to those who run, and `to_nobody`; both in blocks.

    Raises
    ------
    CourseError
        The log is not one of these requests.
    """
    table = telemetry.shares(log)
    prompts = table.groupby("request")["context"].first()  # ids go up in the order in which requests came
    wanted: dict[int, list[TimedRequest]] = {}
    for request in requests:
        wanted.setdefault(request.input_len, []).append(request)
    longest = {}
    for number, prompt in prompts.items():
        if not wanted.get(prompt):
            raise CourseError(
                f"The iteration log has a prompt of {prompt} tokens that is none of these requests': give the "
                "requests of this run, each with its own log."
            )
        longest[number] = prompt + wanted[prompt].pop(0).max_tokens
    whole = -(-table["request"].map(longest) // int(log["tokens_per_block"].iloc[0]))
    promised = (whole - table["blocks"]).groupby(table["iteration"]).sum()
    free = log.set_index("iteration")["kv_blocks_free"]
    promised = promised.reindex(free.index, fill_value=0).clip(upper=free)  # who has just left holds no promise
    return pd.DataFrame({"promised": promised, "to_nobody": free - promised}).reset_index()
