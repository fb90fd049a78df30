"""Lesson 09: how much of the load is in time, and what it costs."""

import pandas as pd
import plotly.graph_objects as go

from inflight.lessons.capstone.service import SHARE, Contract
from inflight.notebook.palette import DECODE, INK, PREFILL, REQUEST, SYMBOLS, WASTE_TEXT

CORNER = {"type": "rect", "layer": "below", "fillcolor": "#DDF1EA", "line": {"color": REQUEST[0], "width": 1}}
COLOURS = (WASTE_TEXT, PREFILL, REQUEST[3], DECODE, REQUEST[1], REQUEST[2])
NEAR = 6  # per cent, below which two names at the ends of lines would touch


def service_against_load(points: pd.DataFrame, contract: Contract) -> go.Figure:
    """A line a setting: the share in time at each load; the contract is the shaded corner.

    Parameters
    ----------
    points : DataFrame
        A row for each setting and load: `setting`, `rate` (requests a second), `share` (of requests in time).
    """
    fig, most, ends = go.Figure(), points["rate"].max(), []
    for (name, line), colour, symbol in zip(points.groupby("setting", sort=False), COLOURS, SYMBOLS):
        fig.add_scatter(
            x=line["rate"].tolist(),
            y=(100 * line["share"]).tolist(),
            name=name,
            mode="lines+markers",
            line={"color": colour},
            marker={"symbol": symbol, "size": 8},
            hovertemplate=f"{name}<br>%{{x:.2f}} requests/s<br>%{{y:.0f}} % in time<extra></extra>",
        )
        ends.append((100 * line["share"].iloc[-1], name, colour))
    height = -NEAR
    for share, name, colour in sorted(ends):
        height = max(share, height + NEAR)
        fig.add_annotation(x=most, y=height, text=f" {name}", font={"color": colour}, xanchor="left", showarrow=False)
    fig.add_shape(x0=contract.rate, x1=most, y0=100 * SHARE, y1=103, **CORNER)
    fig.add_annotation(
        x=most, y=99, text="the contract", font={"color": INK}, xanchor="right", yanchor="middle", showarrow=False
    )
    return fig.update_layout(
        xaxis={"title": "load (requests/s)", "range": [0.9 * points["rate"].min(), 1.3 * most]},
        yaxis={"title": "in time (% of requests)", "range": [-2, 105]},
        meta={"device": ""},
        showlegend=False,
        height=440,
    )


def cost_against_service(points: pd.DataFrame, contract: Contract) -> go.Figure:
    """What a million tokens in time cost, against the share in time: a point a setting and load.

    Parameters
    ----------
    points : DataFrame
        As above, with `cost` (euros) and `on_front`, which says whether no other point beats it.
    """
    fig = go.Figure()
    best = points[points["on_front"]].sort_values("cost")
    fig.add_scatter(
        x=best["cost"].tolist(),
        y=(100 * best["share"]).tolist(),
        mode="lines",
        line={"color": INK, "dash": "dot"},
        name="nobody beats these",
        hoverinfo="skip",
    )
    for (name, line), colour, symbol in zip(points.groupby("setting", sort=False), COLOURS, SYMBOLS):
        fig.add_scatter(
            x=line["cost"].tolist(),
            y=(100 * line["share"]).tolist(),
            name=name,
            mode="markers",
            marker={"symbol": symbol, "color": colour, "size": [13 if kept else 7 for kept in line["on_front"]]},
            customdata=line["rate"].tolist(),
            hovertemplate=f"{name} at %{{customdata:.2f}} requests/s<br>€%{{x:.2f}}<br>%{{y:.0f}} %<extra></extra>",
        )
    left = 0.8 * min(points["cost"].min(), contract.cost)
    fig.add_shape(x0=left, x1=contract.cost, y0=100 * SHARE, y1=103, **CORNER)
    most = 2.5 * max(contract.cost, best["cost"].max())
    return fig.update_layout(
        xaxis={"title": "cost of a million tokens in time (€)", "range": [left, most]},
        yaxis={"title": "in time (% of requests)", "range": [48, 104]},
        meta={"device": ""},
        legend={"font": {"color": WASTE_TEXT}},
        showlegend=True,
        height=480,
    )


def front_in_words(points: pd.DataFrame, contract: Contract) -> str:
    """What `cost_against_service` shows: the points that nobody beats, the cheapest first."""
    best = points[points["on_front"]].sort_values("cost")
    told = [
        f"{row.setting} at {row.rate:.2f} requests a second, €{row.cost:.2f} and {row.share:.0%} in time"
        for row in best.itertuples()
    ]
    kept = best[(best["cost"] <= contract.cost) & (best["share"] >= SHARE)]
    inside = f"{len(kept)} of them in the contract's corner" if len(kept) else "none of them in the contract's corner"
    return f"{len(best)} of {len(points)} points are on the front, {inside}: {'; '.join(told)}."
