"""The dashboards of the course: what is set, what runs, and what is drawn of it meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import ipywidgets
import pandas as pd

from inflight import charts, engine, repository, tokenizer, trial, workload
from inflight.client import Client
from inflight.dashboard import Dashboard, Frame
from inflight.executor import BATCHING_TYPES, POLICIES, IterationStats
from inflight.server import Server
from inflight.workload import TimedRequest

STYLE = {"description_width": "10em"}

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
    before: dict[str, pd.DataFrame] = {}

    def frame(runs: dict[str, pd.DataFrame]) -> Frame:
        return Frame(charts.seat_map(runs, seats), charts.seat_map_summary(runs, seats))

    def work(gpt_model_type: str, trace: str) -> Iterator[Frame]:
        title = f"{gpt_model_type}, {trace}"
        runs = {f"before: {name}": stays for name, stays in before.items()}
        yield frame({**runs, title: NOBODY})
        repository.edit(server.repo, "tensorrt_llm", gpt_model_type=gpt_model_type)
        server.load("tensorrt_llm")
        with Client(server.grpc_url) as client:
            for so_far in trial.follow(client, _trace(trace, engine_dir), log_path):
                yield frame({**runs, title: so_far.stays})
        before.clear()
        before[title] = so_far.stays

    return Dashboard({
        "gpt_model_type": ipywidgets.Dropdown(options=BATCHING_TYPES, description="gpt_model_type", style=STYLE),
        "trace": ipywidgets.Dropdown(options=["skewed", "mild", EQUAL], description="trace", style=STYLE),
    }, work)


NOBODY = pd.DataFrame(columns=["request", "seat", "first", "last", "prompt_until"])


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
    before: dict[str, pd.DataFrame] = {}

    def frame(runs: dict[str, pd.DataFrame]) -> Frame:
        return Frame(charts.kv_blocks(runs), charts.kv_blocks_summary(runs))

    def work(policy: str, cache_tokens: int) -> Iterator[Frame]:
        title = f"{policy}, {cache_tokens:,} tokens"
        runs = {f"before: {name}": log for name, log in before.items()}
        yield frame({**runs, title: NO_ITERATION})
        repository.edit(server.repo, "tensorrt_llm", batch_scheduler_policy=policy,
                        max_tokens_in_paged_kv_cache=cache_tokens)
        server.load("tensorrt_llm")
        with Client(server.grpc_url) as client:
            for so_far in trial.follow(client, requests, log_path):
                yield frame({**runs, title: so_far.log})
        before.clear()
        before[title] = so_far.log

    look = {"style": {"description_width": "19em"}, "layout": {"width": "42em"}}
    return Dashboard({
        "policy": ipywidgets.Dropdown(options=POLICIES, value="max_utilization", description="batch_scheduler_policy",
                                      **look),
        "cache_tokens": ipywidgets.IntSlider(1280, 1024, 4096, 128, description="max_tokens_in_paged_kv_cache",
                                             continuous_update=False, **look),
    }, work)


NO_ITERATION = pd.DataFrame(columns=[field.name for field in dataclasses.fields(IterationStats)])
