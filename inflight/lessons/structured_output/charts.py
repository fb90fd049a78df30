"""Lesson 10: what a mask does at each token of an answer."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import once_in_legend, saying
from inflight.notebook.charts.palette import DECODE, INK, WASTE
from inflight.notebook.charts.panels import axes_of, panels

FORCED = "a single token is allowed"


def guided_steps(steps: pd.DataFrame, vocab_size: int) -> go.Figure:
    """The share of the vocabulary that a mask lets through, and the probability that it throws away, step by step.

    Parameters
    ----------
    steps : DataFrame
        One row a token of the answer: its `text`, the number of tokens `allowed`, the probability `thrown_away`.
    vocab_size : int
    """
    fig = panels(["The mask lets through", "The mask throws away"], 190)
    told = [
        f"step {number} · {row.text!r} · {row.allowed:,} of {vocab_size:,} tokens allowed · "
        f"{100 * row.thrown_away:.1f} % of the probability thrown away"
        for number, row in enumerate(steps.itertuples(), 1)
    ]
    numbers, is_forced = list(range(1, len(steps) + 1)), steps["allowed"] == 1
    for name, chosen, colour, symbol in (
        ("there is a choice", ~is_forced, DECODE, "circle"),
        (FORCED, is_forced, INK, "line-ew-open"),
    ):
        rows = [number for number, is_so in zip(numbers, chosen) if is_so]
        fig.add_scatter(
            x=rows,
            y=[float(100 * steps["allowed"].iloc[row - 1] / vocab_size) for row in rows],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 9, "line": {"width": 2}},
            name=name,
            legendgroup=name,
            **saying(told[row - 1] for row in rows),
            **axes_of(1),
        )
    fig.add_bar(x=numbers, y=[100 * part for part in steps["thrown_away"]], marker_color=WASTE, **saying(told),
                **axes_of(2))  # fmt: skip
    powers = [100, 10, 1, 0.1, 0.01, 0.001]
    fig.update_yaxes(
        title="vocabulary (%), log", type="log", range=[-3, 2.2], tickvals=powers, ticktext=powers, row=1, col=1
    )
    fig.update_yaxes(title="probability (%)", range=[0, 105], row=2, col=1)
    texts = [text.replace(" ", "·") for text in steps["text"]]
    fig.update_xaxes(range=[0.3, len(steps) + 0.7], showgrid=False)
    fig.update_xaxes(title="the token that was taken", tickvals=numbers, ticktext=texts, tickangle=-90, row=2, col=1)
    once_in_legend(fig)
    return fig.update_layout(margin={"b": 110})


def guided_steps_summary(steps: pd.DataFrame, vocab_size: int) -> str:
    """The picture of `guided_steps` in a paragraph."""
    widest, away = 100 * steps["allowed"].max() / vocab_size, 100 * steps["thrown_away"]
    forced = (steps["allowed"] == 1).sum()
    return (
        f"Of {len(steps)} steps, {forced} allow a single token; the widest allows {widest:.0f} % of the vocabulary. "
        f"The mask throws away more than half of the probability in {(away > 50).sum()} steps, and "
        f"most at {steps['text'][away.idxmax()]!r}: {away.max():.0f} %."
    )
