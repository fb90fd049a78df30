"""Reads a GPT-2 model's log of its executions as tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from inflight.triton import telemetry

COLUMNS = ["timestamp", "iteration", "iteration_ms", "sequences", "slots_used", "slots_max", "waiting", "empty_slots"]


def executions(path: str | Path, start: int = 0) -> pd.DataFrame:
    """The iteration log that a GPT-2 model writes when `iteration_log_path` is set; `path` and `start` as there.

    One row an execution in which something was computed: `timestamp` in seconds since 1970 at its start; `iteration`,
    counted; `iteration_ms` until its tokens were known; `sequences`, which `passes` has as a table; `slots_used` while
    it was computed, and `slots_max`; `waiting`, requests that no slot was free for; `empty_slots` of Triton's
    batch, which it keeps for sequences that have no request now.
    """
    return telemetry.read_log(path, "iteration", COLUMNS, start)


def passes(log: pd.DataFrame) -> pd.DataFrame:
    """List which sequence was in which forward pass of a GPT-2 model, from the log of its `executions`.

    One row a sequence and pass: `iteration`, from 1; `sequence`, from 1 in the order of their first pass;
    `correlation_id`; `start`, whether it was new; `slot` of the KV cache, or None; `length`, tokens of text after the
    pass; `computed`, tokens that went through the model.
    """
    rows = [(number, *row) for number, sequences in enumerate(log["sequences"], 1) for row in sequences]
    table = pd.DataFrame(rows, columns=["iteration", "correlation_id", "start", "slot", "length", "computed"])
    table.insert(1, "sequence", pd.factorize(table["correlation_id"])[0] + 1)
    return table
