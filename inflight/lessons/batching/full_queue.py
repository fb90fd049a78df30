"""A fair start: every request waits in the engine before the first of them is computed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from inflight import files
from inflight.bench.load import Run, send_all
from inflight.bench.senders import Sender
from inflight.bench.trace_run import TraceRun
from inflight.bench.workload import TimedRequest
from inflight.triton import telemetry
from inflight.triton.client.connection import Connection
from inflight.triton.repository.layout import ENGINE
from inflight.triton.serving.server import Server

GATE = "gate"  # the id of the request that keeps the others waiting
APART_S = 0.04  # so that requests arrive in their order
WITHIN_S = 60.0


def run_from_full_queue(
    server: Server, requests: list[TimedRequest], log_path: str | Path, max_seq_len: int
) -> TraceRun:
    """Send a trace while another request holds the whole KV cache; end that one when all others wait.

    Nobody can be admitted before: a static batch does not begin while one runs, and in flight, with
    `guaranteed_no_evict`, there are no blocks to promise. So `max_tokens_in_paged_kv_cache` must be `max_seq_len`,
    which has to hold as many of the requests as there are slots.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble`.
    requests : list of TimedRequest
        In the order in which they are to wait.
    log_path : path
        The engine's iteration log.
    max_seq_len : int
        The engine's, in tokens.

    Returns
    -------
    TraceRun
        Times and iterations count from the moment at which the gate opened, of `requests` alone.

    Raises
    ------
    CourseError
        A request failed, or not all of them waited within a minute.
    """
    start = files.size(log_path)
    with Connection(server.grpc_url) as gate, Sender(server.grpc_url) as send, ThreadPoolExecutor(1) as pool:
        gate.open_stream()
        gate.send_on_stream(ENGINE, _longest(max_seq_len), request_id=GATE)
        _wait_for(server, "active", 1)
        in_order = [replace(request, at_s=number * APART_S) for number, request in enumerate(requests)]
        running = pool.submit(send_all, send, in_order)
        _wait_for(server, "waiting", len(requests))
        gate.end_stream()
        run = running.result().whole()
    log = telemetry.iterations(log_path, start)
    log = log[[ids != [GATE] for ids in log["client_ids"]]]
    opened_s = log["timestamp"].iloc[0] - run.started_at
    times = run.requests.assign(due_s=0.0, sent_s=0.0, last_s=run.requests["last_s"] - opened_s)
    times["latency_ms"] = times["last_s"] * 1000
    return TraceRun(Run(times, run.started_at + opened_s), log.assign(iteration=range(1, len(log) + 1)))


def _longest(max_seq_len: int) -> dict[str, np.ndarray]:
    """A request of one token for the longest answer that the engine allows, without an end."""
    values = {"input_ids": 1, "input_lengths": 1, "request_output_len": max_seq_len - 1}
    return {name: np.array([[value]], np.int32) for name, value in values.items()}


def _wait_for(server: Server, state: str, number: int) -> None:
    def count() -> float:
        metrics = telemetry.metrics(telemetry.page(server.metrics_url))
        is_ours = (metrics["name"] == "nv_trt_llm_request_metrics") & (metrics["label"] == state)
        return metrics.loc[is_ours, "value"].sum()

    telemetry.wait_for(count, lambda found: found >= number, f"Not all {number} requests came to wait.", WITHIN_S)
