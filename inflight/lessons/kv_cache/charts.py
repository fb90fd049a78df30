"""Lesson 05: who holds which blocks of the KV cache, what is promised, and who has no slot."""

from itertools import cycle, pairwise

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go

from inflight.notebook.charts.marks import area_saying, counted, in_order, keep_panel, once_in_legend, saying
from inflight.notebook.charts.palette import DECODE, EMPTY, INK, ON_SHADES, PATTERN, PREFILL, REQUEST, SHADES, WASTE
from inflight.notebook.charts.panels import add_strip, axes_of, panels
from inflight.triton import telemetry

AFTER = 10  # iterations that are drawn after those of a long prompt
NAMED = 7  # iterations of a stay that is wide enough for the request's number
PROMISED, PAUSED, SHARED = REQUEST[0], REQUEST[3], REQUEST[2]
COMPUTES = {"prompt, answers": PREFILL, "answers": DECODE}


def block_tables(
    tables: dict[str, list[int]], tokens: dict[str, int], num_blocks: int, tokens_per_block: int
) -> tuple[go.Figure, str]:
    """Block tables above the cache that they point into, and the picture in words.

    Parameters
    ----------
    tables : dict of str to list of int
        By the request's name: the numbers of its blocks, in the order of its tokens.
    tokens : dict of str to int
        By the request's name: its tokens. A block is filled as far as it has some.
    num_blocks : int
        Blocks of the cache.
    tokens_per_block : int
    """
    holders = {block: [name for name in tables if block in tables[name]] for block in range(num_blocks)}
    colours = dict(zip(tables, REQUEST))

    def colour(block: int) -> str:
        names = holders[block]
        return EMPTY["color"] if not names else SHARED if len(names) > 1 else colours[names[0]]

    def filled(name: str, place: int) -> int:
        return max(0, min(tokens_per_block, tokens[name] - place * tokens_per_block))

    fig = go.Figure()
    for name, blocks in tables.items():
        title, full = f"table of {name}", [filled(name, place) for place in range(len(blocks))]
        said = [f"{title}, place {place}: block {block}, {full[place]} tokens" for place, block in enumerate(blocks)]
        _draw_blocks(fig, title, blocks, [each / tokens_per_block for each in full], [*map(colour, blocks)], said)
    pool = list(range(num_blocks))
    full = [max((filled(name, tables[name].index(block)) for name in holders[block]), default=0) for block in pool]
    names = ["<br>".join(holders[block]) for block in pool]
    said = [f"block {block}: {' and '.join(holders[block]) or 'free'}, {full[block]} tokens" for block in pool]
    _draw_blocks(fig, "the cache", names, [each / tokens_per_block for each in full], [*map(colour, pool)], said)
    fig.update_layout(height=260, barmode="overlay", showlegend=False, margin={"l": 90}, meta={"device": ""})
    fig.update_layout(uniformtext={"minsize": 7, "mode": "hide"})  # on a phone numbers of two digits have no room
    fig.update_xaxes(
        title="place in the table, or in the cache",
        showgrid=False,
        dtick=4,
        range=[-0.6, num_blocks - 0.4],
    )
    fig.update_yaxes(autorange="reversed", showgrid=False)
    said_of = "; ".join(f"{name} holds blocks {', '.join(map(str, blocks))}" for name, blocks in tables.items())
    shared = [block for block, names in holders.items() if len(names) > 1]
    return fig, f"Of {num_blocks} blocks {said_of}. Both hold {' and '.join(map(str, shared))}, where they begin alike."


def _draw_blocks(
    fig: go.Figure, title: str, texts: list, shares: list[float], colours: list[str], said: list[str]
) -> None:
    """A row of boxes, each filled from the left as far as it has tokens."""
    lefts = [place - 0.46 for place in range(len(texts))]
    row = {"base": lefts, "y": [title] * len(texts), "orientation": "h"}
    fig.add_bar(x=[0.92 * share for share in shares], width=0.7, marker={"color": colours}, hoverinfo="skip", **row)
    fig.add_bar(
        x=[0.92] * len(texts),
        width=0.7,
        marker={"color": "rgba(0,0,0,0)", "line": {"color": EMPTY["color"], "width": 1}},
        text=texts,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        **saying(said),
        **row,
    )


def of_longest_prompt(log: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of an iteration log in which the longest of the prompts is computed."""
    table = telemetry.shares(log)
    longest = table.groupby("request")["context"].sum().idxmax()
    return log[log["iteration"].isin(table[(table["request"] == longest) & (table["context"] > 0)]["iteration"])]


def iterations_around(rounds: dict[str, list[pd.DataFrame]]) -> tuple[go.Figure, str]:
    """A bar an iteration, as high as it took; a panel a way to compute a long prompt. And the picture in words.

    Parameters
    ----------
    rounds : dict of str to list of DataFrame
        By the way: the iteration log of each round. A typical one is drawn: the middle one by the longest iteration of
        the last way over that of the first.
    """
    took = {way: [of_longest_prompt(log) for log in logs] for way, logs in rounds.items()}
    longest = pd.DataFrame({way: [its["iteration_ms"].max() for its in logs] for way, logs in took.items()})
    ratios = longest.iloc[:, -1] / longest.iloc[:, 0]
    typical = (ratios - ratios.median()).abs().idxmin()
    drawn, said = [], []
    for way, logs in rounds.items():
        log, own = logs[typical], took[way][typical]["iteration"]
        log = log[log["iteration"].between(own.min(), own.max() + AFTER)]
        computes = log["iteration"].isin(own).map({True: "prompt, answers", False: "answers"})
        drawn.append(log.assign(prompt=way, computes=computes, since=log["iteration"] - own.min()))
        said.append(f"{way}: it takes {counted(len(own), 'iteration')}, the longest {longest[way][typical]:.0f} ms")
    fig = px.bar(
        pd.concat(drawn), x="since", y="iteration_ms", facet_row="prompt", color="computes",
        color_discrete_map=COMPUTES, pattern_shape="computes",
        pattern_shape_map={"prompt, answers": "/", "answers": ""},
    )  # fmt: skip
    fig.update_traces(marker={"pattern": PATTERN}, selector={"name": "prompt, answers"})
    fig.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("prompt=")))
    fig.update_layout(height=420, legend_title="computes", bargap=0.15)
    fig.update_yaxes(title="ms").update_xaxes(title="iterations since the prompt's first", row=1)
    return fig, f"A typical round, in which a long prompt comes to readers; {'; '.join(said)}."


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
    most = max(_largest(log, "kv_blocks_max") for log in runs.values()) or 1
    outside = max([4, *(int((log["waiting"] + log["paused"]).max()) for log in runs.values() if len(log))])
    fig = panels(list(runs), 214, [_in_short(log, idle.get(title)) for title, log in runs.items()])
    fig.update_yaxes(range=[0, most * 1.04], tickvals=[0, most // 2, most], title="KV blocks")
    for number, (title, log) in enumerate(runs.items(), 1):
        above, below = axes_of(number), add_strip(fig, number, len(runs), share=0.3)
        if len(log):
            _draw_holders(fig, log, above)
            if title in idle:
                _draw_promised(fig, log, idle[title], above)
            _draw_outside(fig, log, below)
        else:
            keep_panel(fig, above)
            keep_panel(fig, below)
        strip = {"range": [outside * 1.05, 0], "tickvals": [outside], "title": "no slot"}  # 0 is written above it
        fig.update_layout({f"yaxis{len(runs) + number}": strip})
    fig.update_xaxes(range=[0, 1.01 * max(max(len(log), 1) for log in runs.values())], showgrid=False)
    fig.update_xaxes(title="iteration", row=len(runs), col=1)
    once_in_legend(fig)
    return fig


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
    used = 100 * telemetry.shares(log)["blocks"].sum() / (capacity * len(log))
    said = f"{len(log):,} iterations, {used:.0f} % of {capacity} blocks in use on average"
    return said if idle is None else f"{said}, {100 * idle['promised'].mean() / capacity:.0f} % only promised"


def _draw_holders(fig: go.Figure, log: pd.DataFrame, axes: dict) -> None:
    """An area for each request, the oldest at the bottom; an orange edge where a paused one is computed again."""
    shares = telemetry.shares(log)
    shares["request"] = in_order(shares["request"])
    held = shares.pivot(index="iteration", columns="request", values="blocks").reindex(log["iteration"])
    held = held.fillna(0).astype(int)
    upper = held.cumsum(axis=1)
    again_x, again_y, again_told = [], [], []
    named: list[tuple[int, float, int, str]] = []
    for request, colour, words in zip(upper.columns, cycle(SHADES), cycle(ON_SHADES)):
        top, own = upper[request].to_numpy(), held[request].to_numpy()
        name = f"request {request}"
        x: list[float | None] = []
        y: list[float | None] = []
        stays = _stays(own)
        for number, (first, last) in enumerate(stays):
            edge_x, edge_y = _between((top - own)[first:last], top[first:last], first)
            x, y = [*x, *edge_x, None], [*y, *edge_y, None]
            if last - first >= NAMED:
                named.append((first + 1, top[first] - own[first] / 2, request, words))
            if number:
                told = f"{name} · {counted(int(own[first]), 'block')} computed again · iteration {first + 1}"
                again_x += [first, first, None]
                again_y += [int(top[first] - own[first]), int(top[first]), None]
                again_told += [told, told, ""]
        fig.add_scatter(
            x=x,
            y=y,
            fill="toself",
            fillcolor=colour,
            mode="lines",
            line={"color": "white", "width": 0.6},
            name="a request's blocks",
            legendgroup="held",
            **area_saying(_stays_in_words(name, own, stays)),
            **axes,
        )
    if named:
        xs, ys, numbers, colours = map(list, zip(*named))
        look = {"mode": "text", "textposition": "middle right", "textfont": {"size": 9, "color": colours}}
        fig.add_scatter(x=xs, y=ys, text=numbers, hoverinfo="skip", showlegend=False, **look, **axes)
    fig.add_scatter(
        x=again_x or [None],
        y=again_y or [None],
        mode="lines",
        line={"color": PREFILL, "width": 4},
        name="computed again",
        legendgroup="again",
        **saying(again_told),
        **axes,
    )
    capacity = _largest(log, "kv_blocks_max")
    fig.add_scatter(
        x=[0, len(log)],
        y=[capacity] * 2,
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dash"},
        name="all blocks",
        legendgroup="all",
        **saying([f"all {counted(capacity, 'block')} of the cache"] * 2),
        **axes,
    )


def _draw_promised(fig: go.Figure, log: pd.DataFrame, idle: pd.DataFrame, axes: dict) -> None:
    """Blocks that are promised to those who run and that nobody holds yet: idle, and not free."""
    held, promised = log["kv_blocks_used"].to_numpy(), idle["promised"].to_numpy()
    x, y = _between(held, held + promised)
    fig.add_scatter(
        x=x,
        y=y,
        fill="toself",
        mode="lines",
        line={"color": PROMISED, "width": 0},
        fillcolor="white",
        fillpattern={"shape": "\\", "fgcolor": PROMISED, "bgcolor": "white", "size": 8, "solidity": 0.3},
        name="promised, not yet held",
        legendgroup="promised",
        **area_saying(
            f"promised to those who run, not yet held · on average {counted(round(promised.mean()), 'block')}"
        ),
        **axes,
    )


def _draw_outside(fig: go.Figure, log: pd.DataFrame, axes: dict) -> None:
    """Paused requests, hatched, and below them the waiting ones."""
    paused, waiting = log["paused"].to_numpy(), log["waiting"].to_numpy()
    dotted = {"shape": ".", "fgcolor": "white", "bgcolor": WASTE, "size": 8, "solidity": 0.15}
    hatched = {"shape": "/", "fgcolor": PAUSED, "bgcolor": "white"}
    for name, numbers, start, colour, pattern in (
        ("waiting", waiting, paused, WASTE, dotted),
        ("paused", paused, 0 * paused, "white", hatched),
    ):
        x, y = _between(start, start + numbers)
        fig.add_scatter(
            x=x,
            y=y,
            fill="toself",
            mode="lines",
            line={"color": colour, "width": 0},
            fillcolor=colour,
            fillpattern=pattern,
            name=name,
            legendgroup=name,
            **area_saying(f"at most {counted(int(numbers.max()), 'request')} {name} in an iteration"),
            **axes,
        )


def _stays_in_words(name: str, held: np.ndarray, stays: list[tuple[int, int]]) -> str:
    """Say what a request held, and when; between its stays it was paused."""
    if not stays:
        return f"{name} · no blocks"
    pauses = [f"paused at iteration {leaves + 1}, back at {back + 1}" for (_, leaves), (back, _) in pairwise(stays)]
    first, last = stays[0][0] + 1, stays[-1][1]
    return " · ".join([f"{name} · at most {counted(int(held.max()), 'block')} · iterations {first} to {last}", *pauses])


def _stays(held: np.ndarray) -> list[tuple[int, int]]:
    """From where to where (exclusive) a request holds blocks."""
    changes = np.diff(np.concatenate(([0], held > 0, [0])).astype(int))
    return list(zip(np.flatnonzero(changes == 1).tolist(), np.flatnonzero(changes == -1).tolist(), strict=True))


def _between(low: np.ndarray, high: np.ndarray, start: int = 0) -> tuple[list[int], list[int]]:
    """Corners of the area between two lines of steps, with a value an iteration each, drawn from `start` on."""
    (x, top), (back, bottom) = (_steps(start, line) for line in (high, low))
    return [*x, *back[::-1]], [*top, *bottom[::-1]]


def _steps(start: int, values: np.ndarray) -> tuple[list[int], list[int]]:
    """Corners of a line that has one value an iteration and is drawn from `start` on."""
    changes = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*changes[1:], len(values)]
    x = [start + place for pair in zip(changes, ends, strict=True) for place in pair]
    return x, [int(values[change]) for change in changes for _ in range(2)]
