"""The dashboards of the course: what is set, what runs, and what is drawn of it meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import ipywidgets
import pandas as pd

from inflight import charts, engine, repository, telemetry, tokenizer, trial, workload
from inflight.client import Client
from inflight.dashboard import Dashboard, Frame
from inflight.executor import BATCHING_TYPES, POLICIES, IterationStats
from inflight.server import Server
from inflight.workload import TimedRequest

STYLE = {"description_width": "10em"}

NO_ITERATION = pd.DataFrame(columns=[field.name for field in dataclasses.fields(IterationStats)])


class _Runs:
    """Runs one after the other on one server, each with other parameters; the one before stays to compare with."""

    def __init__(self, server: Server, log_path: str | Path):
        self._server, self._log_path = server, log_path
        self._before: dict[str, pd.DataFrame] = {}

    def next(self, title: str, requests: list[TimedRequest], **parameters) -> Iterator[dict[str, pd.DataFrame]]:
        """Edit the engine's config, load it again, send `requests`; yield the iteration logs so far, by their title."""
        before = {f"before: {name}": log for name, log in self._before.items()}
        yield {**before, title: NO_ITERATION}
        repository.edit(self._server.repo, "tensorrt_llm", **parameters)
        self._server.load("tensorrt_llm")
        with Client(self._server.grpc_url) as client:
            for so_far in trial.follow(client, requests, self._log_path):
                yield {**before, title: so_far.log}
        self._before = {title: so_far.log}


# Lesson 04: who sits where --------------------------------------------------------------------------------------------

EQUAL = "equal"  # a trace in which nobody waits for anybody
EQUAL_NUMBER, EQUAL_TOKENS = 24, 48


def batching(server: Server, engine_dir: str | Path, log_path: str | Path) -> Dashboard:
    """Choose batching type and trace: the config is edited, the model loaded again, and the seats drawn as they fill.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on the engine in `engine_dir`.
    log_path : path
        Its iteration log.
    """
    seats = engine.read(engine_dir).build_config.max_batch_size
    runs = _Runs(server, log_path)

    def work(gpt_model_type: str, trace: str) -> Iterator[Frame]:
        requests = _trace(trace, engine_dir)
        for logs in runs.next(f"{gpt_model_type}, {trace}", requests, gpt_model_type=gpt_model_type):
            stays = {title: telemetry.seats(log) for title, log in logs.items()}
            yield Frame(charts.seat_map(stays, seats), charts.seat_map_summary(stays, seats))

    return Dashboard({
        "gpt_model_type": ipywidgets.Dropdown(options=BATCHING_TYPES, description="gpt_model_type", style=STYLE),
        "trace": ipywidgets.Dropdown(options=["skewed", "mild", EQUAL], description="trace", style=STYLE),
    }, work)


def _trace(name: str, engine_dir: str | Path) -> list[TimedRequest]:
    if name == EQUAL:
        return [TimedRequest("Tell me a story about a bridge.", EQUAL_TOKENS, 0.0, 0)] * EQUAL_NUMBER
    return workload.trace(name, tokenizer.load(engine_dir))


# Lesson 05: who holds which blocks ------------------------------------------------------------------------------------


def policies(server: Server, requests: list[TimedRequest], log_path: str | Path) -> Dashboard:
    """Choose policy and size of the KV cache: the config is edited, the model loaded again, and the blocks drawn.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on an engine whose `max_seq_len` is at most 1024.
    requests : list of TimedRequest
        What each run sends.
    log_path : path
        The engine's iteration log.
    """
    runs = _Runs(server, log_path)

    def work(policy: str, cache_tokens: int) -> Iterator[Frame]:
        for logs in runs.next(f"{policy}, {cache_tokens:,} tokens", requests, batch_scheduler_policy=policy,
                              max_tokens_in_paged_kv_cache=cache_tokens):
            yield Frame(charts.kv_blocks(logs), charts.kv_blocks_summary(logs))

    look = {"style": {"description_width": "19em"}, "layout": {"width": "42em"}}
    return Dashboard({
        "policy": ipywidgets.Dropdown(options=POLICIES, value="max_utilization", description="batch_scheduler_policy",
                                      **look),
        "cache_tokens": ipywidgets.IntSlider(1280, 1024, 4096, 128, description="max_tokens_in_paged_kv_cache",
                                             continuous_update=False, **look),
    }, work)
