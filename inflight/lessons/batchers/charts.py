"""Lesson 06: which requests share a batch: arrivals as dots, batches as boxes around them, on one time line."""

from __future__ import annotations

from itertools import cycle, groupby
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go

from inflight import machine, tiers
from inflight.notebook.charts.marks import counted, once_in_legend, saying, words
from inflight.notebook.charts.panels import add_strip, axes_of, panels
from inflight.notebook.palette import INK, REQUEST, SHADES, WASTE, pattern, patterns, text_on

if TYPE_CHECKING:
    from inflight.lessons.batchers.batch_run import Outcome

REJECTED, URGENT = REQUEST[3], REQUEST[1]
LANE_PX, ROWS_PX = 20, 130
WAITS_S = 0.003  # shorter than that is no waiting
HELD_BACK_S = 0.02  # an answer takes a moment to arrive; one that takes longer is shown


def batches(runs: dict[str, Outcome]) -> go.Figure:
    """Requests × time: a dot where one arrives, grey while it waits, a box around those that are computed together.

    Below the rows, a lane for each instance with the sizes of its batches. One panel a run, on one scale.

    Parameters
    ----------
    runs : dict of str to Outcome
        By the panel's title: see `batch_run.run`.
    """
    lanes = {title: _instances(run) for title, run in runs.items()}
    panel_px = ROWS_PX + LANE_PX * max(map(len, lanes.values()))
    fig = panels(list(runs), panel_px, [_in_short(run) for run in runs.values()])
    for number, (title, run) in enumerate(runs.items(), 1):
        count, instances = len(run.requests), lanes[title]
        strip = add_strip(fig, number, len(runs), share=LANE_PX * len(instances) / panel_px)
        _draw_requests(fig, run, instances, axes_of(number))
        _draw_lanes(fig, run.executions, instances, strip)
        rows = {"title": "request", "range": [1.08 * count + 1, 0], "showgrid": False, "tickvals": [1, count]}
        names = [f"model {instance}" for instance in instances] if len(instances) > 1 else ["model"]
        ticks = {"tickvals": list(range(len(names))), "ticktext": names}
        of_strip = {"range": [len(names) - 0.4, -0.6], "showgrid": False, **ticks}
        fig.update_layout({f"yaxis{number}": rows, f"yaxis{len(runs) + number}": of_strip})
    end = _whole_ms(max(run.requests["answered_s"].max() for run in runs.values()))
    fig.update_xaxes(range=[-0.01 * end, end * 1.02], showgrid=False)
    fig.update_xaxes(title="time (ms)", row=len(runs), col=1)
    once_in_legend(fig)
    on_the_cpu = {"device": machine.device_name(tiers.CPU)}  # the lesson's models sleep, or add
    return fig.update_layout(barmode="overlay", meta=on_the_cpu)


def batches_summary(runs: dict[str, Outcome]) -> str:
    """The picture of `batches` in a paragraph."""
    parts = [
        f"{title}: {_in_short(run)}; sizes {', '.join(map(str, run.executions['size']))}" for title, run in runs.items()
    ]
    return f"Which requests were computed together. {'. '.join(parts)}."


def _instances(run: Outcome) -> list[int]:
    return sorted(run.executions["instance"].unique().tolist()) or [0]


def _in_short(run: Outcome) -> str:
    rows, number = run.requests, len(run.executions)
    answered, rejected = rows[rows["outcome"] == "answered"], (rows["outcome"] == "rejected").sum()
    said = f"{len(answered)} requests in {counted(number, 'batch', 'batches')}"
    if rejected:
        said += f", {rejected} rejected"
    return said + (f", median latency {answered['latency_ms'].median():.0f} ms" if len(answered) else "")


def _draw_requests(fig: go.Figure, run: Outcome, instances: list[int], axes: dict) -> None:
    rows = run.requests.merge(run.executions[["execution", "start_s", "end_s"]], on="execution", how="left")
    _draw_waiting(fig, rows.assign(until_s=rows["start_s"].fillna(rows["answered_s"])), axes)
    for instance, look in zip(instances, _looks(instances)):
        _draw_boxes(fig, run.executions[run.executions["instance"] == instance], look, axes)
    _draw_held_back(fig, rows[rows["answered_s"] - rows["end_s"] > HELD_BACK_S], axes)
    urgent, rejected = rows["priority"] == 1, rows["outcome"] == "rejected"
    _draw_marks(fig, rows[~urgent], "sent_s", "arrives", {"color": INK, "size": 6}, axes)
    _draw_marks(fig, rows[urgent], "sent_s", "urgent", {"color": URGENT, "size": 10, "symbol": "diamond"}, axes)
    _draw_marks(fig, rows[rejected], "answered_s", "rejected", {"color": REJECTED, "size": 8, "symbol": "x"}, axes)


def _looks(instances: list[int]) -> list[dict]:
    """Name, colour and pattern of what each copy of the model computes."""
    names = ["batch", *(f"batch of model {instance}" for instance in instances[1:])]
    kinds = zip(names, cycle(SHADES), patterns(len(instances)))
    return [{"name": name, "marker": {"color": colour, "pattern": shape}} for name, colour, shape in kinds]


def _draw_waiting(fig: go.Figure, rows: pd.DataFrame, axes: dict) -> None:
    """Grey from a request's arrival until its batch begins or it is rejected."""
    rows = rows[rows["until_s"] - rows["sent_s"] > WAITS_S]
    waits_ms = [_whole_ms(value) for value in rows["until_s"] - rows["sent_s"]]
    fig.add_bar(
        orientation="h",
        base=[_whole_ms(value) for value in rows["sent_s"]],
        x=waits_ms,
        y=rows["request"].tolist(),
        width=1,
        name="waits",
        legendgroup="waits",
        marker={"color": WASTE, "pattern": pattern("-"), "line": {"width": 0}},
        **saying(f"request {request} · waits {ms:,} ms" for request, ms in zip(rows["request"], waits_ms)),
        **axes,
    )


def _draw_held_back(fig: go.Figure, rows: pd.DataFrame, axes: dict) -> None:
    """Dotted from the end of a batch until its answer leaves, where `preserve_ordering` holds it back."""
    if rows.empty:
        return
    spans = [(row.request, _whole_ms(row.end_s), _whole_ms(row.answered_s)) for row in rows.itertuples()]
    name = "held back"  # a short one: the widest entry decides how many rows a phone needs
    fig.add_scatter(
        x=[value for _, *ends in spans for value in (*ends, None)],
        y=[value for request, *_ in spans for value in (request, request, None)],
        mode="lines",
        line={"color": INK, "width": 1.2, "dash": "dot"},
        name=name,
        legendgroup=name,
        **saying(
            f"request {request} · answer held back for {end - begin:,} ms"
            for request, begin, end in spans
            for _ in range(3)
        ),
        **axes,
    )
    _draw_marks(fig, rows, "answered_s", name, {"color": INK, "size": 8, "symbol": "line-ns-open"}, axes)


def _draw_boxes(fig: go.Figure, executions: pd.DataFrame, look: dict, axes: dict) -> None:
    """A box around the requests of a batch; several where others came between them."""
    boxes = [
        (batch, first, last) for batch in executions.itertuples() for first, last in _neighbours(sorted(batch.requests))
    ]
    fig.add_bar(
        orientation="h",
        base=[_whole_ms(batch.start_s) for batch, *_ in boxes],
        x=[_whole_ms(batch.end_s) - _whole_ms(batch.start_s) for batch, *_ in boxes],
        y=[(first + last) / 2 for _, first, last in boxes],
        width=[last - first + 0.9 for _, first, last in boxes],
        legendgroup=look["name"],
        **look,
        **saying(_batch_in_words(batch) for batch, *_ in boxes),
        **axes,
    )


def _batch_in_words(batch: tuple) -> str:
    start, end = _whole_ms(batch.start_s), _whole_ms(batch.end_s)
    return words(
        f"batch {batch.execution}",
        counted(batch.size, "request"),
        f"{end - start:,} ms: {start:,} to {end:,} ms",
        f"model {batch.instance}",
    )


def _neighbours(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    whole = [[number for _, number in run] for _, run in runs]
    return [(run[0], run[-1]) for run in whole]


def _draw_marks(fig: go.Figure, rows: pd.DataFrame, column: str, name: str, marker: dict, axes: dict) -> None:
    if rows.empty:
        return
    moments_ms = [_whole_ms(value) for value in rows[column]]
    fig.add_scatter(
        x=moments_ms,
        y=rows["request"].tolist(),
        mode="markers",
        marker=marker,
        name=name,
        legendgroup=name,
        **saying(f"request {request} · {name} · at {ms:,} ms" for request, ms in zip(rows["request"], moments_ms)),
        **axes,
    )


def _draw_lanes(fig: go.Figure, executions: pd.DataFrame, instances: list[int], axes: dict) -> None:
    for lane, (instance, look) in enumerate(zip(instances, _looks(instances))):
        rows = executions[executions["instance"] == instance]
        # Without its pattern, on which the sizes could not be read.
        marker = {"color": look["marker"]["color"], "line": {"color": "white", "width": 1}}
        fig.add_bar(
            orientation="h",
            base=[_whole_ms(value) for value in rows["start_s"]],
            y=[lane] * len(rows),
            width=0.8,
            x=[_whole_ms(value) for value in rows["end_s"] - rows["start_s"]],
            text=rows["size"].astype(str).tolist(),
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            constraintext="none",
            textfont={"color": text_on(marker["color"]), "size": 12},
            name=look["name"],
            legendgroup=look["name"],
            marker=marker,
            **saying(_batch_in_words(batch) for batch in rows.itertuples()),
            **axes,
        )


def _whole_ms(seconds: float) -> int:
    return round(1000 * float(seconds))
