"""Lesson 01: the roofline of this machine, and the bytes that an engine holds."""

import math

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import line_saying, saying, words
from inflight.notebook.palette import DECODE, INK, PREFILL, SYMBOLS, WASTE, pattern

PHASES = {"decode": (DECODE, SYMBOLS[0]), "prefill": (PREFILL, SYMBOLS[1])}
GREYS = ("#444444", "#6A6A6A", "#8C8C8C", "#AEAEAE")  # weights by kind: neighbours that are told apart
GIGA, MEGA = 1e9, 1e6


def roofline(points: pd.DataFrame, bytes_per_s: float, products_per_s: float) -> go.Figure:
    """What the machine could do at most for each byte that it reads, and what iterations of the engine came to.

    Parameters
    ----------
    points : DataFrame
        One row a kind of iteration: `what`, `phase` ("decode" or "prefill"), `products_per_byte`, `products_per_s`.
    bytes_per_s, products_per_s : float
        The machine's own, measured.
    """
    ridge = products_per_s / bytes_per_s
    left, right = min(0.5, points["products_per_byte"].min() / 2), 3 * max(ridge, points["products_per_byte"].max())
    lowest = min(points["products_per_s"].min(), left * bytes_per_s) / GIGA / 4  # room for what is written at the foot
    fig = go.Figure()
    for name, ends, ending, side in (
        ("memory", (left, ridge), f"{bytes_per_s / GIGA:.1f} GB a second", "top left"),
        ("arithmetic", (ridge, right), f"{products_per_s / GIGA:,.0f} billion products a second", "top center"),
    ):
        said = f"{name}: {ending}"
        x = [ends[0], math.sqrt(ends[0] * ends[1]), ends[1]]  # the middle, on a log axis, for the words
        fig.add_scatter(
            x=x,
            y=[min(products_per_s, at * bytes_per_s) / GIGA for at in x],
            mode="lines+text",
            name=name,
            line={"color": INK, "width": 3},
            text=["", "", said] if name == "memory" else ["", said, ""],  # left of the ridge, or in the middle
            textposition=side,
            textfont={"color": INK},
            **line_saying(f"{name} · {ending}", 3),
        )
    for phase, (colour, symbol) in PHASES.items():
        rows = points[points["phase"] == phase]
        fig.add_scatter(
            x=rows["products_per_byte"].tolist(),
            y=(rows["products_per_s"] / GIGA).tolist(),
            mode="markers+text",
            name=phase,
            marker={"color": colour, "symbol": symbol, "size": 13},
            text=rows["what"].tolist(),
            textposition="bottom right" if phase == "decode" else "bottom center",
            textfont={"color": INK},
            **saying(
                words(
                    row.what,
                    f"{row.products_per_byte:,.1f} products a byte",
                    f"{row.products_per_s / GIGA:,.1f} billion products a second",
                )
                for row in rows.itertuples()
            ),
        )
    for text, side in (
        ("<b>← bound by memory</b> ", "right"),
        (f" <b>bound by arithmetic →</b><br> (from {ridge:.1f} products a byte on)", "left"),
    ):
        fig.add_annotation(
            x=math.log10(ridge), y=0, yref="y domain", xanchor=side, yanchor="bottom", align=side, showarrow=False,
            text=text, font={"color": INK, "size": 12},
        )  # fmt: skip
    fig.add_vline(x=ridge, line={"color": WASTE, "width": 1, "dash": "dot"})
    ranges = [[math.log10(end) for end in pair] for pair in ((left, right), (lowest, 2 * products_per_s / GIGA))]
    fig.update_xaxes(title="products for each byte that is read", type="log", dtick=1, range=ranges[0])
    fig.update_yaxes(title="billion products a second", type="log", dtick="D2", range=ranges[1])
    return fig.update_layout(title="The roofline of this machine", height=440, showlegend=False)


def roofline_summary(points: pd.DataFrame, bytes_per_s: float, products_per_s: float) -> str:
    """The picture of `roofline` in a paragraph."""
    ridge = products_per_s / bytes_per_s
    found = []
    for row in points.itertuples():
        roof = min(products_per_s, row.products_per_byte * bytes_per_s)
        bound = "memory" if row.products_per_byte < ridge else "arithmetic"
        share = f"{row.products_per_s / roof:.0%} of what {bound} allows"
        found.append(f"{row.what} with {row.products_per_byte:,.1f} products a byte reaches {share}")
    return (
        f"Products a second against products for each byte read, both on log axes. The roof rises with "
        f"{bytes_per_s / GIGA:.1f} GB a second, and is flat from {ridge:.1f} products a byte on, at "
        f"{products_per_s / GIGA:,.0f} billion products a second. {'; '.join(found)}."
    )


def bytes_held(weights: pd.DataFrame, cache_bytes: dict[int, int]) -> go.Figure:
    """Two kinds of bytes: weights, which are there once, and a KV cache that grows with users.

    Parameters
    ----------
    weights : DataFrame
        One row a kind: `kind`, `bytes`.
    cache_bytes : dict of int to int
        Bytes of the KV cache by the number of users.
    """
    fig = go.Figure()
    sizes_mb = {row.kind: row.bytes / MEGA for row in weights.itertuples()}
    in_words = ", ".join(f"{kind} {megabytes:.0f}" for kind, megabytes in sizes_mb.items())
    for (kind, megabytes), colour in zip(sizes_mb.items(), GREYS):
        fig.add_bar(
            orientation="h", x=[megabytes], y=["weights"], name=kind, marker={"color": colour},
            text=[f"{in_words} MB" if kind == list(sizes_mb)[-1] else ""], textposition="outside",
            **saying([f"weights · {kind} · {megabytes:,.1f} MB"]),
        )  # fmt: skip
    labels = [f"cache of {users} user{'s' if users > 1 else ''}" for users in cache_bytes]
    sizes = [size / MEGA for size in cache_bytes.values()]
    fig.add_bar(
        orientation="h", x=sizes, y=labels, name="KV cache", marker={"color": DECODE, "pattern": pattern("/")},
        text=[f"{size:,.0f} MB" for size in sizes], textposition="outside",
        **saying(f"{label} · {size:,.0f} MB" for label, size in zip(labels, sizes)),
    )  # fmt: skip
    fig.update_xaxes(title="megabytes", range=[0, 1.15 * max(*sizes, weights["bytes"].sum() / MEGA)])
    fig.update_yaxes(autorange="reversed", showgrid=False)
    return fig.update_layout(
        title="Bytes in memory", barmode="stack", height=320, showlegend=False, meta={"device": ""}
    )
