"""Lesson 05: who holds which blocks, what a policy costs, what a long prompt does to others, what reuse saves."""

from itertools import cycle, pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import (
    area_saying,
    counted,
    in_order,
    keep_panel,
    line_saying,
    once_in_legend,
    saying,
    saying_alike,
    words,
)
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, INK, PREFILL, REQUEST, SHADES, WASTE, as_text, patterns
from inflight.triton import telemetry

PAUSED = REQUEST[3]
PROMISED = REQUEST[0]  # of `guaranteed_no_evict` alone, which has this colour
POLICY = {
    "guaranteed_no_evict": {"color": REQUEST[0], "dash": "solid", "symbol": "circle"},
    "max_utilization": {"color": PAUSED, "dash": "dash", "symbol": "diamond"},
}


# Blocks × iterations --------------------------------------------------------------------------------------------------


def kv_blocks(runs: dict[str, pd.DataFrame], idle: dict[str, pd.DataFrame] | None = None) -> go.Figure:
    """KV cache blocks × iterations, stacked by request; below, who has no slot. One panel a run, on one scale.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title: an iteration log (`telemetry.iterations`) whose iterations begin with 1.
    idle : dict of str to DataFrame, optional
        Of the runs in which blocks are promised: `promised_blocks.idle`. They lie on top of those that are held.
    """
    idle = idle or {}
    fig = go.Figure()
    end = max(max(len(log), 1) for log in runs.values())
    most = max(_largest(log, "kv_blocks_max") for log in runs.values()) or 1
    outside = max([4, *(int((log["waiting"] + log["paused"]).max()) for log in runs.values() if len(log))])
    notes = [_in_short(log, idle.get(title)) for title, log in runs.items()]
    domains = stack(fig, list(runs), [214] * len(runs), notes, axis_px=30)
    for number, ((title, log), (bottom, top)) in enumerate(zip(runs.items(), domains, strict=True)):
        blocks, strip = "" if number == 0 else str(2 * number + 1), str(2 * number + 2)
        middle, is_last = bottom + 0.3 * (top - bottom), number == len(runs) - 1
        x_axis = {"range": [0, end * 1.01], "matches": "x" if number else None, "showgrid": False}
        fig.update_layout(
            {
                f"xaxis{blocks}": {**x_axis, "anchor": f"y{blocks}", "showticklabels": False},
                f"yaxis{blocks}": {
                    "anchor": f"x{blocks}",
                    "domain": [middle, top],
                    "range": [0, most * 1.04],
                    "title": "KV blocks",
                },
                f"xaxis{strip}": {
                    **x_axis,
                    "matches": "x",
                    "anchor": f"y{strip}",
                    "title": "iteration" if is_last else None,
                },
                f"yaxis{strip}": {
                    "anchor": f"x{strip}",
                    "domain": [bottom, middle],
                    "range": [outside * 1.05, 0],
                    "tickvals": [outside],  # 0 is written above it
                    "title": "no slot",
                },
            }
        )
        if len(log):
            _draw_holders(fig, log, {"xaxis": f"x{blocks}", "yaxis": f"y{blocks}"})
            if title in idle:
                _draw_promised(fig, log, idle[title], {"xaxis": f"x{blocks}", "yaxis": f"y{blocks}"})
            _draw_outside(fig, log, {"xaxis": f"x{strip}", "yaxis": f"y{strip}"})
        else:
            keep_panel(fig, {"xaxis": f"x{blocks}", "yaxis": f"y{blocks}"})
            keep_panel(fig, {"xaxis": f"x{strip}", "yaxis": f"y{strip}"})
    once_in_legend(fig)
    return fig.update_layout(margin={"l": 70, "r": 16})


def kv_blocks_summary(runs: dict[str, pd.DataFrame], idle: dict[str, pd.DataFrame] | None = None) -> str:
    """The picture of `kv_blocks` in a paragraph."""
    idle = idle or {}
    parts = [
        f"{title}: {_in_short(log, idle.get(title))}, "
        f"at most {_largest(log, 'waiting')} waiting and {_largest(log, 'paused')} paused"
        for title, log in runs.items()
    ]
    return f"KV cache blocks held by each request, iteration by iteration, and who has no slot. {'; '.join(parts)}."


def _largest(log: pd.DataFrame, column: str) -> int:
    return int(log[column].max()) if len(log) else 0


def _in_short(log: pd.DataFrame, idle: pd.DataFrame | None = None) -> str:
    if log.empty:
        return "nothing yet"
    capacity = _largest(log, "kv_blocks_max")
    used = 100 * (log["kv_blocks_used"] / log["kv_blocks_max"]).mean()
    said = f"{len(log):,} iterations, {used:.0f} % of {capacity} blocks in use on average"
    return said if idle is None else f"{said}, {100 * idle['promised'].mean() / capacity:.0f} % only promised"


def _draw_holders(fig: go.Figure, log: pd.DataFrame, axes: dict) -> None:
    """An area for each request, the oldest at the bottom; an orange edge where a paused one is computed again.

    Where the log does not tell who holds which blocks, one area for all together.
    """
    if telemetry.names_requests(log):
        shares = telemetry.shares(log)
        shares["request"] = in_order(shares["request"])
        held = shares.pivot(index="iteration", columns="request", values="blocks").reindex(log["iteration"])
    else:
        held = log.set_index("iteration")[["kv_blocks_used"]]
    held = held.fillna(0).astype(int)
    upper = held.cumsum(axis=1)
    again: tuple[list, list, list, list] = [], [], [], []
    for request, colour in zip(upper.columns, cycle(SHADES)):
        top, own = upper[request].to_numpy(), held[request].to_numpy()
        who = request if isinstance(request, int) else None
        name = "all requests" if who is None else f"request {who}"
        x, y, blocks, stays = [], [], [], _stays(own)
        for number, (first, last) in enumerate(stays):
            path = _steps(first, top[first:last]), _steps(first, (top - own)[first:last])
            corners = [*path[0][0], *path[1][0][::-1]]
            x += [*corners, None]
            y += [*path[0][1], *path[1][1][::-1], None]
            blocks += [*(int(own[min(corner, last - 1)]) for corner in corners), None]
            if number:
                again[0].extend([first, first, None])
                again[1].extend([int(top[first] - own[first]), int(top[first]), None])
                told = words(name, f"{counted(int(own[first]), 'block')} computed again", f"iteration {first + 1}")
                again[2].extend([told, told, ""])
                again[3].extend([who, who, None])
        fig.add_scatter(
            x=x,
            y=y,
            fill="toself",
            fillcolor=colour,
            mode="lines",
            line={"color": "white", "width": 0.6},
            name="a request's blocks",
            legendgroup="held",
            customdata=blocks,
            **area_saying(
                _stays_in_words(name, own, stays),
                who,
                at_corners=f"{name} · blocks held: %{{customdata}} · after %{{x}} iterations",
            ),
            **axes,
        )
    fig.add_scatter(
        x=again[0] or [None],
        y=again[1] or [None],
        mode="lines",
        line={"color": PREFILL, "width": 4},
        name="computed again",
        legendgroup="again",
        **saying(again[2], again[3]),
        **axes,
    )
    ends, capacity = [0, len(log)], _largest(log, "kv_blocks_max")
    fig.add_scatter(
        x=ends,
        y=[capacity] * 2,
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dash"},
        name="all blocks",
        legendgroup="all",
        **line_saying(f"all {counted(capacity, 'block')} of the cache"),
        **axes,
    )


def _draw_promised(fig: go.Figure, log: pd.DataFrame, idle: pd.DataFrame, axes: dict) -> None:
    """Blocks that are promised to those who run and that nobody holds yet: idle, and not free."""
    held, promised = log["kv_blocks_used"].to_numpy(), idle["promised"].to_numpy()
    upper, lower = _steps(0, held + promised), _steps(0, held)
    x = [*upper[0], *lower[0][::-1]]
    told = [
        f"{counted(blocks, 'block')} · free for anybody: {free}" for blocks, free in zip(promised, idle["to_nobody"])
    ]
    fig.add_scatter(
        x=x,
        y=[*upper[1], *lower[1][::-1]],
        fill="toself",
        mode="lines",
        line={"color": PROMISED, "width": 0},
        fillcolor="white",
        fillpattern={"shape": "\\", "fgcolor": PROMISED, "bgcolor": "white", "size": 8, "solidity": 0.3},
        name="promised, not yet held",
        legendgroup="promised",
        customdata=[told[min(corner, len(told) - 1)] for corner in x],
        **area_saying(
            f"promised to those who run, not yet held · on average {counted(round(promised.mean()), 'block')}",
            at_corners="promised, not yet held: %{customdata} · after %{x} iterations",
        ),
        **axes,
    )


def _stays_in_words(name: str, held: np.ndarray, stays: list[tuple[int, int]]) -> str:
    """What a request held, and when; between its stays it was paused."""
    if not stays:
        return words(name, "no blocks")
    pauses = [f"paused at iteration {leaves + 1}, back at {back + 1}" for (_, leaves), (back, _) in pairwise(stays)]
    first, last = stays[0][0] + 1, stays[-1][1]
    return words(name, f"at most {counted(int(held.max()), 'block')}", f"iterations {first} to {last}", *pauses)


def _stays(held: np.ndarray) -> list[tuple[int, int]]:
    """From where to where (exclusive) a request holds blocks."""
    changes = np.diff(np.concatenate(([0], held > 0, [0])).astype(int))
    return list(zip(np.flatnonzero(changes == 1).tolist(), np.flatnonzero(changes == -1).tolist(), strict=True))


def _steps(start: int, values: np.ndarray) -> tuple[list[int], list[int]]:
    """Corners of a line that has one value an iteration and is drawn from `start` on."""
    changes = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*changes[1:], len(values)]
    x = [start + place for pair in zip(changes, ends, strict=True) for place in pair]
    return x, [int(values[change]) for change in changes for _ in range(2)]


def _draw_outside(fig: go.Figure, log: pd.DataFrame, axes: dict) -> None:
    """Paused requests, hatched, and below them the waiting ones."""
    paused, waiting = log["paused"].to_numpy(), log["waiting"].to_numpy()
    both = paused + waiting
    dotted = {"shape": ".", "fgcolor": "white", "bgcolor": WASTE, "size": 8, "solidity": 0.15}
    hatched = {"fillpattern": {"shape": "/", "fgcolor": PAUSED, "bgcolor": "white"}, "fillcolor": "white"}
    for name, numbers, upper, lower, look in (
        ("waiting", waiting, paused, both, {"fillpattern": dotted, "fillcolor": WASTE}),
        ("paused", paused, 0 * paused, paused, hatched),
    ):
        one, other = _steps(0, lower), _steps(0, upper)
        fig.add_scatter(
            x=[*one[0], *other[0][::-1]],
            y=[*one[1], *other[1][::-1]],
            fill="toself",
            mode="lines",
            line={"color": look["fillcolor"], "width": 0},
            name=name,
            legendgroup=name,
            **area_saying(f"at most {counted(int(numbers.max()), 'request')} {name} in an iteration"),
            **look,
            **axes,
        )


# What a policy gains --------------------------------------------------------------------------------------------------


def policy_gains(rounds: pd.DataFrame) -> go.Figure:
    """Tokens a second of max_utilization over guaranteed_no_evict, a row a kind of traffic: each round and the median.

    Parameters
    ----------
    rounds : DataFrame
        One row a round and kind of traffic: `traffic`, `round`, `ratio`.
    """
    fig = go.Figure()
    kinds = list(dict.fromkeys(rounds["traffic"]))
    spread = rounds.groupby("traffic")["ratio"].agg(["median", "min", "max"]).reindex(kinds)
    fig.add_bar(
        orientation="h",
        y=kinds,
        base=spread["min"].tolist(),
        x=(spread["max"] - spread["min"]).tolist(),
        width=0.06,
        marker={"color": WASTE},
        name="from the least to the most",
        legendgroup="spread",
        **saying(
            f"{row.Index} · from {row.min:.2f} to {row.max:.2f} times as many tokens a second"
            for row in spread.itertuples()
        ),
    )
    fig.add_scatter(
        x=rounds["ratio"].tolist(),
        y=rounds["traffic"].tolist(),
        mode="markers",
        marker={"color": DECODE, "size": 9},
        name="a round",
        legendgroup="round",
        **saying(f"{row.traffic} · round {row.round} · {row.ratio:.2f} times" for row in rounds.itertuples()),
    )
    fig.add_scatter(
        x=spread["median"].tolist(),
        y=kinds,
        mode="markers+text",
        text=[f"{median:.2f}" for median in spread["median"]],
        textposition="top center",
        textfont={"color": INK},
        marker={"color": PAUSED, "size": 12, "symbol": "diamond"},
        name="median",
        legendgroup="median",
        **saying(f"{kind} · median {median:.2f} times" for kind, median in spread["median"].items()),
    )
    low, high = min(0.9, rounds["ratio"].min()), max(1.1, rounds["ratio"].max())
    room = 0.1 * (high - low)
    fig.add_scatter(
        x=[1, 1],
        y=[kinds[0], kinds[-1]],
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dash"},
        name="equally fast",
        legendgroup="equal",
        **line_saying("both policies are equally fast"),
    )
    fig.update_xaxes(title="max_utilization over<br>guaranteed_no_evict, tokens/s", range=[low - room, high + room])
    fig.update_yaxes(title="", autorange="reversed")
    once_in_legend(fig)
    return fig.update_layout(height=130 + 70 * len(kinds))


# Chunked context ------------------------------------------------------------------------------------------------------


def token_gaps(runs: dict[str, pd.DataFrame]) -> go.Figure:
    """Inter-token latency of a reader while somebody's long prompt arrives, one panel a run on one scale.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panel's title. One row a token: `time_s` from the moment the prompt was sent, `gap_ms` since the reader's
        token before. See `long_prompt.send_while_others_read`.
    """
    fig = go.Figure()
    everything = pd.concat(runs.values())
    start, end, most = everything["time_s"].min(), everything["time_s"].max(), everything["gap_ms"].max()
    domains = stack(fig, list(runs), [140] * len(runs))
    for number, (rows, domain) in enumerate(zip(runs.values(), domains, strict=True)):
        suffix = "" if number == 0 else str(number + 1)
        axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        fig.add_scatter(
            x=rows["time_s"].round(4).tolist(),
            y=rows["gap_ms"].round(2).tolist(),
            mode="markers",
            marker={"color": DECODE, "size": 5},
            **saying_alike("a token of the reader · %{y:.1f} ms after the one before · at %{x:.2f} s"),
            **axes,
        )
        fig.add_scatter(
            x=[0, 0, 0],
            y=[0, most / 2, most * 1.1],
            mode="lines",
            line={"color": PREFILL, "width": 3},
            **line_saying("the long prompt is sent · at 0 s", 3),
            **axes,
        )
        fig.add_annotation(
            xref=axes["xaxis"],
            yref=axes["yaxis"],
            x=0,
            y=most,
            text="the long prompt is sent",
            xshift=8,
            xanchor="left",
            yanchor="top",
            showarrow=False,
            font={"color": as_text(PREFILL)},
        )
        fig.update_layout(
            {
                f"xaxis{suffix}": {
                    "anchor": f"y{suffix}",
                    "range": [start, end * 1.02],
                    "matches": "x" if number else None,
                    "title": "time (s)" if number == len(runs) - 1 else None,
                },
                f"yaxis{suffix}": {
                    "anchor": f"x{suffix}",
                    "domain": domain,
                    "title": "ITL (ms)",
                    "range": [0, most * 1.1],
                },
            }
        )
    return fig.update_layout(showlegend=False)


# KV cache reuse -------------------------------------------------------------------------------------------------------


def first_tokens(ttft_ms: pd.DataFrame) -> go.Figure:
    """TTFT of users who come one after the other, a group of bars each; columns are the ways of serving (two)."""
    fig = go.Figure()
    users = [f"user {number}" for number in range(1, len(ttft_ms) + 1)]
    for column, colour, pattern in zip(ttft_ms.columns, (WASTE, PREFILL), patterns(2), strict=True):
        fig.add_bar(
            x=users,
            y=ttft_ms[column].tolist(),
            name=column,
            legendgroup=column,
            marker={"color": colour, "pattern": pattern},
            text=[f"{value:.0f}" for value in ttft_ms[column]],
            textposition="outside",
            textfont={"color": INK},
            **saying(f"{user} · {column} · first token after {ms:.0f} ms" for user, ms in zip(users, ttft_ms[column])),
        )
    fig.update_yaxes(title="TTFT (ms)", range=[0, float(ttft_ms.max().max()) * 1.12])
    once_in_legend(fig)
    return fig.update_layout(barmode="group", height=300, margin={"b": 40})
