"""The dashboard of the lesson: who sits where, with each batching type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ipywidgets

from inflight import engine
from inflight.bench import workload
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BATCHING_TYPES
from inflight.lessons.batching.charts import slot_map, slot_map_summary
from inflight.notebook.boards import Runs
from inflight.notebook.dashboard import Dashboard, Frame
from inflight.triton.server import Server

EQUAL = "equal"  # a trace in which nobody waits for anybody
EQUAL_NUMBER, EQUAL_TOKENS = 24, 48


def board(server: Server, engine_dir: str | Path, log_path: str | Path) -> Dashboard:
    """Choose batching type and trace: the config is edited, the model loaded again, and the slots drawn as they fill.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble` on the engine in `engine_dir`.
    log_path : path
        Its iteration log.
    """
    slots = engine.read(engine_dir).build_config.max_batch_size
    runs = Runs(log_path)

    def work(server: Server, gpt_model_type: str, trace: str) -> Iterator[Frame]:
        requests = _trace(trace, engine_dir)
        for so_far in runs.next(server, f"{gpt_model_type}, {trace}", requests, gpt_model_type=gpt_model_type):
            stays = {title: run.stays for title, run in so_far.items()}
            yield Frame(slot_map(stays, slots), slot_map_summary(stays, slots))

    controls = {
        "gpt_model_type": ipywidgets.Dropdown(options=BATCHING_TYPES, description="gpt_model_type"),
        "trace": ipywidgets.Dropdown(options=["skewed", "mild", EQUAL], description="trace"),
    }
    return Dashboard(controls, work, server, "Batching: who sits where")


def _trace(name: str, engine_dir: str | Path) -> list[TimedRequest]:
    if name == EQUAL:
        return [TimedRequest("Tell me a story about a bridge.", EQUAL_TOKENS, 0.0, 0)] * EQUAL_NUMBER
    return workload.trace(name, load_tokenizer(engine_dir))
