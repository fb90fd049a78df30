"""Lesson 05: a run at one of its iterations: who has which slot, who holds which blocks, and how it came to that."""

from itertools import pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.charts.marks import counted, keep_panel, once_in_legend, saying, words
from inflight.notebook.charts.panels import stack
from inflight.notebook.palette import DECODE, EMPTY, INK, PREFILL, SHADES, WASTE, pattern, text_on
from inflight.triton import telemetry

PROMISED = SHADES[1]  # nearly the blocks' own colour, and hatched
HATCHED = {**pattern("/"), "solidity": 0.4}
CACHE = "cache"
SLOT_PX, STORY_PX = 15, 80


def replay(runs: dict[str, pd.DataFrame], promised: dict[str, pd.DataFrame], iteration: int, slots: int) -> go.Figure:
    """Two panels a run: the slots and the whole cache at `iteration`, and the blocks of the whole run with a cursor.

    Parameters
    ----------
    runs : dict of str to DataFrame
        By the panels' title: an iteration log (`telemetry.iterations`) whose iterations begin with 1.
    promised : dict of str to DataFrame
        Of the runs in which blocks are promised: `promised_blocks.shares`.
    iteration : int
        After the end of a run, its last is shown.
    slots : int
        The engine's `max_batch_size`.
    """
    fig = go.Figure()
    end = max(len(log) for log in runs.values())
    capacity = max(int(log["kv_blocks_max"].iloc[0]) for log in runs.values())
    titles, notes = [], []
    for title, log in runs.items():
        now = log.iloc[min(iteration, len(log)) - 1]
        titles += [title, "the whole run"]
        notes += [_in_short(now, iteration > len(log)), ""]
    heights = [SLOT_PX * (slots + 1), STORY_PX] * len(runs)
    domains = stack(fig, titles, heights, notes, axis_px=46)
    for number, (title, log) in enumerate(runs.items()):
        at = min(iteration, len(log))
        names = ["" if place == 0 else str(place + 1) for place in (2 * number, 2 * number + 1)]
        for name, domain, look in zip(
            names,
            domains[2 * number : 2 * number + 2],
            (
                {"x": {"title": "KV blocks", "range": [0, capacity * 1.01]}, "y": _slot_axis(slots)},
                {
                    "x": {"title": "iteration", "range": [0, end * 1.01], "showgrid": False},
                    "y": {"title": "KV blocks", "range": [0, capacity * 1.06]},
                },
            ),
            strict=True,
        ):
            fig.update_layout(
                {
                    f"xaxis{name}": {"anchor": f"y{name}", **look["x"]},
                    f"yaxis{name}": {"anchor": f"x{name}", "domain": domain, **look["y"]},
                }
            )
        state, story = ({"xaxis": f"x{name}", "yaxis": f"y{name}"} for name in names)
        _draw_slots(fig, log, promised.get(title), at, slots, capacity, state)
        _draw_story(fig, log, promised.get(title), at, capacity, story)
    once_in_legend(fig)
    return fig.update_layout(barmode="stack", bargap=0.18, margin={"l": 70, "r": 16})


def replay_summary(runs: dict[str, pd.DataFrame], promised: dict[str, pd.DataFrame], iteration: int) -> str:
    """The picture of `replay` in a paragraph."""
    parts = []
    for title, log in runs.items():
        at = min(iteration, len(log))
        said = _in_short(log.iloc[at - 1], iteration > len(log))
        if title in promised:
            shares = promised[title]
            said += f", {shares.loc[shares['iteration'] == at, 'promised'].sum()} more promised"
        parts.append(f"{title}: {said}")
    return f"Slots and KV cache blocks at iteration {iteration}. {'; '.join(parts)}."


def _slot_axis(slots: int) -> dict:
    return {
        "type": "category",
        "categoryarray": [CACHE, *(f"slot {slot}" for slot in range(slots, 0, -1))],
        "categoryorder": "array",
        "dtick": 1,
        "tickfont": {"size": 11},
        "showgrid": False,
    }


def _in_short(now: pd.Series, is_over: bool) -> str:
    if is_over:
        return "all answers are complete"
    parts = [f"{now['kv_blocks_used']} of {counted(now['kv_blocks_max'], 'block')} held"]
    parts += [f"{now[name]} {name}" for name in ("waiting", "paused") if now[name]]
    return ", ".join(parts)


def _draw_slots(
    fig: go.Figure, log: pd.DataFrame, promised: pd.DataFrame | None, at: int, slots: int, capacity: int, axes: dict
) -> None:
    """A bar for each taken slot and one for the cache: blocks held, blocks promised, and what is left."""
    stays = telemetry.slots(log)
    numbers = stays["request"].rank(method="dense").astype(int)
    here = stays[(stays["first"] <= at) & (stays["last"] >= at)].assign(number=numbers)
    table = telemetry.shares(log) if promised is None else promised
    shares = table[table["iteration"] == at].set_index("request")
    keep_panel(fig, axes)
    held, extra, who = [], [], []
    for stay in here.itertuples():
        held.append(int(shares["blocks"].get(stay.request, 0)))
        extra.append(int(shares["promised"].get(stay.request, 0)) if promised is not None else 0)
        who.append(stay.number)
    rows = [f"slot {slot}" for slot in here["slot"]]
    is_prompt = [stay.prompt_until >= at for stay in here.itertuples()]
    for colour, shape, name, chosen in (
        (DECODE, {}, "blocks held", [not one for one in is_prompt]),
        (PREFILL, pattern("."), "held, its prompt is computed now", is_prompt),
    ):
        picked = [place for place, one in enumerate(chosen) if one]
        fig.add_bar(
            orientation="h",
            y=[rows[place] for place in picked],
            x=[held[place] for place in picked],
            text=[f"request {who[place]}" for place in picked],
            textposition="inside",
            insidetextanchor="start",
            textfont={"color": text_on(colour), "size": 10},
            marker={"color": colour, "pattern": shape, "line": {"color": "white", "width": 1}},
            name=name,
            legendgroup=name,
            **saying(
                (
                    words(f"request {who[place]}", rows[place], f"{counted(held[place], 'block')} held")
                    for place in picked
                ),
                [who[place] for place in picked],
            ),
            **axes,
        )
    used = int(log["kv_blocks_used"].iloc[at - 1])
    spare = min(sum(extra), capacity - used)
    fig.add_bar(
        orientation="h",
        y=[CACHE],
        x=[used],
        marker={"color": DECODE, "line": {"color": "white", "width": 1}},
        name="blocks held",
        legendgroup="blocks held",
        **saying([f"{counted(used, 'block')} held by all requests"]),
        **axes,
    )
    fig.add_bar(
        orientation="h",
        y=[*rows, CACHE],
        x=[*extra, spare],
        marker={"color": PROMISED, "pattern": HATCHED},
        name="promised, not yet held",
        legendgroup="promised",
        **saying(
            [
                *(
                    words(f"request {one}", f"{counted(blocks, 'block')} promised, not yet held")
                    for one, blocks in zip(who, extra)
                ),
                f"{counted(spare, 'block')} promised to those who run",
            ]
        ),
        **axes,
    )
    fig.add_bar(
        orientation="h",
        y=[CACHE],
        x=[capacity - used - spare],
        marker=EMPTY,
        name="free for anybody",
        legendgroup="free",
        **saying([f"{counted(capacity - used - spare, 'block')} free for anybody"]),
        **axes,
    )


def _draw_story(
    fig: go.Figure, log: pd.DataFrame, promised: pd.DataFrame | None, at: int, capacity: int, axes: dict
) -> None:
    """Blocks held over the whole run, what was promised on top, those without a slot, and where the slider stands."""
    held = log["kv_blocks_used"].to_numpy()
    layers = [("blocks held", np.zeros_like(held), held, {"fillcolor": DECODE})]
    if promised is not None:
        extra = promised.groupby("iteration")["promised"].sum().reindex(log["iteration"], fill_value=0).to_numpy()
        top = np.minimum(held + extra, capacity)
        look = {
            "fillcolor": PROMISED,
            "fillpattern": {"shape": "/", "fgcolor": "white", "bgcolor": PROMISED, "size": 8, "solidity": 0.4},
        }
        layers.append(("promised", held, top, look))
    for group, low, high, look in layers:
        x, y, said = _outline(low, high, log, group)
        fig.add_scatter(
            x=x,
            y=y,
            fill="toself",
            mode="lines",
            line={"width": 0, "color": look["fillcolor"]},
            legendgroup=group,
            **saying(said),
            **look,
            **axes,
        )
    away = log["paused"].to_numpy()
    changes = [place for place, (one, other) in enumerate(pairwise(away), 1) if other > one]
    fig.add_scatter(
        x=[place + 1 for place in changes] or [None],
        y=[capacity * 1.02] * (len(changes) or 1),
        mode="markers",
        marker={"symbol": "triangle-down", "size": 9, "color": INK},
        name="somebody is paused",
        legendgroup="pauses",
        **saying(
            [words(f"{counted(int(away[place]), 'request')} paused", f"iteration {place + 1}") for place in changes]
            or [""]
        ),
        **axes,
    )
    fig.add_scatter(
        x=[at, at],
        y=[0, capacity],
        mode="lines",
        line={"color": INK, "width": 2, "dash": "dot"},
        name="the iteration above",
        legendgroup="cursor",
        **saying([f"iteration {at}"] * 2),
        **axes,
    )
    fig.add_scatter(
        x=[0, len(log)],
        y=[capacity] * 2,
        mode="lines",
        line={"color": WASTE, "width": 1, "dash": "dash"},
        name=f"all {capacity} blocks",
        legendgroup="all",
        **saying([f"all {counted(capacity, 'block')} of the cache"] * 2),
        **axes,
    )


def _outline(low: np.ndarray, high: np.ndarray, log: pd.DataFrame, group: str) -> tuple[list, list, list[str]]:
    """Corners of an area between two lines of steps, one an iteration, and what each corner says."""
    changes = [0, *(np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1).tolist(), len(low)]
    x, top, bottom = [], [], []
    for first, last in pairwise(changes):
        x += [first, last]
        top += [int(high[first])] * 2
        bottom += [int(low[first])] * 2
    said = []
    for place, blocks in zip(x, (np.array(top) - np.array(bottom)).tolist()):
        row = log.iloc[min(place, len(log) - 1)]
        said.append(
            words(f"{group}: {blocks} blocks", f"after {counted(place, 'iteration')}", f"{row['waiting']} wait")
        )
    return [*x, *x[::-1]], [*top, *bottom[::-1]], [*said, *said[::-1]]
