"""Lesson 10: how much of the vocabulary a mask leaves at each token of an answer."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import saying
from inflight.notebook.charts.palette import DECODE, INK


def guided_steps(steps: pd.DataFrame, vocab_size: int) -> go.Figure:
    """The share of the vocabulary that may come at each token of an answer.

    Parameters
    ----------
    steps : DataFrame
        One row a token of the answer: its `text`, and the number of tokens `allowed` in its place.
    vocab_size : int
    """
    fig = go.Figure()
    numbered = steps.assign(number=range(1, len(steps) + 1), share=100 * steps["allowed"] / vocab_size)
    is_forced = numbered["allowed"] == 1
    for name, rows, colour, symbol in (
        ("the model chooses", numbered[~is_forced], DECODE, "circle"),
        ("the schema writes: one token may come", numbered[is_forced], INK, "line-ew-open"),
    ):
        told = [
            f"step {row.number} · {row.text!r} · {row.allowed:,} of {vocab_size:,} tokens may come"
            for row in rows.itertuples()
        ]
        fig.add_scatter(
            x=rows["number"].tolist(),
            y=rows["share"].tolist(),
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 10, "line": {"width": 3}},
            name=name,
            **saying(told),
        )
    fig.update_yaxes(
        title="may come, of the vocabulary (log)",
        type="log",
        range=[-3, 2.2],
        tickvals=[100, 10, 1, 0.1, 0.01, 100 / vocab_size],
        ticktext=["100 %", "10 %", "1 %", "0.1 %", "0.01 %", "one token"],
    )
    fig.update_xaxes(
        title="the token that came (· is a space)",
        range=[0.3, len(steps) + 0.7],
        tickvals=numbered["number"].tolist(),
        ticktext=[text.replace(" ", "·") for text in steps["text"]],
        tickangle=-90,
        showgrid=False,
    )
    return fig.update_layout(showlegend=True, margin={"b": 110})


def guided_steps_summary(steps: pd.DataFrame, vocab_size: int) -> str:
    """The picture of `guided_steps` in a sentence."""
    forced, widest = (steps["allowed"] == 1).sum(), 100 * steps["allowed"].max() / vocab_size
    return (
        f"Of the {len(steps)} tokens of this answer, {forced} had no alternative; at the widest step "
        f"{widest:.0f} % of the vocabulary might have come."
    )
