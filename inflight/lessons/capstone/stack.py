"""The learner's own stack: its prices, and their client as a load sends with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from tritonclient.utils import InferenceServerException

from inflight.bench import trace_run
from inflight.bench.senders import NEVER, Timing
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.lessons.capstone.contract import Traffic
from inflight.lessons.capstone.rehearsal import Prices
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server

SIDE_BY_SIDE = (1, 2, 4, 8)


def prices_of(server: Server, log_path: str | Path, traffic: Traffic) -> Prices:
    """Measure the cost of iterations on a server as the lecture does: requests side by side, streamed.

    Parameters
    ----------
    log_path : path
        The engine's iteration log.
    """
    alike = [replace(one, at_s=0.0, max_tokens=24) for one in traffic.requests(rate=1.0, seed=0, number=10)]
    with Client(server.grpc_url, timeout_s=600) as client:
        trace_run.run(client, alike[:2], log_path, stream=True)  # an engine's first requests are its slowest
        logs = [trace_run.run(client, alike[2 : 2 + most], log_path, stream=True).log for most in SIDE_BY_SIDE]
    return prices_in(pd.concat([log.assign(ms=1000 * log["timestamp"].diff().shift(-1)).dropna() for log in logs]))


def prices_in(log: pd.DataFrame) -> Prices:
    """The prices that iterations show: `ms` from the start of each to that of the next, with 1, 2, 4 and 8 answers."""
    has_prompt = log["context_tokens"] > 0
    means = log[~has_prompt].groupby("generation_tokens")["ms"].mean().reindex(SIDE_BY_SIDE).dropna()
    answer_ms, iteration_ms = np.polyfit(means.index.astype(float), means, 1)
    first = log[has_prompt]
    beyond_ms = first["ms"] - iteration_ms - answer_ms * first["generation_tokens"]
    return Prices(float(iteration_ms), float(answer_ms), float(beyond_ms.sum() / first["context_tokens"].sum()))


def clock(log: pd.DataFrame, prices: Prices) -> float:
    """So many times as long as the prices say the iterations of a log took, idle time left out."""
    ms = 1000 * log["timestamp"].diff().shift(-1)
    ms = ms[log["active"] > log["finished"]].dropna()
    busy = log.loc[ms.index]
    priced_ms = prices.of_counts(len(busy), busy["generation_tokens"].sum(), busy["context_tokens"].sum())
    return float(ms.sum() / priced_ms)


class OwnClient:
    """Sends each request of a load with `ask` of lab 03, so that its answer has exactly as many tokens as asked for.

    Parameters
    ----------
    ask : callable
        `ask(url, prompt, max_tokens=…, end_id=…)`; its answer has `times_s`, seconds after the call.
    url : str
        Of the server, gRPC.
    """

    def __init__(self, ask: Callable, url: str):
        self.ask, self.url, self._aborted = ask, url, False

    def __call__(self, request: TimedRequest) -> Timing:
        sent_ns = time.perf_counter_ns()
        try:
            answer = self.ask(self.url, request.text, max_tokens=request.max_tokens, end_id=NEVER)
        except InferenceServerException as error:
            raise CourseError(f"The server gave no answer: {error.message()}") from error
        first_ns, last_ns = (sent_ns + round(1e9 * answer.times_s[place]) for place in (0, -1))
        return Timing(sent_ns, first_ns, last_ns, request.max_tokens)

    def is_alive(self) -> bool:
        return not self._aborted

    def abort(self) -> None:
        """Send nothing more; what is under way runs to its end."""
        self._aborted = True
