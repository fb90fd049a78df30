"""Runs a trace against a running server, and returns what its clients saw and what its engine did."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench import report
from inflight.bench.load import NO_RUN, Run, send_all
from inflight.bench.senders import Sender
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.triton import telemetry
from inflight.triton.client.client import Client

LOOK_EVERY_S = 0.1  # how often `follow` reads the iteration log


@dataclass(frozen=True)
class TraceRun:
    """The results of one trace, as seen by its clients and by the engine.

    Attributes
    ----------
    run : load.Run
        What the clients saw.
    log : DataFrame
        One row an iteration: see `telemetry.iterations`; `iteration` counts from 1 on.
        Empty for a model without an engine.
    """

    run: Run
    log: pd.DataFrame

    @property
    def requests(self) -> pd.DataFrame:
        """The requests, a row each: see `load.Run`."""
        return self.run.requests

    @property
    def tokens_per_s(self) -> float:
        """Output tokens over the time from the first request sent to the last answer."""
        return report.summary(self.run)["tokens_per_s"]

    @property
    def stays(self) -> pd.DataFrame:
        """The slots that the requests ran in: see `telemetry.slots`."""
        return telemetry.slots(self.log)


def run(
    client: Client,
    requests: list[TimedRequest],
    log_path: str | Path,
    stream: bool = False,
    tokenizer: ChatTokenizer | None = None,
    concurrency: int | None = None,
) -> TraceRun:
    """Send a trace and wait for all answers, each exactly as long as asked for.

    Parameters
    ----------
    log_path : path
        The engine's iteration log; the part of it that this run adds is read.
    stream : bool
        Ask for answers in pieces; see `senders.Sender`.
    tokenizer : ChatTokenizer, optional
        The model's: answers end by themselves then, and what is asked for is the most that they may have.
    concurrency : int, optional
        So many users, each with one request under way; by default each request is sent at its time.

    Raises
    ------
    CourseError
        A request failed, with the first reason.
    """
    start = files.size(log_path)
    with Sender(client.url, stream=stream, tokenizer=tokenizer, timeout_s=client.timeout_s) as send:
        whole = send_all(send, requests, concurrency).whole()
    return TraceRun(whole, _log(log_path, start))


def follow(client: Client, requests: list[TimedRequest], log_path: str | Path) -> Iterator[TraceRun]:
    """Run a trace as `run` does, and yield what the engine has done so far: `requests` is empty but in the last one.

    For pictures, not for measurements: reading the log takes time from the engine. Closed early, as when a loop over it
    is left, it ends the requests that are under way.
    """
    start = files.size(log_path)
    with Sender(client.url, timeout_s=client.timeout_s) as send, ThreadPoolExecutor(1) as pool:
        running = pool.submit(send_all, send, requests)
        try:
            while not wait([running], timeout=LOOK_EVERY_S).done:
                if files.size(log_path) > start:
                    yield TraceRun(NO_RUN, _log(log_path, start))
        finally:
            if not running.done():
                send.abort()
    yield TraceRun(running.result().whole(), _log(log_path, start))


def _log(log_path: str | Path, start: int) -> pd.DataFrame:
    """Read what the engine has added to its log since it had `start` bytes, counted from 1 on; empty without a log."""
    log = telemetry.iterations(log_path if Path(log_path).exists() else os.devnull, start)
    return log.assign(iteration=range(1, len(log) + 1))
