"""Requests that all wait before the first of them is computed, under either policy: so their counts are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inflight.bench import trace_run
from inflight.bench.trace_run import TraceRun
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client.client import Client

HEAD_START_S = 0.05


def run_behind(
    first: TimedRequest,
    client: Client,
    requests: list[TimedRequest],
    log_path: str | Path,
    tokenizer: ChatTokenizer | None = None,
) -> TraceRun:
    """Send requests while `first` has the cache; the log of the run has the engine's iterations after it.

    Parameters
    ----------
    first : TimedRequest
        Its prompt leaves fewer blocks than any other prompt needs.
    tokenizer : ChatTokenizer, optional
        As in `trace_run.run`.

    Raises
    ------
    CourseError
        A request failed, or came too late.
    """
    behind = [replace(request, at_s=HEAD_START_S + request.at_s) for request in requests]
    whole = trace_run.run(client, [first, *behind], log_path, tokenizer=tokenizer)
    log = whole.log
    leaves = telemetry.shares(log).groupby("request")["iteration"].max().iloc[0]
    before, after = log[log["iteration"] <= leaves], log[log["iteration"] > leaves]
    waited = before["waiting"].iloc[-1]
    if waited != len(requests):
        raise CourseError(f"When the first of {len(requests)} requests began, {waited} waited: run the cell again.")
    return replace(whole, log=after.assign(iteration=range(1, len(after) + 1)))
