"""Lesson 01: memory against users, from the options of an engine that is not built yet."""

import dataclasses
import math

import pandas as pd
import plotly.graph_objects as go

from inflight.engine import BuildConfig, Sizing
from inflight.notebook.dashboard import Frame
from inflight.notebook.explorables.explorable import MEASURED, Explorable, dropdown, int_slider
from inflight.notebook.palette import DECODE, INK, REQUEST, WASTE

GB = 1e9


def memory(sizing: Sizing, config: BuildConfig, memory_bytes: float) -> Explorable:
    """Memory that weights and KV cache take, against the users who come at once.

    Controls: `slots`, `tokens` of each user, `cache`, the value of `kv_cache_quant_algo`. A measured point has `users`
    and `bytes`, of weights and KV cache together.

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

    def draw(points: pd.DataFrame, slots: int, tokens: int, cache: str | None) -> Frame:
        chosen = dataclasses.replace(config, kv_cache_quant_algo=cache)
        weights, per_user = sizing.weight_bytes(chosen), sizing.kv_bytes_per_user(chosen, tokens)
        fit = sizing.users(chosen, tokens, memory_bytes)
        seated = min(slots, fit)
        fig = go.Figure()
        _draw_memory(fig, weights, per_user, seated, most_users)
        _draw_limits(fig, memory_bytes, slots, most_users)
        if len(points):
            fig.add_scatter(
                x=points["users"].tolist(),
                y=(points["bytes"] / GB).tolist(),
                mode="markers",
                marker=MEASURED,
                name="measured",
                hovertemplate="measured · %{x} users · %{y:.3f} GB<extra></extra>",
            )
        fig.update_layout(
            title="Memory, before anything is built",
            height=400,
            meta={} if len(points) else {"device": ""},
            xaxis={"title": "users who come at once", "range": [0, most_users * 1.02]},
            yaxis={"title": "gigabytes", "range": [0, memory_bytes / GB * 1.15]},
        )
        return Frame(fig, _memory_in_words(weights, per_user, slots, fit, tokens, memory_bytes))

    controls = {
        "slots": int_slider(config.max_batch_size, 1, most_users, "slots (max_batch_size)"),
        "tokens": int_slider(config.max_seq_len, block, config.max_seq_len, "tokens of each user", block),
        "cache": dropdown([("as computed", None), ("INT8", "INT8")], "kv_cache_quant_algo"),
    }
    controls["cache"].value = config.kv_cache_quant_algo
    return Explorable(controls, draw, ("users", "bytes"))


def _draw_memory(fig: go.Figure, weights: int, per_user: int, seated: int, most_users: int) -> None:
    """Weights below, the KV cache on top: it grows with every user who has a slot, and no further."""
    users = [0, seated, most_users]
    fig.add_scatter(
        x=users,
        y=[weights / GB] * 3,
        mode="lines",
        fill="tozeroy",
        fillcolor=WASTE,
        line={"color": WASTE, "width": 1},
        name="weights",
        hovertemplate=f"weights · {weights / GB:.3f} GB, for however many users<extra></extra>",
    )
    fig.add_scatter(
        x=users,
        y=[(weights + number * per_user) / GB for number in (0, seated, seated)],
        mode="lines+markers",
        fill="tonexty",
        line={"color": DECODE, "width": 3},
        name="KV cache, on top",
        hovertemplate=[
            f"no user · weights alone, {weights / GB:.3f} GB<extra></extra>",
            f"{seated:,} users · {seated * per_user / GB:.2f} GB of KV cache on top of the weights<extra></extra>",
            f"more users wait, and take no memory · {(weights + seated * per_user) / GB:.2f} GB<extra></extra>",
        ],
    )


def _draw_limits(fig: go.Figure, memory_bytes: float, slots: int, most_users: int) -> None:
    fig.add_scatter(
        x=[0, most_users],
        y=[memory_bytes / GB] * 2,
        mode="lines",
        line={"color": REQUEST[3], "width": 2, "dash": "dash"},
        name="free memory",
        hovertemplate=f"free memory · {memory_bytes / GB:.1f} GB<extra></extra>",
    )
    fig.add_scatter(
        x=[slots, slots],
        y=[0, memory_bytes / GB * 1.15],
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        name="slots",
        hovertemplate=f"max_batch_size · {slots} slots<extra></extra>",
    )


def _memory_in_words(weights: int, per_user: int, slots: int, fit: int, tokens: int, memory_bytes: float) -> str:
    taken = (weights + min(slots, fit) * per_user) / GB
    limit = (
        f"the slots are the limit, and {100 * (1 - taken * GB / memory_bytes):.0f} % of the free memory stays so"
        if slots <= fit
        else f"memory is the limit: it is full at {fit:,} users, and {slots - fit:,} slots stay empty"
    )
    return (
        f"{weights / GB:.2f} GB of weights, and {per_user / 1e6:.1f} MB of KV cache for each user with {tokens:,} "
        f"tokens: "
        f"{min(slots, fit):,} users take {taken:.2f} of {memory_bytes / GB:.1f} GB. With {slots:,} slots {limit}."
    )
