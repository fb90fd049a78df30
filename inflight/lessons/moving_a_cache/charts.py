"""Lesson 13: what taking a prompt costs at each speed of the line, and how long readers wait while a long one comes."""

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.palette import DASHES, DECODE, INK, PREFILL, SYMBOLS

FIGURES = ["longest gap (ms)", "TTFT (ms)"]


def lines(rows: pd.DataFrame, computed: dict[str, float]) -> go.Figure:
    """Milliseconds of taking a prompt against the speed of the line, and level those of computing it, a cache a dash.

    Parameters
    ----------
    rows : DataFrame
        `cache`, `Gbit/s` and `ms` of each round.
    computed : dict of str to float
        Milliseconds, by cache.
    """
    fig = px.line(
        _medians(rows), x="Gbit/s", y="ms", line_dash="cache", symbol="cache", log_x=True, log_y=True,
        color_discrete_sequence=[DECODE], line_dash_sequence=DASHES, symbol_sequence=SYMBOLS,
    )  # fmt: skip
    fig.update_traces(marker_size=9, hovertemplate="%{x} Gbit/s: taken in %{y:.0f} ms<extra></extra>")
    for line in list(fig.data):
        fig.add_scatter(
            x=line.x, y=[computed[line.name]] * len(line.x), mode="lines", name=f"computed, {line.name}",
            line={"color": PREFILL, "dash": line.line.dash}, hovertemplate="computed in %{y:.0f} ms<extra></extra>",
        )  # fmt: skip
        line.name = f"taken, {line.name}"
    fig.update_xaxes(title="speed of the line (Gbit/s)", tickvals=sorted(rows["Gbit/s"].unique()))
    fig.update_yaxes(title="ms until 256 tokens are in the cache", dtick=1)
    return fig.update_layout(legend_title="")


def lines_summary(rows: pd.DataFrame, computed: dict[str, float]) -> str:
    """The picture of `lines` in a paragraph."""
    table = _medians(rows).pivot(index="cache", columns="Gbit/s", values="ms")
    parts = [
        f"{cache}: computed in {computed[cache]:.0f} ms, taken in "
        + ", ".join(f"{ms:.0f} at {speed} Gbit/s" for speed, ms in row.items())
        for cache, row in table.iterrows()
    ]
    return f"Time until 256 tokens are in the cache. {'; '.join(parts)}."


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
    return rows.groupby(["cache", "Gbit/s"], sort=False)["ms"].median().reset_index()
