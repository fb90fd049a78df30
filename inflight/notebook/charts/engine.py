"""Lesson 01: what fills the memory, and what builds cost."""

import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, line_saying, saying
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, INK, REQUEST, SYMBOLS, as_text, text_on

_KINDS = {"feed-forward": "#333333", "embedding": "#5A5A5A", "attention": "#7A7A7A", "norms": "#949494"}
MB, GB = 1e6, 1e9
LINE_PX = 19


def engine_bytes(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> go.Figure:
    """Above, weights and the KV cache of a few users on one scale; below, the cache growing until memory is full.

    `weights` has `kind`, `bytes`; `kv_per_user` has `tokens`, `bytes`: the KV cache of one user with that many tokens,
    the longest first.
    """
    fig = go.Figure()
    _draw_bars(fig, weights, kv_per_user.iloc[0])
    for place, row in enumerate(kv_per_user[::-1].itertuples()):
        _draw_growth(fig, row.tokens, row.bytes / GB, weights["bytes"].sum() / GB, memory_bytes / GB, place)
    most = _users_that_fit(memory_bytes / GB, weights["bytes"].sum() / GB, kv_per_user["bytes"].min() / GB)
    fig.add_scatter(
        x=[0, most * 1.15],
        y=[memory_bytes / GB] * 2,
        xaxis="x2",
        yaxis="y2",
        mode="lines",
        showlegend=False,
        line={"color": REQUEST[3], "width": 2, "dash": "dash"},
        **line_saying(f"free memory · {memory_bytes / GB:.1f} GB"),
    )
    fig.add_annotation(
        xref="x2",
        yref="y2",
        x=0,
        y=memory_bytes / GB,
        xanchor="left",
        yanchor="bottom",
        text=f"free memory: {memory_bytes / GB:.1f} GB",
        yshift=4 + LINE_PX * len(kv_per_user),
        showarrow=False,
        font={"color": as_text(REQUEST[3])},
    )
    widest = max(weights["bytes"].sum(), 4 * kv_per_user["bytes"].max())
    fig.update_layout(
        meta={"device": ""},  # worked out, not measured
        title="What fills the memory",
        barmode="stack",
        height=580,
        margin={"l": 90, "r": 12},
        xaxis={"title": "megabytes", "anchor": "y", "range": [0, 1.15 * widest / MB]},
        yaxis={"domain": [0.68, 1], "showgrid": False},
        xaxis2={"title": "users at the same time", "anchor": "y2", "range": [0, most * 1.15]},
        yaxis2={"title": "gigabytes", "domain": [0, 0.5], "anchor": "x2", "range": [0, memory_bytes / GB * 1.5]},
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
            **saying(["", "", f"weights · {row.kind} · {row.bytes / MB:,.1f} MB"]),
            **look,
        )
    for user in range(4):
        told = f"KV cache of user {user + 1} · {longest['tokens']:,.0f} tokens · {megabytes:,.1f} MB"
        fig.add_bar(
            x=[megabytes, 0 if user else megabytes, 0],
            y=lanes,
            name=f"user {user + 1}",
            text=[f"{megabytes:.0f}", "", ""],
            textfont={"color": text_on(DECODE)},
            marker={"color": DECODE, "line": {"color": "white", "width": 1}},
            **saying([told, "" if user else told, ""]),
            **look,
        )
    kinds = [f"{row.kind} {row.bytes / MB:,.1f}" for row in weights.itertuples()]
    kinds = "<br>".join(", ".join(kinds[start : start + 2]) for start in range(0, len(kinds), 2))
    for lane, end, text in (
        (lanes[2], weights["bytes"].sum() / MB, kinds),
        (lanes[1], megabytes, f"{megabytes:.1f}: {longest['tokens']:,.0f} tokens"),
    ):
        look = {"align": "left", "xanchor": "left", "xshift": 6, "showarrow": False, "font": {"size": 11}}
        fig.add_annotation(x=end, y=lane, text=text, **look)


def _users_that_fit(memory: float, weights: float, per_user: float) -> int:
    return max(1, int((memory - weights) / per_user))


def _draw_growth(fig: go.Figure, tokens: int, per_user: float, weights: float, memory: float, place: int) -> None:
    """A line from the weights alone to full memory, with the number of users at its end, `place` lines above it."""
    users = _users_that_fit(memory, weights, per_user)
    fig.add_scatter(
        x=[0, users],
        y=[weights, weights + users * per_user],
        mode="lines+markers",
        xaxis="x2",
        yaxis="y2",
        showlegend=False,
        line={"color": DECODE, "width": 2},
        marker={"color": DECODE, "size": 8},
        name=f"{tokens} tokens a user",
        **saying(
            f"{counted(number, 'user')} of {tokens:,} tokens · {weights + number * per_user:.2f} GB with the weights"
            for number in (0, users)
        ),
    )
    fig.add_annotation(
        xref="x2", yref="y2", x=users, y=memory, xanchor="left" if place else "right", yanchor="bottom",
        yshift=4 + LINE_PX * place, text=f"{users:,} × {tokens:,} tokens", showarrow=False,
    )  # fmt: skip


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


# Builds ---------------------------------------------------------------------------------------------------------------


def builds(rows: list[dict]) -> go.Figure:
    """Above, what each build makes of the checkpoint's perplexity; below, its speed against its bytes.

    `rows` are those of `inflight.bench.quality.bench`; the checkpoint's own is the line at 1.
    """
    engines = [row for row in rows if row["over_checkpoint"]]
    fig = go.Figure()
    fig.add_scatter(
        x=[1] * len(engines),
        y=[row["build"] for row in engines],
        mode="lines",
        line={"color": INK, "width": 1, "dash": "dash"},
        **line_saying("1 times the checkpoint's perplexity: nothing lost", len(engines)),
    )
    fig.add_scatter(
        x=[row["over_checkpoint"]["value"] for row in engines],
        y=[row["build"] for row in engines],
        error_x={
            "array": [row["over_checkpoint"]["high"] - row["over_checkpoint"]["value"] for row in engines],
            "arrayminus": [row["over_checkpoint"]["value"] - row["over_checkpoint"]["low"] for row in engines],
            "thickness": 2,
        },
        mode="markers",
        marker={"color": DECODE, "size": 11},
        **saying(map(_in_words, engines)),
    )
    for users, colour, symbol in ((8, DECODE, SYMBOLS[0]), (1, REQUEST[3], SYMBOLS[1])):
        fig.add_scatter(
            x=[row["weight_bytes"] / MB for row in engines],
            y=[row[f"tokens_per_s_{users}"] for row in engines],
            xaxis="x2",
            yaxis="y2",
            mode="markers+text",
            text=[row["build"] for row in engines] if users == 8 else None,
            textposition=_beside(engines),
            textfont={"color": INK},
            marker={"color": colour, "size": 11, "symbol": symbol},
            **saying(map(_in_words, engines)),
        )
    title = "Perplexity over the checkpoint's, with its 95 % interval"
    titles = [title, "Speed against bytes: ● for 8 users, ◆ for 1"]
    perplexity, speed = stack(fig, titles, [40 + 36 * len(engines), 240], axis_px=70, left_px=80)
    most_mb = max(row["weight_bytes"] for row in engines) / MB
    fastest = max(row["tokens_per_s_8"] for row in engines)
    fig.update_layout(
        title="What builds keep, weigh and give",
        showlegend=False,
        margin={"l": 90, "r": 30},
        xaxis={
            "title": {"text": "times the checkpoint's perplexity<br>(1: nothing lost)", "standoff": 6},
            "anchor": "y",
        },
        yaxis={"domain": perplexity, "autorange": "reversed"},
        xaxis2={"title": "megabytes of weights", "anchor": "y2", "range": [0, most_mb * 1.35]},
        yaxis2={"title": "tokens a second", "domain": speed, "anchor": "x2", "range": [0, fastest * 1.2]},
        meta={"device": _devices(engines)},
    )
    return fig


def _devices(engines: list[dict]) -> str:
    """What the engines compute on; with their names where it is not one for all."""
    by_device: dict[str, list[str]] = {}
    for row in engines:
        by_device.setdefault(row["device"], []).append(row["build"])
    if len(by_device) == 1:
        return next(iter(by_device))
    return " and ".join(f"{device} ({', '.join(names)})" for device, names in by_device.items())


def _beside(engines: list[dict]) -> list[str]:
    """Where each build's name stands: builds of the same bytes lie above each other, and their names take turns."""
    places = {}
    for sizes in {row["weight_bytes"] for row in engines}:
        alike = sorted((row for row in engines if row["weight_bytes"] == sizes), key=lambda row: row["tokens_per_s_8"])
        turns = ["middle right", "middle left"] if len(alike) > 1 else ["top center"]
        places |= {row["build"]: turns[number % len(turns)] for number, row in enumerate(alike)}
    return [places[row["build"]] for row in engines]


def _in_words(row: dict) -> str:
    ratio = row["over_checkpoint"]
    return (
        f"<b>{row['build']}</b>: {row['weight_bytes'] / MB:.0f} MB of weights<br>"
        f"{ratio['value']:.3f} times the checkpoint's perplexity ({ratio['low']:.3f} to {ratio['high']:.3f})<br>"
        f"the same most likely token in {row['same_top']['value']:.1%} of places<br>"
        f"{row['tokens_per_s_1']:.0f} tokens a second for 1 user, {row['tokens_per_s_8']:.0f} for 8"
    )


def builds_summary(rows: list[dict]) -> str:
    """The picture of `builds` in a paragraph."""
    parts = [
        f"{row['build']} {row['over_checkpoint']['value']:.3f}, {row['weight_bytes'] / MB:.0f} MB, "
        f"{row['tokens_per_s_1']:.0f} and {row['tokens_per_s_8']:.0f} tokens a second"
        for row in rows
        if row["over_checkpoint"]
    ]
    return (
        "Above, each build's perplexity over the checkpoint's; below, tokens a second for 1 and 8 users against "
        f"megabytes of weights: {'; '.join(parts)}."
    )
