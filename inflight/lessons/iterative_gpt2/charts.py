"""Lesson 08: who streams when, who was in which forward pass, and what a token costs as the text grows."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import keep_panel, once_in_legend, saying, saying_alike
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DASHES, DECODE, INK, REQUEST, as_text

WITHOUT_CACHE, WITH_CACHE = REQUEST[3], DECODE
MARKS = {"diamond": "◆", "circle": "●"}
WINDOW = 16  # tokens whose times make one point


def _colour(stream: int) -> str:
    return [*REQUEST[:4], INK][(stream - 1) % 5]


def _dash(stream: int) -> str:
    return DASHES[(stream - 1) % len(DASHES)]


def _panels(fig: go.Figure, titles: list[str], panel_px: int) -> list[dict]:
    """Panels one above the other, each with its title, on one scale of x; returns the axes of each."""
    axes = []
    for number, domain in enumerate(stack(fig, titles, [panel_px] * len(titles))):
        suffix = "" if number == 0 else str(number + 1)
        axes.append({"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"})
        fig.update_layout(
            {
                f"xaxis{suffix}": {"anchor": f"y{suffix}", "matches": "x" if number else None},
                f"yaxis{suffix}": {"anchor": f"x{suffix}", "domain": domain},
            }
        )
    fig.update_layout(showlegend=False)
    return axes


# The race -------------------------------------------------------------------------------------------------------------


def race(runs: dict[str, pd.DataFrame], offsets_s: Sequence[float] | Mapping[str, Sequence[float]]) -> go.Figure:
    """Tokens over time, a line for each stream and a panel for each run, on one scale.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a token: `stream` (from 1), `token` (from 1), `time_s` (since the run's start).
    offsets_s : sequence of float, or dict of str to such
        When the request of each stream was sent: a tick, from where its line begins. One for all runs, or by title.
    """
    fig = go.Figure()
    end = max((tokens["time_s"].max() for tokens in runs.values() if len(tokens)), default=1)
    most = max((tokens["token"].max() for tokens in runs.values() if len(tokens)), default=1)
    panels = _panels(fig, list(runs), 160)
    for axes, (title, tokens) in zip(panels, runs.items(), strict=True):
        if tokens.empty:
            keep_panel(fig, axes)
        offsets = offsets_s[title] if isinstance(offsets_s, Mapping) else offsets_s
        for stream, rows in tokens.groupby("stream"):
            colour, sent_s, name = _colour(stream), offsets[stream - 1], f"stream {stream}"
            fig.add_scatter(
                x=[sent_s, *rows["time_s"].round(4)],
                y=[0, *rows["token"]],
                mode="lines",
                line={"color": colour, "width": 3, "dash": _dash(stream)},
                name=name,
                legendgroup=name,
                **saying_alike(f"{name} · token %{{y}} · at %{{x:.2f}} s", stream),
                **axes,
            )
            fig.add_scatter(
                x=[sent_s],
                y=[0],
                mode="markers",
                legendgroup=name,
                marker={"color": colour, "size": 10, "symbol": "line-ns-open", "line": {"width": 2}},
                **saying([f"{name} · request sent at {sent_s:.2f} s"], [stream]),
                **axes,
            )
        fig.update_layout(
            {
                axes["xaxis"].replace("x", "xaxis"): {"range": [0, end * 1.03]},
                axes["yaxis"].replace("y", "yaxis"): {"range": [0, most * 1.2], "title": "tokens"},
            }
        )
    fig.update_layout(
        {panels[-1]["xaxis"].replace("x", "xaxis"): {"title": "seconds since the first request was sent"}}
    )
    once_in_legend(fig)
    return fig


def race_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `race` in a paragraph."""
    parts = []
    for title, tokens in runs.items():
        rows = [
            f"stream {stream} from {rows['time_s'].iloc[0]:.2f} to {rows['time_s'].iloc[-1]:.2f} s"
            for stream, rows in tokens.groupby("stream")
        ]
        parts.append(f"{title}: tokens of {', '.join(rows)}")
    return f"Tokens of each stream over time. {'. '.join(parts)}."


# Who was in which forward pass ----------------------------------------------------------------------------------------


def forward_passes(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Streams × forward passes: a square where a stream got a token from a pass, a panel for each run.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a stream and pass: `iteration` (from 1) and `stream` (from 1).
    """
    fig = go.Figure()
    end = max(rows["iteration"].max() for rows in runs.values())
    streams = max(rows["stream"].max() for rows in runs.values())
    panels = _panels(fig, list(runs), 10 + 34 * streams)
    for axes, rows in zip(panels, runs.values(), strict=True):
        for stream, own in rows.groupby("stream"):
            fig.add_bar(
                orientation="h",
                base=(own["iteration"] - 1).tolist(),
                x=[1] * len(own),
                y=own["stream"].tolist(),
                width=0.7,
                **axes,
                marker={"color": _colour(stream), "line": {"color": "white", "width": 1}},
                customdata=own["iteration"].tolist(),
                **saying_alike(f"stream {stream} · a token from forward pass %{{customdata}}", stream),
            )
        fig.update_layout(
            {
                axes["xaxis"].replace("x", "xaxis"): {"range": [0, end * 1.01], "showgrid": False},
                axes["yaxis"].replace("y", "yaxis"): {
                    "range": [streams + 0.6, 0.4],
                    "dtick": 1,
                    "title": "stream",
                    "showgrid": False,
                },
            }
        )
    fig.update_layout({panels[-1]["xaxis"].replace("x", "xaxis"): {"title": "forward pass"}})
    return fig.update_layout(barmode="overlay")


def forward_passes_summary(runs: dict[str, pd.DataFrame]) -> str:
    """The picture of `forward_passes` in a paragraph."""
    parts = []
    for title, rows in runs.items():
        sizes = rows.groupby("iteration").size()
        parts.append(
            f"{title}: {len(sizes)} passes for {len(rows)} tokens, {(sizes > 1).sum()} of them with more than one "
            "stream"
        )
    return f"Which stream got a token from which forward pass. {'; '.join(parts)}."


# What a token costs ---------------------------------------------------------------------------------------------------


def growth(tokens: pd.DataFrame) -> tuple[float, float]:
    """Cost of a token as a + b * n: a in ms, b in ms a token of the text before it.

    The median of the lines through any two points: a machine that did something else for a while bends it little.

    Parameters
    ----------
    tokens : DataFrame
        One row a token: `length` (tokens of the text that it follows) and `ms`.
    """
    points = _points(tokens)
    length, ms = points["length"].to_numpy(), points["ms"].to_numpy()
    one, other = np.triu_indices(len(points), k=1)
    slope = np.median((ms[other] - ms[one]) / (length[other] - length[one]))
    return float(np.median(ms - slope * length)), float(slope)


def _points(tokens: pd.DataFrame) -> pd.DataFrame:
    """The mean of each WINDOW tokens: some come two at a time, one late and one at once."""
    return tokens.groupby((tokens["length"] - tokens["length"].min()) // WINDOW)[["length", "ms"]].mean()


def cost_of_a_token(ways: dict[str, pd.DataFrame]) -> go.Figure:
    """Two panels against the length of the text: the time of one token, and of all up to it; points are measured.

    The lines above are a + b * n, fitted to the points; the curves below are their sums, a * n + b * n² / 2.

    Parameters
    ----------
    ways : dict of str to DataFrame
        Without a cache first, then with one. One row a token: `length` (tokens of the text that it follows) and `ms`.
    """
    fig = go.Figure()
    panels = _panels(fig, ["one token", "the whole answer up to it"], 190)
    symbols, dashes = dict(zip(ways, ("diamond", "circle"))), dict(zip(ways, ("dash", "solid")))
    colours = dict(zip(ways, (WITHOUT_CACHE, WITH_CACHE)))
    most = 0.0
    for row, (way, tokens) in enumerate(ways.items()):
        points, (start, slope) = _points(tokens), growth(tokens)
        first, lengths = tokens["length"].min(), np.linspace(tokens["length"].min(), tokens["length"].max(), 60)
        whole = (start * (lengths - first) + slope * (lengths**2 - first**2) / 2) / 1000
        sums = tokens["ms"].cumsum().loc[tokens.index[WINDOW - 1 :: WINDOW]] / 1000
        shown = (
            (points["length"], points["ms"], start + slope * lengths),
            (tokens["length"].loc[sums.index], sums, whole),
        )
        for axes, (x, y, curve), law, unit in zip(panels, shown, _laws(start, slope), ("ms", "s")):
            fig.add_scatter(
                x=lengths.tolist(),
                y=curve.round(4).tolist(),
                mode="lines",
                line={"color": colours[way], "width": 2, "dash": dashes[way]},
                **saying_alike(f"{way} · after %{{x:.0f}} tokens of text · %{{y:.2f}} {unit} by the formula"),
                **axes,
            )
            fig.add_scatter(
                x=x.tolist(),
                y=y.tolist(),
                mode="markers",
                marker={"color": colours[way], "size": 7, "symbol": symbols[way]},
                **saying_alike(f"{way} · after %{{x:.0f}} tokens of text · %{{y:.2f}} {unit}, measured"),
                **axes,
            )
            fig.add_annotation(
                text=f"{MARKS[symbols[way]]} {way}: {law}",
                xref=f"{axes['xaxis']} domain",
                yref=f"{axes['yaxis']} domain",
                x=0,
                xshift=2,
                y=0.98 - 0.15 * row,
                xanchor="left",
                yanchor="top",
                showarrow=False,
                font={"color": as_text(colours[way])},
            )
        most = max(most, float(points["ms"].max()))
    end = max(tokens["length"].max() for tokens in ways.values())
    total = max(tokens["ms"].sum() for tokens in ways.values()) / 1000
    fig.update_layout(
        xaxis={"range": [0, end * 1.02]},
        xaxis2={"range": [0, end * 1.02], "title": "tokens of text so far"},
        yaxis={"title": "ms", "range": [0, most * 1.5]},
        yaxis2={"title": "s", "range": [0, total * 1.25]},
    )
    fig.update_layout(margin={"l": 60, "r": 8})
    return fig


def _laws(start: float, slope: float) -> tuple[str, str]:
    """What a token costs after n tokens of text, and about what all n together."""
    sign = "−" if slope * 1000 < -0.05 else "+"  # less is shown as 0
    return (
        f"{start:.1f} ms {sign} {abs(slope) * 1000:.1f} µs · n",
        f"{start:.1f} ms · n {sign} {abs(slope) * 500:.1f} µs · n²",
    )


def cost_of_a_token_summary(ways: dict[str, pd.DataFrame]) -> str:
    """The picture of `cost_of_a_token` in a paragraph."""
    parts = []
    for way, tokens in ways.items():
        start, slope = growth(tokens)
        first, last = tokens["length"].min(), tokens["length"].max()
        parts.append(
            f"{way[:1].upper()}{way[1:]}, a token costs {start + slope * first:.1f} ms after {first} tokens and "
            f"{start + slope * last:.1f} ms after {last}, the whole answer {tokens['ms'].sum() / 1000:.1f} s"
        )
    return f"Time of a token, and of the answer up to it, against the length of the text. {'; '.join(parts)}."
