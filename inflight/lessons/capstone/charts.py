"""Lesson 09: how much of the load is in time."""

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.lessons.capstone.contract import SHARE, Contract
from inflight.notebook.charts.palette import DECODE, PREFILL, REQUEST, RIGHT, RIGHT_AREA, SYMBOLS, WASTE_TEXT

CORNER = {"type": "rect", "layer": "below", "fillcolor": RIGHT_AREA, "line": {"color": RIGHT, "width": 1}}
COLOURS = (WASTE_TEXT, PREFILL, REQUEST[3], DECODE, REQUEST[1], REQUEST[2])
LABELS = {"rate": "load (requests/s)", "percent": "in time (% of requests)"}
NEAR = 6  # per cent, below which two names at the ends of lines would touch


def service_against_load(points: pd.DataFrame, contract: Contract) -> go.Figure:
    """A line a setting: the share in time at each load, with its spread; the contract is the shaded corner.

    Parameters
    ----------
    points : DataFrame
        A row for each setting and load: `setting`, `rate` (requests a second), `share` (of requests in time), and
        `low` and `high`, the least and the largest share of a run.
    """
    drawn = points.assign(
        percent=100 * points["share"],
        above=100 * (points["high"] - points["share"]),
        below=100 * (points["share"] - points["low"]),
    )
    fig = px.line(
        drawn, x="rate", y="percent", error_y="above", error_y_minus="below", color="setting", symbol="setting",
        markers=True, labels=LABELS, color_discrete_sequence=COLOURS, symbol_sequence=SYMBOLS,
        hover_data={"percent": ":.0f", "rate": ":.2f", "above": False, "below": False},
    )  # fmt: skip
    fig.update_traces(marker_size=8, error_y={"thickness": 1, "width": 3})
    most, height = points["rate"].max(), -NEAR
    right = 1.3 * most
    for line in sorted(fig.data, key=lambda line: line.y[-1]):
        height = max(line.y[-1], height + NEAR)
        at = {"x": line.x[-1], "y": height, "xanchor": "left"}
        fig.add_annotation(at, text=f"  {line.name}", font_color=line.line.color, showarrow=False)
    fig.add_shape(x0=contract.rate, x1=right, y0=100 * SHARE, y1=103, **CORNER)
    fig.add_annotation(x=right, y=99, text="the contract ", xanchor="right", showarrow=False)
    fig.update_xaxes(range=[0.9 * points["rate"].min(), right])
    fig.update_yaxes(range=[-2, 105])
    return fig.update_layout(showlegend=False, height=440, meta={"device": ""})
