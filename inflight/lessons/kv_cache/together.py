"""Requests that all wait before the first of them is computed, under either policy: so their counts are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client.client import Client

HEAD_START_S = 0.05


def log_behind(
    first: TimedRequest,
    client: Client,
    requests: list[TimedRequest],
    log_path: str | Path,
    tokenizer: ChatTokenizer | None = None,
) -> pd.DataFrame:
    """Send requests while `first` has the cache, and return the engine's iterations after it.

    Parameters
    ----------
    first : TimedRequest
        Its prompt leaves fewer blocks than any other prompt needs.
    tokenizer : ChatTokenizer, optional
        As in `trace_run.run`.

    Returns
    -------
    DataFrame
        See `trace_run.TraceRun`.

    Raises
    ------
    CourseError
        A request failed, or came too late.
    """
    behind = [replace(request, at_s=HEAD_START_S + request.at_s) for request in requests]
    log = trace_run.run(client, [first, *behind], log_path, tokenizer=tokenizer).log
    leaves = telemetry.shares(log).groupby("request")["iteration"].max().iloc[0]
    before, after = log[log["iteration"] <= leaves], log[log["iteration"] > leaves]
    waited = before["waiting"].iloc[-1]
    if waited != len(requests):
        raise CourseError(f"When the first of {len(requests)} requests began, {waited} waited: run the cell again.")
    return after.assign(iteration=range(1, len(after) + 1))
