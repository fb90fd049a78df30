"""Lesson 01: the roofline of this machine, and the bytes that an engine holds."""

import math

import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, saying
from inflight.notebook.charts.palette import DECODE, GREYS, INK, PREFILL, SYMBOLS, WASTE, pattern

PHASES = {"decode": DECODE, "prefill": PREFILL}
GIGA, MEGA = 1e9, 1e6


def roofline(points: pd.DataFrame, bytes_per_s: float, products_per_s: float) -> go.Figure:
    """Draw the most that the machine could do for each byte that it reads, and what iterations of the engine did.

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
    fig = px.scatter(
        points.assign(billions=points["products_per_s"] / GIGA), x="products_per_byte", y="billions", text="what",
        color="phase", color_discrete_map=PHASES, symbol="phase", symbol_map=dict(zip(PHASES, SYMBOLS)),
        labels={"products_per_byte": "products for each byte that is read", "billions": "billion products a second"},
        hover_data={"products_per_byte": ":,.1f", "billions": ":,.1f"},
    )  # fmt: skip
    fig.update_traces(marker_size=13, textposition="bottom center", textfont_color=INK)
    fig.update_traces(textposition="bottom right", selector={"name": "decode"})
    for name, ends, said in (
        ("memory", (left, ridge), f"memory: {bytes_per_s / GIGA:.1f} GB a second"),
        ("arithmetic", (ridge, right), f"arithmetic: {products_per_s / GIGA:,.0f} billion products a second"),
    ):
        x = [ends[0], math.sqrt(ends[0] * ends[1]), ends[1]]  # the middle, on a log axis, for the words
        is_rising = name == "memory"
        fig.add_scatter(
            x=x,
            y=[min(products_per_s, at * bytes_per_s) / GIGA for at in x],
            mode="lines+text",
            name=name,
            zorder=-1,  # behind the points
            line={"color": INK, "width": 3},
            text=["", "", said] if is_rising else ["", said, ""],  # left of the ridge, or in the middle
            textposition="top left" if is_rising else "top center",
            **saying([said] * 3),
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
    fig.update_xaxes(type="log", dtick=1, range=ranges[0])
    fig.update_yaxes(type="log", dtick="D2", range=ranges[1])
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
    in_words = ", ".join(f"{row.kind} {row.bytes / MEGA:.0f}" for row in weights.itertuples())
    texts = [""] * (len(weights) - 1) + [f"{in_words} MB"]  # beside the last
    rows = weights.assign(what="weights", megabytes=weights["bytes"] / MEGA, text=texts)
    caches = pd.DataFrame({"megabytes": cache_bytes}) / MEGA
    caches["what"] = [f"cache of {counted(users, 'user')}" for users in cache_bytes]
    caches["text"] = [f"{megabytes:,.0f} MB" for megabytes in caches["megabytes"]]
    fig = px.bar(
        pd.concat([rows, caches.assign(kind="KV cache")]), x="megabytes", y="what", color="kind", text="text",
        color_discrete_map={**dict(zip(weights["kind"], GREYS)), "KV cache": DECODE}, orientation="h",
        hover_data={"megabytes": ":,.1f", "text": False},
    )  # fmt: skip
    fig.update_traces(textposition="outside")
    fig.update_traces(marker_pattern=pattern("/"), selector={"name": "KV cache"})
    fig.update_xaxes(range=[0, 1.15 * max(caches["megabytes"].max(), rows["megabytes"].sum())])
    fig.update_yaxes(title=None, autorange="reversed", showgrid=False)
    return fig.update_layout(title="Bytes in memory", height=320, showlegend=False, meta={"device": ""})
