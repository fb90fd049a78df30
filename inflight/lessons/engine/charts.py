"""Lesson 01: a layer of the graph, what fills the memory, and what builds cost."""

import math
from itertools import cycle

import pandas as pd
import plotly.graph_objects as go

from inflight.engine.openvino.layers import INPUT, Layer, Step
from inflight.notebook.charts.marks import counted, line_saying, once_in_legend, saying
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, INK, REQUEST, SYMBOLS, WASTE, as_text, text_on

_KINDS = {"feed-forward": "#333333", "embedding": "#5A5A5A", "attention": "#7A7A7A", "norms": "#949494"}
MB, GB = 1e6, 1e9
LINE_PX = 19
APART = 0.025  # of an axis, between builds of the same bytes


def layer(found: Layer) -> go.Figure:
    """The main operations of a layer of the graph, from its input above to its output below."""
    fig = go.Figure()
    for step in found.steps:
        for source in step.after:
            _draw_way(fig, source, step.name)
    words = {INPUT: "what the layer before gave"} | {step.name: _in_words_of(step) for step in found.steps}
    labels = {INPUT: INPUT} | {step.name: _label(step) for step in found.steps}
    for name in words:
        x, row = _PLACES[name]
        fig.add_shape(
            type="rect", layer="below", x0=x - 0.57, x1=x + 0.57, y0=row - 0.4, y1=row + 0.4,
            fillcolor="white", line={"color": _COLOURS.get(name, INK), "width": 3 if name in _COLOURS else 1},
        )  # fmt: skip
    fig.add_scatter(
        x=[_PLACES[name][0] for name in words],
        y=[_PLACES[name][1] for name in words],
        mode="text",
        text=list(labels.values()),
        textfont={"size": 12, "color": INK},
        **saying(f"<b>{name}</b>: {text}" for name, text in words.items()),
    )
    fig.update_layout(
        meta={"device": ""},
        title=f"A layer of the graph: {len(found.steps)} of its {found.num_operations} operations",
        height=600,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        showlegend=False,
        xaxis={"visible": False, "range": [-2.95, 3], "fixedrange": True},
        yaxis={"visible": False, "range": [12.5, -0.5], "fixedrange": True},
    )
    return fig


# Where each operation is drawn: its column, 0 in the middle, and its row from the top.
_PLACES: dict[str, tuple[float, int]] = {
    INPUT: (0, 0), "norm 1": (0, 1),
    "query": (-1.95, 2), "key": (-0.65, 2), "value": (0.65, 2),
    "turned query": (-1.95, 3), "turned key": (-0.65, 3), "past keys": (1.22, 3), "past values": (2.4, 3),
    "attention": (0, 4), "output": (0, 5), "sum 1": (0, 6), "norm 2": (0, 7),
    "gate": (-0.75, 8), "up": (0.75, 8), "SiLU": (-0.75, 9), "gated": (0, 10), "down": (0, 11), "sum 2": (0, 12),
}  # fmt: skip
_COLOURS = {
    **dict.fromkeys(("query", "key", "value", "output"), _KINDS["attention"]),
    **dict.fromkeys(("gate", "up", "down"), _KINDS["feed-forward"]),
    **dict.fromkeys(("norm 1", "norm 2"), _KINDS["norms"]),
    **dict.fromkeys(("past keys", "past values"), DECODE),
}
_MEANING = {
    "turned": "rotates by the token's position",
    "past": "state of the graph: what earlier tokens have left",
    "attention": "mixes the values of all tokens so far, by how well their keys fit the query",
    "norm": "brings each activation to one length",
    "sum": "adds to what came in",
    "SiLU": "the activation function: closes the gate for numbers below zero",
    "gated": "multiplies gate and up",
}


def _draw_way(fig: go.Figure, start: str, end: str) -> None:
    """A line from box to box; one over many rows goes around what lies between, on the left."""
    (x0, row0), (x1, row1) = _PLACES[start], _PLACES[end]
    if row1 - row0 > 2:
        out = -2.8 if row0 == 0 else -1.6
        xs, ys = [x0 - 0.57, out, out, x1 - 0.57], [row0, row0, row1, row1]
    else:
        xs, ys = [x0, x1], [row0 + 0.4, row1 - 0.4]
    look = {"mode": "lines", "line": {"color": WASTE, "width": 1.5}}
    fig.add_scatter(x=xs, y=ys, **look, **line_saying(f"from {start} to {end}", len(xs)))


def _label(step: Step) -> str:
    """Its name and, on a second line, the shape of its weights."""
    return "<br>".join([step.name, " × ".join(f"{number:,}" for number in step.matrix)][: 1 + bool(step.matrix)])


def _in_words_of(step: Step) -> str:
    if step.matrix:
        rows, columns = step.matrix
        return f"product with {rows * columns:,} weights, {rows:,} rows of {columns:,} columns"
    return _MEANING[step.name.split()[0]]


def layer_summary(found: Layer) -> str:
    """The picture of `layer` in a paragraph."""
    products = [step for step in found.steps if step.matrix]
    largest = max(products, key=lambda step: step.matrix[0] * step.matrix[1])
    weights = sum(step.matrix[0] * step.matrix[1] for step in products)
    return (
        f"From above: the input is normed and multiplied to query, key and value; query and key are turned by the "
        f"token's position; attention reads past keys and values beside the new ones; its output is added to the "
        f"input. Below, the sum is normed and goes through gate, up and down, and is added again. "
        f"{len(products)} products hold {weights:,} weights; one of the largest, {largest.name}, has "
        f"{largest.matrix[0]:,} × {largest.matrix[1]:,}. All in all the layer has {found.num_operations} operations."
    )


def engine_bytes(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float, slots: int) -> go.Figure:
    """Above, weights and the KV cache of a few users on one scale; below, both against users, up to full memory.

    Below both scales are logarithmic, so that weights, slots and memory are seen at once.

    Parameters
    ----------
    weights : DataFrame
        `kind`, `bytes`.
    kv_per_user : DataFrame
        `tokens`, `bytes`: the KV cache of one user with that many tokens, the longest first.
    memory_bytes : float
        Memory that is free.
    slots : int
        `max_batch_size`: more users than these wait.
    """
    fig = go.Figure()
    total = weights["bytes"].sum()
    _draw_bars(fig, weights, kv_per_user.iloc[0])
    most = _users_that_fit(memory_bytes, total, kv_per_user["bytes"].min())
    for place, row in enumerate(kv_per_user[::-1].itertuples()):
        _draw_growth(fig, row.tokens, row.bytes, total, memory_bytes, slots, place)
    ends = math.log10(0.8), math.log10(most * 2.5)
    bottom, top = math.log10(total / MB * 0.5), math.log10(memory_bytes / MB * 6)
    for text, height, colour, side, above in (
        (f"weights: {total / MB:,.0f} MB", total, WASTE, "right", True),
        (f"free memory: {memory_bytes / GB:.1f} GB", memory_bytes, REQUEST[3], "left", False),  # above it: who fits
    ):
        fig.add_scatter(
            x=[0.8, most * 2.5], y=[height / MB] * 2, xaxis="x2", yaxis="y2", mode="lines", showlegend=False,
            line={"color": colour, "width": 2, "dash": "dash"}, **line_saying(text),
        )  # fmt: skip
        fig.add_annotation(
            xref="x2", yref="y2", x=ends[side == "right"], y=math.log10(height / MB), xanchor=side,
            yanchor="bottom" if above else "top", text=text, showarrow=False, font={"color": as_text(colour)},
        )  # fmt: skip
    fig.add_scatter(
        x=[slots, slots], y=[10**bottom, 10**top], xaxis="x2", yaxis="y2", mode="lines", showlegend=False,
        line={"color": INK, "width": 1.5, "dash": "dot"}, **line_saying(f"max_batch_size · {counted(slots, 'slot')}"),
    )  # fmt: skip
    fig.add_annotation(
        xref="x2", yref="y2", x=math.log10(slots), y=bottom, xanchor="left", yanchor="bottom", xshift=4,
        text=counted(slots, "slot"), showarrow=False,
    )  # fmt: skip
    widest = max(total, 4 * kv_per_user["bytes"].max())
    fig.update_layout(
        meta={"device": ""},  # worked out, not measured
        title="What fills the memory",
        barmode="stack",
        height=640,
        margin={"l": 90, "r": 12},
        xaxis={"title": "megabytes", "anchor": "y", "range": [0, 1.15 * widest / MB]},
        yaxis={"domain": [0.72, 1], "showgrid": False},
        xaxis2={
            "title": "users at the same time", "anchor": "y2", "type": "log", "range": list(ends),
            "dtick": 1, "tickformat": ",",
        },
        yaxis2={
            "title": "megabytes", "domain": [0, 0.56], "anchor": "x2", "type": "log", "range": [bottom, top],
            "dtick": 1, "tickformat": ",",
        },
    )  # fmt: skip
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


def _draw_growth(
    fig: go.Figure, tokens: int, per_user: float, weights: float, memory: float, slots: int, place: int
) -> None:
    """From one user to full memory, as far as the slots solid; the users at its end, `place` lines above it."""
    users = _users_that_fit(memory, weights, per_user)
    for first, last, dash in ((1, min(slots, users), "solid"), (slots, users, "dot")):
        if first >= last:
            continue
        numbers = sorted({round(first * (last / first) ** (step / 24)) for step in range(25)})
        fig.add_scatter(
            x=numbers,
            y=[(weights + number * per_user) / MB for number in numbers],
            mode="lines",
            xaxis="x2",
            yaxis="y2",
            showlegend=False,
            line={"color": DECODE, "width": 3 if dash == "solid" else 2, "dash": dash},
            name=f"{tokens} tokens a user",
            **saying(
                f"{counted(number, 'user')} of {tokens:,} tokens · {(weights + number * per_user) / MB:,.0f} MB with "
                f"the weights{'' if number <= slots else ' · more than there are slots'}"
                for number in numbers
            ),
        )
    fig.add_annotation(
        xref="x2", yref="y2", x=math.log10(users), y=math.log10(memory / MB), xanchor="right", yanchor="bottom",
        yshift=4 + LINE_PX * place, text=f"{users:,} × {tokens:,} tokens", showarrow=False,
    )  # fmt: skip


def engine_bytes_summary(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float, slots: int) -> str:
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
        f"the whole model. Below, memory against users, both on logarithmic scales, one line a length: each begins at "
        f"the weights and rises with the users, as far as there are slots. With {counted(slots, 'slot')} the KV cache "
        f"takes at most {slots * first['bytes'] / GB:.2f} GB; without that limit {memory_bytes / GB:.1f} GB would be "
        f"full at {ends}."
    )


# Builds ---------------------------------------------------------------------------------------------------------------


def builds(rows: list[dict]) -> go.Figure:
    """Quality against bytes, and quality against speed: what each build keeps, weighs and gives.

    `rows` are those of `inflight.bench.quality.bench`; the checkpoint's own perplexity is the line at 1. Builds of the
    same bytes are drawn beside each other.
    """
    engines = [row for row in rows if row["over_checkpoint"]]
    aside = {(row["build"], "tokens_per_s_8"): 0.0 for row in engines}
    for size in {row["weight_bytes"] for row in engines}:
        alike = [row["build"] for row in engines if row["weight_bytes"] == size]
        aside |= {(build, "weight_bytes"): APART * (place - (len(alike) - 1) / 2) for place, build in enumerate(alike)}
    fig = go.Figure()
    panels = (
        ("x", "y", "weight_bytes", 1 / MB, "megabytes of weights"),
        ("x2", "y2", "tokens_per_s_8", 1, "tokens a second, 8 users"),
    )
    widest = {key: max(row[key] for row in engines) * scale * 1.1 for *_, key, scale, _ in panels}
    for x, y, key, scale, _ in panels:
        fig.add_scatter(
            x=[0, widest[key]], y=[1, 1], xaxis=x, yaxis=y, mode="lines", showlegend=False,
            line={"color": INK, "width": 1, "dash": "dash"},
            **line_saying("1 times the checkpoint's perplexity: nothing lost"),
        )  # fmt: skip
        for row, colour, symbol in zip(engines, cycle((DECODE, *REQUEST)), cycle(SYMBOLS)):
            ratio = row["over_checkpoint"]
            fig.add_scatter(
                x=[row[key] * scale + aside[row["build"], key] * widest[key]],
                y=[ratio["value"]],
                error_y={
                    "array": [ratio["high"] - ratio["value"]],
                    "arrayminus": [ratio["value"] - ratio["low"]],
                    "thickness": 1.5,
                },
                xaxis=x,
                yaxis=y,
                mode="markers",
                name=row["build"],
                legendgroup=row["build"],
                marker={"color": colour, "size": 12, "symbol": symbol},
                **saying([_in_words(row)]),
            )
    titles = ["Quality against bytes", "Quality against speed"]
    of_bytes, of_speed = stack(fig, titles, [200, 200], axis_px=70, left_px=80)
    vertical = {"title": "times the checkpoint's<br>perplexity", "tickformat": ".3f"}
    fig.update_layout(
        title="What builds keep, weigh and give",
        margin={"l": 90, "r": 24},
        xaxis={"title": {"text": panels[0][-1], "standoff": 6}, "anchor": "y", "range": [0, widest["weight_bytes"]]},
        yaxis={**vertical, "domain": of_bytes},
        xaxis2={"title": panels[1][-1], "anchor": "y2", "range": [0, widest["tokens_per_s_8"]]},
        yaxis2={**vertical, "domain": of_speed, "anchor": "x2", "matches": "y"},
        meta={"device": _devices(engines)},
    )
    once_in_legend(fig)
    return fig


def _devices(engines: list[dict]) -> str:
    """What the engines compute on; with their names where it is not one for all."""
    by_device: dict[str, list[str]] = {}
    for row in engines:
        by_device.setdefault(row["device"], []).append(row["build"])
    if len(by_device) == 1:
        return next(iter(by_device))
    return " and ".join(f"{device} ({', '.join(names)})" for device, names in by_device.items())


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
        "Each build's perplexity over the checkpoint's, above against its megabytes of weights, below against its "
        f"tokens a second for 8 users. Perplexity, megabytes, and tokens a second for 1 and for 8 users: "
        f"{'; '.join(parts)}."
    )
