"""Lesson 01: memory against users, from the options of an engine that is not built yet."""

import dataclasses
import math

import ipywidgets
import plotly.graph_objects as go

from inflight.engine import BuildConfig, Sizing
from inflight.notebook.charts.palette import DECODE, INK, REQUEST, WASTE
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable

MB, GB = 1e6, 1e9
AS_COMPUTED = "as computed"  # the KV cache has the precision of the computation
FEWEST = 0.8  # users at the left end of the axis, which has no 0
CURVE = 32  # steps in which the growing memory is drawn


def memory(sizing: Sizing, config: BuildConfig, memory_bytes: float) -> Explorable:
    """Memory that weights and KV cache take, against the users who come at once.

    Controls: `slots`, `tokens` of each user, `cache`, "as computed" or a value of `kv_cache_quant_algo`.

    Parameters
    ----------
    sizing : Sizing
    config : BuildConfig
        Where the controls begin, and all other options.
    memory_bytes : float
        Memory that is free.
    """
    block = config.tokens_per_block
    longest = sizing.users(config, config.max_seq_len, memory_bytes)  # who fit, with as many tokens as there may be
    most_users = max(64, 2 ** math.ceil(math.log2(1.3 * longest + 1)))

    def draw(slots: int, tokens: int, cache: str) -> Frame:
        chosen = dataclasses.replace(config, kv_cache_quant_algo=None if cache == AS_COMPUTED else cache)
        weights, per_user = sizing.weight_bytes(chosen), sizing.kv_bytes_per_user(chosen, tokens)
        fit = sizing.users(chosen, tokens, memory_bytes)
        seated = min(slots, fit)
        fig = go.Figure()
        lowest_mb, highest_mb = sizing.weight_bytes(config) / MB / 2, memory_bytes / MB * 2
        _draw_memory(fig, weights, per_user, seated, most_users)
        _draw_limits(fig, memory_bytes, slots, most_users, (lowest_mb, highest_mb))
        fig.update_layout(
            title="Memory, before anything is built",
            height=400,
            meta={"device": ""},
            xaxis=_logarithmic("users who come at once", FEWEST, most_users * 1.1),
            yaxis=_logarithmic("megabytes", lowest_mb, highest_mb),
        )
        return Frame(fig, _memory_in_words(weights, per_user, slots, fit, tokens, memory_bytes))

    controls = {
        "slots": ipywidgets.IntSlider(config.max_batch_size, 1, most_users, description="slots (max_batch_size)"),
        "tokens": ipywidgets.IntSlider(
            config.max_seq_len, block, config.max_seq_len, block, description="tokens of each user"
        ),
        "cache": ipywidgets.Dropdown(
            options=[AS_COMPUTED, "INT8"],
            value=config.kv_cache_quant_algo or AS_COMPUTED,
            description="kv_cache_quant_algo",
        ),
    }
    return Explorable(controls, draw, "Memory on paper")


def _logarithmic(title: str, least: float, most: float) -> dict:
    """An axis on which a model's weights and a machine's memory are both seen."""
    ends = [math.log10(least), math.log10(most)]
    return {"title": title, "type": "log", "range": ends, "dtick": 1, "tickformat": ","}


def _draw_memory(fig: go.Figure, weights: int, per_user: int, seated: int, most_users: int) -> None:
    """The weights, and what they take with the KV cache: it grows with every user who has a slot, and no further."""
    steps = range(CURVE + 1)
    users = [*sorted({round(seated ** (step / CURVE)) for step in steps if seated}), most_users]
    fig.add_scatter(
        x=[FEWEST, most_users],
        y=[weights / MB] * 2,
        mode="lines",
        line={"color": WASTE, "width": 3},
        name="weights",
        hovertemplate=f"weights · {weights / MB:,.0f} MB, for however many users<extra></extra>",
    )
    fig.add_scatter(
        x=users,
        y=[(weights + min(number, seated) * per_user) / MB for number in users],
        mode="lines",
        line={"color": DECODE, "width": 3},
        name="with the KV cache",
        hovertemplate=[
            f"{number:,} users · {min(number, seated) * per_user / MB:,.0f} MB of KV cache on top of the weights"
            f"{'' if number <= seated else ' · the others wait, and take no memory'}<extra></extra>"
            for number in users
        ],
    )


def _draw_limits(
    fig: go.Figure, memory_bytes: float, slots: int, most_users: int, heights_mb: tuple[float, float]
) -> None:
    fig.add_scatter(
        x=[FEWEST, most_users],
        y=[memory_bytes / MB] * 2,
        mode="lines",
        line={"color": REQUEST[3], "width": 2, "dash": "dash"},
        name="free memory",
        hovertemplate=f"free memory · {memory_bytes / GB:.1f} GB<extra></extra>",
    )
    fig.add_scatter(
        x=[slots, slots],
        y=list(heights_mb),
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        name="slots",
        hovertemplate=f"max_batch_size · {slots} slots<extra></extra>",
    )


def _memory_in_words(weights: int, per_user: int, slots: int, fit: int, tokens: int, memory_bytes: float) -> str:
    taken = (weights + min(slots, fit) * per_user) / GB
    limit = (
        f"the slots are the limit, and {100 * (1 - taken * GB / memory_bytes):.0f} % of the free memory stays free"
        if slots <= fit
        else f"memory is the limit: it is full at {fit:,} users, and {slots - fit:,} slots stay empty"
    )
    return (
        f"{weights / GB:.2f} GB of weights, and {per_user / 1e6:.1f} MB of KV cache for each user with {tokens:,} "
        f"tokens: "
        f"{min(slots, fit):,} users take {taken:.2f} of {memory_bytes / GB:.1f} GB. With {slots:,} slots {limit}."
    )
