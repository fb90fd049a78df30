"""Lesson 13: what it costs to have a prompt in the cache, and how long readers wait while a long one comes."""

import math

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.palette import DECODE, INK, PREFILL, REQUEST, SYMBOLS

COLOURS = {"compute": PREFILL, "take": DECODE, "fetch": REQUEST[0]}
FIGURES = ["longest gap (ms)", "TTFT (ms)"]


def prices(rows: pd.DataFrame) -> go.Figure:
    """Milliseconds against tokens of a prompt, a line a way, on logarithmic scales.

    Parameters
    ----------
    rows : DataFrame
        `tokens`, `way` and `ms` of each round.
    """
    fig = px.line(
        _medians(rows), x="tokens", y="ms", color="way", symbol="way", log_x=True, log_y=True,
        color_discrete_map=COLOURS, symbol_sequence=SYMBOLS,
    )  # fmt: skip
    fig.update_traces(marker_size=9, hovertemplate="%{x} tokens · %{fullData.name}: %{y:.1f} ms<extra></extra>")
    for line in fig.data:
        fig.add_annotation(
            x=1, xref="paper", y=_log10(line.y[-1]), text=line.name, showarrow=False, xanchor="left",
            font={"color": line.line.color},
        )  # fmt: skip
    fig.update_xaxes(title="tokens of the prompt", tickvals=sorted(rows["tokens"].unique()))
    fig.update_yaxes(title="ms until they are in the cache", dtick=1)
    return fig.update_layout(showlegend=False, margin={"r": 80})


def prices_summary(rows: pd.DataFrame) -> str:
    """The picture of `prices` in a paragraph."""
    table = _medians(rows).pivot(index="tokens", columns="way", values="ms")
    parts = [
        f"{tokens} tokens: computed in {row['compute']:.0f} ms, taken {row['take']:.0f}, fetched {row['fetch']:.0f}"
        for tokens, row in table.iterrows()
    ]
    return f"Time until a prompt is in the cache. {'; '.join(parts)}."


def gaps(found: pd.DataFrame) -> go.Figure:
    """A reader's longest gap and the sender's TTFT, a bar a way, with a mark for each round.

    Parameters
    ----------
    found : DataFrame
        `engines`, and milliseconds in the columns of `FIGURES`, a row a round.
    """
    long = found.melt("engines", FIGURES, "figure", "ms")
    middle = long.groupby(["engines", "figure"], sort=False)["ms"].median().reset_index()
    fig = px.bar(
        middle, y="engines", x="ms", facet_row="figure", text=middle["ms"].map("{:,.0f} ms".format),
        color_discrete_sequence=[PREFILL],
    )  # fmt: skip
    fig.update_traces(textposition="inside", insidetextanchor="start")
    rounds = px.scatter(long, y="engines", x="ms", facet_row="figure", color_discrete_sequence=[INK])
    rounds.update_traces(marker={"symbol": "line-ns-open", "size": 12}, hovertemplate="%{x:.0f} ms<extra></extra>")
    fig.add_traces(rounds.data)
    fig.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("figure=")))
    fig.update_yaxes(title="", autorange="reversed").update_xaxes(title="ms", row=1, rangemode="tozero")
    return fig.update_layout(showlegend=False, height=380, margin={"l": 150})


def gaps_summary(found: pd.DataFrame) -> str:
    """The picture of `gaps` in a paragraph."""
    middle = found.groupby("engines", sort=False)[FIGURES].median()
    parts = [f"{name}: {row.iloc[0]:,.0f} ms, TTFT {row.iloc[1]:,.0f} ms" for name, row in middle.iterrows()]
    return f"Readers' longest gap while a document of 256 tokens comes, and its sender's TTFT. {'; '.join(parts)}."


def _medians(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby(["tokens", "way"], sort=False)["ms"].median().reset_index()


def _log10(value: float) -> float:
    return math.log10(value)
