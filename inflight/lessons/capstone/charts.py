"""Lesson 09: what settings come to, as points; the objective as a corner; the front of those that nothing beats."""

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from inflight.lessons.capstone.service import Brief, Served
from inflight.notebook.charts.marks import area_saying, saying
from inflight.notebook.palette import GRID, INK, REQUEST, WASTE, WASTE_TEXT, as_text

GOOD, BAD = REQUEST[0], REQUEST[3]
ENOUGH = 0.9  # of the requests that come, those that must be in time for a point to be in the corner
_MS = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
TICKS = {"tickvals": _MS, "ticktext": [f"{value:,}" for value in _MS]}


def pareto(points: Sequence[Served], brief: Brief) -> go.Figure:
    """Requests in time a second against P99 of TTFT, a point a run, numbered from 1; the objective's corner is shaded.

    The line leads over the points that no other beats in both. A point whose ITL is over its limit, or that left
    requests without an answer, is a cross: it does not keep the objective, wherever it is.

    Parameters
    ----------
    points : sequence of Served
    """
    limit = brief.objective.ttft_ms
    known = [point.ttft_p99_ms for point in points if math.isfinite(point.ttft_p99_ms)]
    low, high = min([*known, limit]) / 2, max([*known, limit]) * 2
    top = (
        max([*(point.in_time_per_s for point in points), brief.rate]) * 1.3
    )  # for a number above each mark, and a label
    fig = go.Figure()
    fig.add_scatter(
        x=[low, limit, limit, low, low],
        y=[ENOUGH * brief.rate, ENOUGH * brief.rate, top, top, ENOUGH * brief.rate],
        fill="toself",
        fillcolor="#DDF1EA",
        mode="lines",
        line={"width": 1, "color": GOOD},
        name="the objective",
        **area_saying(f"the objective: {brief}"),
    )
    front = _front(points)
    fig.add_scatter(
        x=[points[place].ttft_p99_ms for place in front],
        y=[points[place].in_time_per_s for place in front],
        mode="lines",
        line={"color": WASTE, "width": 1.5, "shape": "vh"},
        name="the Pareto front",
        **saying(["the Pareto front: no other run is at least as good in both"] * len(front)),
    )
    for name, colour, symbol, wanted in (
        ("keeps the objective", GOOD, "circle", True),
        ("does not", BAD, "x", False),
    ):
        places = [place for place, point in enumerate(points) if point.keeps == wanted and place_known(point)]
        fig.add_scatter(
            x=[points[place].ttft_p99_ms for place in places],
            y=[points[place].in_time_per_s for place in places],
            mode="markers+text",
            marker={"size": 13, "color": colour, "symbol": symbol, "line": {"color": "white", "width": 1}},
            text=[f"<b>{place + 1}</b>" for place in places],
            textposition="top center",
            textfont={"color": as_text(colour), "size": 14},
            cliponaxis=False,
            name=name,
            hoverinfo="text",
            hovertext=[_words(place, points[place]) for place in places],
        )
    fig.add_annotation(
        xref="x",
        x=math.log10(limit),
        y=top,
        xanchor="right",
        yanchor="top",
        showarrow=False,
        text=f"P99 of TTFT at most {limit:,.0f} ms",
        font={"color": as_text(GOOD), "size": 12},
    )
    fig.add_scatter(
        x=[low, high],
        y=[brief.rate] * 2,
        mode="lines",
        line={"color": INK, "width": 1, "dash": "dot"},
        name="requests that come",
        **saying([f"{brief.rate:.2f} requests a second come"] * 2),
    )
    return fig.update_layout(
        xaxis={
            "type": "log",
            "title": "P99 of TTFT (ms)",
            "range": [math.log10(low), math.log10(high)],
            "gridcolor": GRID,
            **TICKS,
        },
        yaxis={"title": "in time (requests/s)", "range": [0, top]},
        showlegend=True,
        hovermode="closest",
        legend={"font": {"color": WASTE_TEXT}},
    )


def place_known(point: Served) -> bool:
    """Whether there is a place for it in the picture: at least one answer came."""
    return math.isfinite(point.ttft_p99_ms)


def _front(points: Sequence[Served]) -> list[int]:
    """Places of the points that no other is at least as good as in both, by rising TTFT."""
    order = sorted(
        (place for place in range(len(points)) if place_known(points[place])),
        key=lambda place: (points[place].ttft_p99_ms, -points[place].in_time_per_s),
    )
    best, front = -1.0, []
    for place in order:
        if points[place].in_time_per_s > best:
            front.append(place)
            best = points[place].in_time_per_s
    return front


def _words(place: int, point: Served) -> str:
    return (
        f"<b>run {place + 1}</b>, {point.deployment}<br>{point.met} of {len(point.run.requests)} in time, "
        f"{point.in_time_per_s:.2f} a second<br>"
        f"P99 of TTFT {point.ttft_p99_ms:,.0f} ms, of ITL {point.itl_p99_ms:,.0f} ms"
    )


def pareto_summary(points: Sequence[Served], brief: Brief) -> str:
    """The picture in words."""
    parts = [
        f"{place}: {point.deployment}: {point.met} of {len(point.run.requests)} in time, P99 of TTFT "
        f"{point.ttft_p99_ms:,.0f} ms and of ITL {point.itl_p99_ms:,.0f} ms, "
        f"{'keeps the objective' if point.keeps else 'does not keep it'}"
        for place, point in enumerate(points, 1)
    ]
    return f"Goodput against P99 of TTFT, a point a run. The objective: {brief}. {'; '.join(parts) or 'No run yet'}."
