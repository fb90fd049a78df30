"""The dashboard of the lesson: who sits where, with each batching type."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import ipywidgets

from inflight.bench.workload import TimedRequest
from inflight.engine.settings import BATCHING_TYPES
from inflight.lessons.batching.charts import slot_map, slot_map_summary
from inflight.notebook.widgets.dashboard import Dashboard, Frame
from inflight.notebook.widgets.live_runs import Runs
from inflight.triton.serving.server import Server


def board(server: Server, traces: dict[str, list[TimedRequest]], slots: int, log_path: str | Path) -> Dashboard:
    """Choose batching type and trace: the config is edited, the model loaded again, and the slots drawn as they fill.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `ensemble`.
    traces : dict of str to list of TimedRequest
        What there is to choose from, by name.
    slots : int
        The engine's `max_batch_size`.
    log_path : path
        The engine's iteration log.
    """
    runs = Runs(log_path)

    def work(server: Server, gpt_model_type: str, trace: str) -> Generator[Frame, None, None]:
        title = f"{gpt_model_type}, {trace}"
        for so_far in runs.next(server, title, traces[trace], gpt_model_type=gpt_model_type):
            stays = {title: run.stays for title, run in so_far.items()}
            yield Frame(slot_map(stays, slots), slot_map_summary(stays, slots))

    controls = {
        "gpt_model_type": ipywidgets.Dropdown(options=BATCHING_TYPES, description="gpt_model_type"),
        "trace": ipywidgets.Dropdown(options=list(traces), description="trace"),
    }
    return Dashboard(controls, work, server, "Batching: who sits where")
