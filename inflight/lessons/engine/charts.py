"""Lesson 01: tokens a second over users, under the two roofs of the machine."""

import math

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import saying
from inflight.notebook.charts.palette import DECODE, INK, PREFILL, REQUEST, WASTE, WASTE_TEXT

PROMPT = 256  # tokens of the prompt, which has a place on the axis of users
TICKS = [step * 10**power for power in range(6) for step in (1, 2, 5)]
LINES = {  # column: its name in the picture, colour, dash, symbol; at which number of users the name stands, and where
    "memory": ("memory roof", INK, "dot", None, 64, "top left"),
    "arithmetic": ("compute roof", INK, "dash", None, PROMPT, "top left"),
    "total": ("all users", DECODE, "solid", "circle", 64, "bottom right"),
    "each": ("each user", REQUEST[0], "solid", "square", 64, "bottom left"),
}


def curve(measured: pd.DataFrame, prompt: float, flops_of_token: float) -> go.Figure:
    """Draw tokens a second of all users and of each over their number, the two roofs, and one prompt.

    Parameters
    ----------
    measured : DataFrame
        One row a number of users, from 1 on: `users`; tokens a second of all of them, `total`, and what `memory` and
        `arithmetic` allow.
    prompt : float
        Tokens a second of one prompt of 256 tokens, counted by its FLOPs: its last token alone meets the vocabulary.
    flops_of_token : float
        What the axis on the right counts.
    """
    measured = measured.assign(each=measured["total"] / measured["users"])
    fig = go.Figure()
    for column, (name, colour, dash, symbol, at, side) in LINES.items():
        users, rates = measured["users"].tolist(), measured[column].tolist()
        if column == "arithmetic":  # it holds for the prompt, too
            users, rates = [*users, PROMPT], [*rates, rates[-1]]
        fig.add_scatter(
            x=users, y=rates, name=name, mode="lines+text" + "+markers" * bool(symbol),
            text=[name if number == at else "" for number in users], textposition=side, textfont={"color": colour},
            line={"color": colour, "dash": dash, "width": 2 + bool(symbol)}, marker={"symbol": symbol, "size": 9},
            hovertemplate=name + "<br>users: %{x}<br>%{y:,.0f} tokens a second<extra></extra>",
        )  # fmt: skip
    fig.add_scatter(
        x=[PROMPT], y=[prompt], name="a prompt", mode="markers+text", text=["a prompt"], textposition="bottom center",
        textfont={"color": INK},
        marker={"symbol": "diamond", "size": 13, "color": PREFILL},
        hovertemplate="a prompt of %{x} tokens<br>%{y:,.0f} tokens a second<extra></extra>",
    )  # fmt: skip
    took, _, overhead = _of_one_user(measured)
    alone, roof = measured["total"].iloc[0], _lower_roof(measured).iloc[0]
    told = f"no roof explains:<br>{overhead:.1f} of {took:.1f} ms"
    line = {"color": WASTE, "width": 6}
    fig.add_scatter(
        x=[1, 1], y=[alone, roof], name="beyond the roof", mode="lines", line=line, zorder=-1, **saying([told] * 2)
    )
    fig.add_scatter(  # plotly draws an axis that has a trace
        x=[PROMPT], y=[prompt * flops_of_token / 1e9], yaxis="y2", opacity=0, showlegend=False, hoverinfo="skip"
    )
    found = measured[["total", "each", "memory", "arithmetic"]]
    low, high = math.log10(found.min(axis=None)) - 0.25, math.log10(found.max(axis=None)) + 0.2
    fig.add_annotation(
        x=0, y=low + 0.4, text=told, font_color=WASTE_TEXT, showarrow=False, xanchor="left", align="left"
    )
    shift = math.log10(flops_of_token / 1e9)
    places = [*measured["users"], PROMPT]
    axis = {"type": "log", "tickvals": TICKS, "tickformat": ",", "minor": {"ticks": ""}}
    return fig.update_layout(
        title="Tokens a second over users",
        height=420,
        xaxis={"title": "users, one token each; or a prompt's tokens", "type": "log", "tickvals": places,
               "range": [-0.1, math.log10(PROMPT) + 0.2]},
        yaxis=axis | {"title": "tokens a second", "range": [low, high]},
        yaxis2=axis | {"title": "billion FLOPs a second", "range": [low + shift, high + shift], "overlaying": "y",
                       "side": "right", "showgrid": False},
        showlegend=False,
        margin={"r": 70},
    )  # fmt: skip


def _lower_roof(measured: pd.DataFrame) -> pd.Series:
    return measured[["memory", "arithmetic"]].min(axis=1)


def _of_one_user(measured: pd.DataFrame) -> tuple[float, float, float]:
    """Of one user's iteration: ms it took, ms by the lower roof, ms beyond it."""
    took, least = 1000 / measured["total"].iloc[0], 1000 / _lower_roof(measured).iloc[0]
    return took, least, took - least


def curve_summary(measured: pd.DataFrame, prompt: float) -> str:
    """The picture of `curve` in a few sentences."""
    lower = _lower_roof(measured)
    told = ", ".join(
        f"{row.users}: {row.total:,.0f} ({row.total / roof:.0%})"
        for row, roof in zip(measured.itertuples(), lower, strict=True)
    )
    beyond = measured.loc[measured["memory"] > measured["arithmetic"], "users"]
    ridge = f"The roofs meet below {beyond.iloc[0]} users. " if len(beyond) else ""
    took, least, overhead = _of_one_user(measured)
    return (
        f"Tokens a second by users, and in brackets the share of the lower roof: {told}. {ridge}"
        f"Of one user's {took:.1f} ms the roof asks for {least:.1f}; {overhead:.1f} are beyond it. "
        f"A prompt of {PROMPT} tokens reaches {prompt / measured['arithmetic'].iloc[-1]:.0%} of the compute roof."
    )
