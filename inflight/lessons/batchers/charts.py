"""Lesson 06: which requests share a batch: arrivals as dots, batches as boxes around them, on one time line."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, groupby
from typing import TYPE_CHECKING, Any

import pandas as pd
import plotly.graph_objects as go

from inflight import machine, tiers
from inflight.notebook.charts.marks import counted, once_in_legend, saying
from inflight.notebook.charts.palette import DECODE, INK, ON_SHADES, PREFILL, REQUEST, SHADES, SYMBOLS, WASTE, pattern
from inflight.notebook.charts.panels import add_strip, axes_of, panels

if TYPE_CHECKING:
    from inflight.lessons.batchers.batch_run import Outcome

LANE_PX, ROWS_PX = 20, 130
PATTERNS = [pattern(shape) for shape in ("", "/", "x", ".")]
VIEWS = (DECODE, PREFILL, REQUEST[0])  # ways to look at one load
WAITS_S = 0.003  # shorter than that is no waiting
WAITING = {"color": WASTE, "pattern": pattern("-"), "line": {"width": 0}}
# Events marked by a symbol: which rows, at which moment, how.
MARKS = {
    "arrives": ("priority != 1", "sent_s", {"color": INK, "size": 6}),
    "urgent": ("priority == 1", "sent_s", {"color": REQUEST[1], "size": 10, "symbol": "diamond"}),
    "rejected": ("outcome == 'rejected'", "answered_s", {"color": REQUEST[3], "size": 8, "symbol": "x"}),
}


def batches(runs: dict[str, Outcome]) -> go.Figure:
    """Requests × time: a dot where one arrives, grey while it waits, a box around those that are computed together.

    Below the rows, a lane for each instance with the sizes of its batches. One panel a run, on one scale.

    Parameters
    ----------
    runs : dict of str to Outcome
        By the panel's title: see `batch_run.run`.
    """
    lanes = [sorted(run.executions["instance"].unique().tolist()) or [0] for run in runs.values()]
    panel_px = ROWS_PX + LANE_PX * max(map(len, lanes))
    fig = panels(list(runs), panel_px, [_in_short(run) for run in runs.values()])
    for number, (run, instances) in enumerate(zip(runs.values(), lanes), 1):
        strip = add_strip(fig, number, len(runs), share=LANE_PX * len(instances) / panel_px)
        _draw_requests(fig, run, axes_of(number))
        names = ["batch", *(f"batch of model {instance}" for instance in instances[1:])]
        looks = zip(instances, names, cycle(SHADES), cycle(PATTERNS))
        for lane, (instance, name, colour, shape) in enumerate(looks):
            of_it = run.executions[run.executions["instance"] == instance]
            _draw_boxes(fig, of_it, name, {"color": colour, "pattern": shape}, axes_of(number))
            _draw_lane(fig, of_it, name, colour, lane, strip)
        count = len(run.requests)
        rows = {"title": "request", "range": [1.08 * count + 1, 0], "showgrid": False, "tickvals": [1, count]}
        called = [f"model {instance}" for instance in instances] if len(instances) > 1 else ["model"]
        ticks = {"tickvals": list(range(len(called))), "ticktext": called}
        of_strip = {"range": [len(called) - 0.4, -0.6], "showgrid": False, **ticks}
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


def latencies(views: pd.DataFrame, limit_ms: float) -> tuple[go.Figure, str]:
    """Latency against the moment at which a request was due, a symbol for each view of it; and the same in words.

    Parameters
    ----------
    views : DataFrame
        A column a view, in milliseconds; the index is when the request was due, in seconds.
    limit_ms : float
        A request that takes longer is late.
    """
    p95, late = views.quantile(0.95), (views > limit_ms).sum()
    fig = go.Figure()
    # The first view has the fewest late ones, and lies on top.
    for (view, latency_ms), colour, symbol in [*zip(views.items(), VIEWS, SYMBOLS)][::-1]:
        texts = [f"{view} · due at {due_s:.2f} s · {ms:,.0f} ms" for due_s, ms in latency_ms.items()]
        marker = {"color": colour, "symbol": symbol, "size": 5 if view == views.columns[0] else 8}
        name = f"{view}: {late[view]} late"
        fig.add_scatter(x=views.index, y=latency_ms, mode="markers", name=name, marker=marker, **saying(texts))
    note = {"annotation_text": f"late: above {limit_ms:,.0f} ms", "annotation_position": "top left"}
    fig.add_hline(y=limit_ms, line={"color": WASTE, "dash": "dash", "width": 1}, **note)
    fig.update_xaxes(title="when the request was due (s)")
    fig.update_yaxes(title="latency (ms)", rangemode="tozero")
    fig.update_layout(showlegend=True, meta={"device": machine.device_name(tiers.CPU)})
    told = "; ".join(f"{view}, {p95[view]:,.0f} ms and {late[view]}" for view in views)
    return fig, f"P95, and requests slower than {limit_ms:,.0f} ms: {told}."


def _in_short(run: Outcome) -> str:
    rows, number = run.requests, len(run.executions)
    answered, rejected = rows[rows["outcome"] == "answered"], (rows["outcome"] == "rejected").sum()
    said = f"{len(answered)} requests in {counted(number, 'batch', 'batches')}"
    if rejected:
        said += f", {rejected} rejected"
    return said + (f", median latency {answered['latency_ms'].median():.0f} ms" if len(answered) else "")


def _draw_requests(fig: go.Figure, run: Outcome, axes: dict) -> None:
    """Grey from a request's arrival until its batch begins or it is rejected, and marks."""
    starts = run.executions.set_index("execution")["start_s"]
    rows = run.requests.assign(until_s=run.requests["execution"].map(starts).astype(float))
    rows["until_s"] = rows["until_s"].fillna(rows["answered_s"])
    waits = rows[rows["until_s"] - rows["sent_s"] > WAITS_S]
    spans = list(zip(waits["sent_s"], waits["until_s"]))
    texts = [
        f"request {request} · waits {_whole_ms(end - begin):,} ms"
        for request, (begin, end) in zip(waits.request, spans)
    ]
    _add_bars(fig, "waits", spans, texts, axes, y=waits["request"].tolist(), width=1, marker=WAITING)
    for name, (which, column, marker) in MARKS.items():
        marked = rows.query(which)
        moments_ms = [_whole_ms(value) for value in marked[column]]
        texts = [f"request {request} · {name} · at {ms:,} ms" for request, ms in zip(marked["request"], moments_ms)]
        if texts:
            at = {"x": moments_ms, "y": marked["request"].tolist(), "mode": "markers", "marker": marker}
            fig.add_scatter(**at, name=name, legendgroup=name, **saying(texts), **axes)


def _draw_boxes(fig: go.Figure, executions: pd.DataFrame, name: str, marker: dict, axes: dict) -> None:
    """A box around the requests of a batch; several where others came between them."""
    boxes = [(batch, *ends) for batch in executions.itertuples() for ends in _neighbours(sorted(batch.requests))]
    sizes = {
        "y": [(first + last) / 2 for _, first, last in boxes],
        "width": [last - first + 0.9 for _, first, last in boxes],
    }
    spans = [(batch.start_s, batch.end_s) for batch, *_ in boxes]
    _add_bars(fig, name, spans, [_in_words(batch) for batch, *_ in boxes], axes, marker=marker, **sizes)


def _draw_lane(fig: go.Figure, executions: pd.DataFrame, name: str, colour: str, lane: int, axes: dict) -> None:
    """A box a batch, with its size, and without a pattern, on which nobody reads a size."""
    spans = list(zip(executions["start_s"], executions["end_s"]))
    texts = [_in_words(batch) for batch in executions.itertuples()]
    sizes = {
        "text": executions["size"].astype(str).tolist(),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {"color": dict(zip(SHADES, ON_SHADES))[colour], "size": 12},
    }
    marker = {"color": colour, "line": {"color": "white", "width": 1}}
    _add_bars(fig, name, spans, texts, axes, y=[lane] * len(spans), width=0.8, marker=marker, **sizes)


def _add_bars(fig: go.Figure, name: str, spans_s: list[tuple], texts: Iterable[str], axes: dict, **how) -> None:
    spans = [(_whole_ms(begin), _whole_ms(end)) for begin, end in spans_s]
    bars = {"orientation": "h", "base": [begin for begin, _ in spans], "x": [end - begin for begin, end in spans]}
    fig.add_bar(**bars, name=name, legendgroup=name, **how, **saying(texts), **axes)


def _in_words(batch: Any) -> str:
    start, end = _whole_ms(batch.start_s), _whole_ms(batch.end_s)
    size = counted(batch.size, "request")
    return f"batch {batch.execution} · {size} · {end - start:,} ms: {start:,} to {end:,} ms · model {batch.instance}"


def _neighbours(numbers: list[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers."""
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    whole = [[number for _, number in run] for _, run in runs]
    return [(run[0], run[-1]) for run in whole]


def _whole_ms(seconds: float) -> int:
    return round(1000 * float(seconds))
