"""The dashboard of the lesson: who is computed together, as the fields of a batcher are set."""

from __future__ import annotations

import textwrap
from collections.abc import Generator
from pathlib import Path

import ipywidgets
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.bench import workload
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers.batch_run import Arrival, Outcome, at
from inflight.lessons.batchers.charts import batches, batches_summary
from inflight.notebook.widgets import field
from inflight.notebook.widgets.dashboard import Dashboard, Frame
from inflight.notebook.widgets.live_runs import edit_and_load
from inflight.triton import repository
from inflight.triton.repository.batchers import FIELDS, get_field
from inflight.triton.serving.server import Server

# Arrivals by name: few enough that a run without any batcher ends within a second or two.
ARRIVALS = {
    "one every 10 ms": at([0.010 * number for number in range(24)]),
    "one every 60 ms": at([0.060 * number for number in range(16)]),
    "all at once": at([0.0] * 20),
    "at random, 60 a second": at(workload.poisson(24, rate=60, seed=0)),
    "a crowd, then four urgent ones": [
        *at([0.002 * number for number in range(20)]),
        *at([0.060, 0.070, 0.080, 0.090], priority=1),
    ],
    "uneven work": [Arrival(0.010 * number, work=1 if number % 4 else 20) for number in range(16)],
}


BATCHER = "dynamic_batching"
# Other fields that the board edits, in the order in which it shows them.
BATCHER_FIELDS = (
    "max_batch_size",
    "instance_group.count",
    *(name for name in FIELDS if name.startswith(f"{BATCHER}.")),
)


def board(server: Server, log_path: str | Path) -> Dashboard:
    """Choose what arrives at batch-cost, its batcher and the batcher's fields: the config is edited, loaded and drawn.

    With "no batcher" the batcher's fields are ignored. The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `batch-cost`.
    log_path : path
        Its execution log.
    """
    before: dict[str, Outcome] = {}
    config = _batch_cost(server)

    def work(server: Server, arrivals: str, **settings: str) -> Generator[Frame, None, None]:
        if not settings[BATCHER]:
            settings |= {name: "" for name in settings if name.startswith(BATCHER)}
        now = _batch_cost(server)
        changed = {name: text for name, text in settings.items() if text != get_field(now, name)}
        edit_and_load(server, repository.BATCH_COST, **changed)
        batch_run.run(server, repository.BATCH_COST, at([0.0]), log_path)  # the first after a load waits for its start
        outcome = batch_run.run(server, repository.BATCH_COST, ARRIVALS[arrivals], log_path)
        title = _batcher(_batch_cost(server))
        runs = {**{f"before: {name}": run for name, run in before.items()}, f"now: {title}": outcome}
        yield Frame(batches(runs), f"{arrivals}. {batches_summary(runs)}")
        before.clear()
        before[title] = outcome

    controls = {
        "arrivals": ipywidgets.Dropdown(options=list(ARRIVALS), description="arrivals"),
        BATCHER: ipywidgets.Dropdown(options=[("no batcher", ""), (BATCHER, "true")], description="batcher"),
    }
    for name in BATCHER_FIELDS:
        spec = FIELDS[name]
        controls[name] = field(spec, description=name.rpartition(".")[2], tooltip=spec.help)
    for name in (BATCHER, *BATCHER_FIELDS):
        controls[name].value = get_field(config, name)
    return Dashboard(controls, work, server, "Batchers: who is computed together")


def _batch_cost(server: Server) -> ModelConfig:
    return repository.read_config(server.repo / repository.BATCH_COST / repository.CONFIG)


def _batcher(config: ModelConfig) -> str:
    """Describe a config's batching, short enough for a picture's title."""
    if not config.HasField(BATCHER):
        return "no batcher"
    values = {name: get_field(config, name) for name in BATCHER_FIELDS if name != "instance_group.count"}
    said = [f"{name.rpartition('.')[2]} {value}" for name, value in values.items() if value]
    return textwrap.shorten(", ".join(said), 60, placeholder=" …")
