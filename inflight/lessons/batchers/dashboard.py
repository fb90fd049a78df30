"""The dashboard of the lesson: who is computed together, as the fields of a batcher are set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import ipywidgets
import plotly.graph_objects as go
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.bench import workload
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers.batch_run import Arrival, Outcome, at
from inflight.lessons.batchers.charts import batches, batches_summary
from inflight.notebook.boards import edit_and_load
from inflight.notebook.dashboard import Dashboard
from inflight.triton import repository
from inflight.triton.repository.batchers import FIELDS, get_field
from inflight.triton.server import Server

# What may arrive, by its name: few enough that a run without any batcher ends within a second or two.
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
# What the board edits, in the order in which it shows them.
BATCHER_FIELDS = (
    "max_batch_size",
    "instance_group.count",
    *(name for name in FIELDS if name.startswith(BATCHER)),
)


class Batches(NamedTuple):
    """A picture of batches, in words too, and the sizes of those that were drawn last."""

    figure: go.Figure
    alt: str
    sizes: list[int]


def board(server: Server, log_path: str | Path) -> Dashboard:
    """Choose what arrives at batch-cost and the fields of its batcher: its config is edited and loaded, then drawn.

    The run before stays above, on the same scale.

    Parameters
    ----------
    server : Server
        Runs, and serves `batch-cost`.
    log_path : path
        Its execution log.
    """
    before: dict[str, Outcome] = {}
    config = _batch_cost(server)

    def work(server: Server, arrivals: str, **settings) -> Iterator[Batches]:
        now = _batch_cost(server)
        changed = {name: text for name, text in settings.items() if text != get_field(now, name)}
        edit_and_load(server, repository.BATCH_COST, **changed)
        batch_run.run(server, repository.BATCH_COST, at([0.0]), log_path)  # the first after a load waits for its start
        outcome = batch_run.run(server, repository.BATCH_COST, ARRIVALS[arrivals], log_path)
        title = _batcher(_batch_cost(server))
        runs = {**{f"before: {name}": run for name, run in before.items()}, f"now: {title}": outcome}
        yield Batches(batches(runs), f"{arrivals}. {batches_summary(runs)}", outcome.executions["size"].tolist())
        before.clear()
        before[title] = outcome

    fields = {name: _field(name, get_field(config, name)) for name in BATCHER_FIELDS}
    _in_step(fields)
    controls = {"arrivals": ipywidgets.Dropdown(options=list(ARRIVALS), description="arrivals"), **fields}
    return Dashboard(controls, work, server, "Batchers: who is computed together")


def _batch_cost(server: Server) -> ModelConfig:
    return repository.read_config(server.repo / repository.BATCH_COST / repository.CONFIG)


def _field(name: str, text: str) -> ipywidgets.ValueWidget:
    """A field of the config: blank means that it is not there."""
    spec, called = FIELDS[name], name.rpartition(".")[2]
    choices = {"bool": ("true",), "choice": spec.choices}.get(spec.kind)
    if choices is None:
        return ipywidgets.Text(text, description=called, tooltip=spec.help)
    options = [("(blank)", ""), *((choice, choice) for choice in choices)]
    return ipywidgets.Dropdown(options=options, value=text, description=called, tooltip=spec.help)


def _in_step(fields: dict[str, ipywidgets.ValueWidget]) -> None:
    """Let the batcher and its fields say the same: to fill in one of them chooses it, to take it away empties them.

    Otherwise the controls would name a delay and no batcher, and which of the two was meant would depend on the file.
    """
    batcher = fields[BATCHER]
    of_it = [field for name, field in fields.items() if name.startswith(f"{BATCHER}.")]

    def chosen(change) -> None:
        if change["new"]:
            batcher.value = "true"

    def taken_away(change) -> None:
        for field in of_it if not change["new"] else []:
            field.value = ""

    for field in of_it:
        field.observe(chosen, "value")
    batcher.observe(taken_away, "value")


def _batcher(config: ModelConfig) -> str:
    """What a config says of batches, as short as a picture's title has to be."""
    if not config.HasField(BATCHER):
        return "no batcher"
    values = {name: get_field(config, name) for name in BATCHER_FIELDS if name not in (BATCHER, "instance_group.count")}
    said = [f"{name.rpartition('.')[2]} {value}" for name, value in values.items() if value]
    return textwrap.shorten(", ".join(said), 60, placeholder=" …")
