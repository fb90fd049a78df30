"""Lesson 01: what fills the memory."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.palette import DECODE, REQUEST

_KINDS = {"feed-forward": "#444444", "embedding": "#6E6E6E", "attention": "#9A9A9A", "norms": "#C8C8C8"}
MB, GB = 1e6, 1e9


def engine_bytes(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> go.Figure:
    """Above, weights and the KV cache of a few users on one scale; below, the cache growing until memory is full.

    `weights` has `kind`, `bytes`; `kv_per_user` has `tokens`, `bytes`: the KV cache of one user with that many tokens,
    the longest first.
    """
    fig = go.Figure()
    _draw_bars(fig, weights, kv_per_user.iloc[0])
    for row in kv_per_user.itertuples():
        _draw_growth(fig, row.tokens, row.bytes / GB, weights["bytes"].sum() / GB, memory_bytes / GB)
    most = _users_that_fit(memory_bytes / GB, weights["bytes"].sum() / GB, kv_per_user["bytes"].min() / GB)
    fig.add_shape(
        type="line",
        xref="x2",
        yref="y2",
        x0=0,
        x1=most * 1.15,
        y0=memory_bytes / GB,
        y1=memory_bytes / GB,
        line={"color": REQUEST[3], "width": 2, "dash": "dash"},
    )
    fig.add_annotation(
        xref="x2",
        yref="y2",
        x=0,
        y=memory_bytes / GB,
        xanchor="left",
        yanchor="bottom",
        text=f"free memory: {memory_bytes / GB:.1f} GB",
        yshift=22,
        showarrow=False,
        font={"color": REQUEST[3]},
    )
    fig.update_layout(
        title="What fills the memory",
        barmode="stack",
        height=640,
        margin={"l": 150, "r": 30, "t": 56, "b": 76},
        xaxis={"title": "megabytes", "anchor": "y"},
        yaxis={"domain": [0.68, 1], "showgrid": False},
        xaxis2={"title": "users at the same time", "anchor": "y2", "range": [0, most * 1.15]},
        yaxis2={"title": "gigabytes", "domain": [0, 0.5], "anchor": "x2", "range": [0, memory_bytes / GB * 1.3]},
    )
    return fig


def _draw_bars(fig: go.Figure, weights: pd.DataFrame, longest: pd.Series) -> None:
    lanes, megabytes = ["KV, 4 users ", "KV, 1 user ", "weights "], longest["bytes"] / MB
    look = {"orientation": "h", "showlegend": False, "textposition": "inside", "insidetextanchor": "middle",
            "textangle": 0}  # fmt: skip
    for row in weights.itertuples():
        fig.add_bar(
            x=[0, 0, row.bytes / MB],
            y=lanes,
            name=row.kind,
            marker={"color": _KINDS[row.kind], "line": {"color": "white", "width": 1}},
            **look,
        )
    for user in range(4):
        fig.add_bar(
            x=[megabytes, 0 if user else megabytes, 0],
            y=lanes,
            name=f"user {user + 1}",
            text=[f"{megabytes:.0f}", "", ""],
            marker={"color": DECODE, "line": {"color": "white", "width": 1}},
            **look,
        )
    kinds = ", ".join(f"{row.kind} {row.bytes / MB:,.1f}" for row in weights.itertuples())
    for lane, end, text in (
        (lanes[2], weights["bytes"].sum() / MB, kinds),
        (lanes[1], megabytes, f"{megabytes:.1f}: {longest['tokens']:,.0f} tokens"),
    ):
        fig.add_annotation(x=end, y=lane, text=text, xanchor="left", yanchor="middle", xshift=8, showarrow=False)


def _users_that_fit(memory: float, weights: float, per_user: float) -> int:
    return max(1, int((memory - weights) / per_user))


def _draw_growth(fig: go.Figure, tokens: int, per_user: float, weights: float, memory: float) -> None:
    """A line from the weights alone to full memory, with the number of users at its end."""
    users = _users_that_fit(memory, weights, per_user)
    fig.add_scatter(
        x=[0, users],
        y=[weights, weights + users * per_user],
        mode="lines+markers+text",
        xaxis="x2",
        yaxis="y2",
        text=["", f"{users:,} × {tokens:,} tokens"],
        textposition="top center",
        showlegend=False,
        line={"color": DECODE, "width": 2},
        marker={"color": DECODE, "size": 8},
        name=f"{tokens} tokens a user",
    )


def engine_bytes_summary(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> str:
    """The picture of `engine_bytes` in a paragraph."""
    total, kinds = weights["bytes"].sum(), ", ".join(f"{row.kind} {row.bytes / MB:.1f}" for row in weights.itertuples())
    ends = "; ".join(
        f"{_users_that_fit(memory_bytes, total, row.bytes):,} users of {row.tokens:,} tokens"
        for row in kv_per_user.itertuples()
    )
    first = kv_per_user.iloc[0]
    return (
        f"Above, in megabytes: the weights take {total / MB:.1f} ({kinds}), and the KV cache of a single user with "
        f"{first['tokens']:,.0f} tokens {first['bytes'] / MB:.1f}, {first['bytes'] / total:.2f} times as much as "
        f"the whole model. Below, memory against users, one line a length: {memory_bytes / GB:.1f} GB are full "
        f"at {ends}."
    )
