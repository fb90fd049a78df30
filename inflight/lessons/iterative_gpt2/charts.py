"""Lesson 08: who streams when, and what goes through the model."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import keep_panel, once_in_legend, saying
from inflight.notebook.charts.palette import INK, REQUEST, pattern
from inflight.notebook.charts.panels import axes_of, panels

SMALL = 0.1  # of the highest bar of all panels
COLOURS = [*REQUEST[:4], INK]
SHAPES = ("", "/", "", "x", "")
NEAR = 0.01  # of the axis: lines that end so near each other have one label


def race(runs: dict[str, pd.DataFrame], offsets_s: dict[str, list[float]]) -> go.Figure:
    """Tokens over time, a line for each stream and a panel for each run, on one scale; at its end the stream's number.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a token: `stream` (from 1), `token` (from 1), `time_s` (since the run's start).
    offsets_s : dict of str to list of float
        By the same titles: when the request of each stream was sent, a tick from where its line begins.
    """
    fig = panels(list(runs), 160)
    end = max((tokens["time_s"].max() for tokens in runs.values() if len(tokens)), default=1)
    most = max((tokens["token"].max() for tokens in runs.values() if len(tokens)), default=1)
    for number, (title, tokens) in enumerate(runs.items(), 1):
        axes = axes_of(number)
        if tokens.empty:
            keep_panel(fig, axes)
        for stream, rows in tokens.groupby("stream"):
            colour, sent_s, name = (
                COLOURS[(stream - 1) % len(COLOURS)],
                offsets_s[title][stream - 1],
                f"stream {stream}",
            )
            fig.add_scatter(
                x=[sent_s, *rows["time_s"].round(4)],
                y=[0, *rows["token"]],
                mode="lines",
                # A step: between two tokens there is nothing.
                line={"color": colour, "width": 3, "shape": "hv"},
                name=name,
                legendgroup=name,
                hovertemplate=f"{name} · token %{{y}} · at %{{x:.2f}} s<extra></extra>",
                **axes,
            )
            fig.add_scatter(
                x=[sent_s],
                y=[0],
                mode="markers",
                legendgroup=name,
                marker={"color": colour, "size": 10, "symbol": "line-ns-open", "line": {"width": 2}},
                **saying([f"{name} · request sent at {sent_s:.2f} s"]),
                **axes,
            )
        ends = _ends(tokens, NEAR * end)
        fig.add_scatter(
            x=ends["time_s"].round(4),
            y=ends["token"],
            text=ends["streams"],
            mode="text",
            textposition="top center",
            cliponaxis=False,
            hoverinfo="skip",
            **axes,
        )
    fig.update_xaxes(range=[0, end * 1.03])
    fig.update_xaxes(title="seconds since the first request was sent", row=len(runs), col=1)
    fig.update_yaxes(range=[0, most * 1.2], title="tokens")
    once_in_legend(fig)
    return fig


def _ends(tokens: pd.DataFrame, near_s: float) -> pd.DataFrame:
    """Find where lines end: `time_s`, `token`, and the `streams` whose lines end there together, as "2, 3, 4"."""
    last = tokens.groupby("stream", as_index=False).last().sort_values(["token", "time_s"])
    is_apart = (last["token"].diff() != 0) | (last["time_s"].diff() > near_s)
    places = last.sort_values("stream").astype({"stream": str}).groupby(is_apart.cumsum())
    return places.agg(time_s=("time_s", "max"), token=("token", "max"), streams=("stream", ", ".join))


def through_each_pass(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """The tokens that go through the model in each forward pass, by stream: a panel for each run, on one scale.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title, what `passes` gives.
    """
    fig = panels([f"{title}: {_counted(run)}" for title, run in runs.items()], 170)
    sums = [run.groupby("pass")["tokens"].sum() for run in runs.values()]
    for number, run in enumerate(runs.values(), 1):
        for stream, rows in run.groupby("stream"):
            fig.add_bar(
                x=rows["pass"],
                y=rows["tokens"],
                name=f"stream {stream}",
                legendgroup=f"stream {stream}",
                marker={"color": COLOURS[stream - 1], "pattern": pattern(SHAPES[stream - 1]), "line": {"width": 0}},
                hovertemplate=f"stream {stream} · %{{y}} tokens in pass %{{x}}<extra></extra>",
                **axes_of(number),
            )
        passes = sums[number - 1]
        if passes.max() < SMALL * max(each.max() for each in sums):
            # On this scale single tokens cannot be told from prompts: those are named.
            axes = dict(zip(("xref", "yref"), axes_of(number).values()))
            prompts = run[run["tokens"] > 1]
            for stream, at, tokens in zip(prompts["stream"], prompts["pass"], prompts["tokens"]):
                look = {"font_size": 9, "showarrow": False, "yshift": 8 + 10 * (stream % 2)}
                fig.add_annotation(x=at, y=passes[at], text=f"prompt of {tokens}", **look, **axes)
    fig.update_layout(barmode="stack", bargap=0, meta={"device": ""})
    fig.update_xaxes(title="forward pass", row=len(runs), col=1)
    fig.update_yaxes(title="tokens in the pass", matches="y")
    once_in_legend(fig)
    return fig


def through_each_pass_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `through_each_pass` in a paragraph."""
    parts = [
        f"{title}, {_counted(run)}, at most {run.groupby('pass')['tokens'].sum().max()} in one"
        for title, run in runs.items()
    ]
    return f"Tokens that go through the model in each pass: {'; '.join(parts)}."


def _counted(run: pd.DataFrame) -> str:
    return f"{run['tokens'].sum():,} tokens in {run['pass'].max()} passes"
