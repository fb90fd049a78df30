"""Lesson 09: how much of the load is in time, and what it costs."""

from collections.abc import Callable

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.lessons.capstone.service.contract import SHARE, Contract
from inflight.notebook.charts.palette import DECODE, INK, PREFILL, REQUEST, RIGHT, RIGHT_AREA, SYMBOLS, WASTE_TEXT

CORNER = {"type": "rect", "layer": "below", "fillcolor": RIGHT_AREA, "line": {"color": RIGHT, "width": 1}}
COLOURS = (WASTE_TEXT, PREFILL, REQUEST[3], DECODE, REQUEST[1], REQUEST[2])
LABELS = {
    "rate": "load (requests/s)",
    "percent": "in time (% of requests)",
    "cost": "cost of a million tokens in time (€)",
}
NEAR = 6  # per cent, below which two names at the ends of lines would touch


def service_against_load(points: pd.DataFrame, contract: Contract) -> go.Figure:
    """A line a setting: the share in time at each load; the contract is the shaded corner.

    Parameters
    ----------
    points : DataFrame
        A row for each setting and load: `setting`, `rate` (requests a second), `share` (of requests in time).
    """
    fig = _drawn(px.line, points, "rate", markers=True).update_traces(marker_size=8)
    most, height = points["rate"].max(), -NEAR
    for line in sorted(fig.data, key=lambda line: line.y[-1]):
        height = max(line.y[-1], height + NEAR)
        at = {"x": most, "y": height, "xanchor": "left"}
        fig.add_annotation(at, text=f" {line.name}", font_color=line.line.color, showarrow=False)
    fig.add_shape(x0=contract.rate, x1=most, y0=100 * SHARE, y1=103, **CORNER)
    fig.add_annotation(x=most, y=99, text="the contract", xanchor="right", showarrow=False)
    fig.update_xaxes(range=[0.9 * points["rate"].min(), 1.3 * most])
    fig.update_yaxes(range=[-2, 105])
    return fig.update_layout(showlegend=False, height=440)


def _drawn(draw: Callable[..., go.Figure], points: pd.DataFrame, x: str, **how) -> go.Figure:
    """The share in time, in per cent, against a column: a colour and a symbol for each setting."""
    fig = draw(
        points.assign(percent=100 * points["share"]), x=x, y="percent", color="setting", symbol="setting",
        color_discrete_sequence=COLOURS, symbol_sequence=SYMBOLS, labels=LABELS,
        hover_data={x: ":.2f", "percent": ":.0f", "rate": ":.2f"}, **how,
    )  # fmt: skip
    return fig.update_layout(meta={"device": ""}, legend_title_text="")


def cost_against_service(points: pd.DataFrame, contract: Contract) -> go.Figure:
    """Draw the cost of a million tokens in time against the share in time: a point a setting and load.

    Parameters
    ----------
    points : DataFrame
        As above, with `cost` (euros) and `on_front`, which says whether no other point beats it.
    """
    fig = _drawn(px.scatter, points, "cost", custom_data="on_front")
    for trace in fig.data:
        trace.marker.size = [13 if is_kept else 7 for is_kept in trace.customdata[:, 0]]
    best = points[points["on_front"]].sort_values("cost")
    look = {"line": {"color": INK, "dash": "dot"}, "name": "nobody beats these", "hoverinfo": "skip"}
    fig.add_scatter(x=best["cost"], y=100 * best["share"], mode="lines", zorder=-1, **look)
    left, right = 0.8 * min(points["cost"].min(), contract.cost), 2.5 * max(contract.cost, best["cost"].max())
    fig.add_shape(x0=left, x1=contract.cost, y0=100 * SHARE, y1=103, **CORNER)
    fig.update_xaxes(range=[left, right])
    fig.update_yaxes(range=[48, 104])
    return fig.update_layout(legend_font_color=WASTE_TEXT, height=480)


def front_in_words(points: pd.DataFrame, contract: Contract) -> str:
    """Describe `cost_against_service`: the points that no other beats, the cheapest first."""
    best = points[points["on_front"]].sort_values("cost")
    told = [
        f"{row.setting} at {row.rate:.2f} requests a second, €{row.cost:.2f} and {row.share:.1%} in time"
        for row in best.itertuples()
    ]
    kept = best[(best["cost"] <= contract.cost) & (best["share"] >= SHARE)]
    inside = f"Of these, {len(kept) or 'none'} lie in the contract's corner."
    return f"{len(best)} of {len(points)} points are on the front: {'; '.join(told)}. {inside}"
