"""Lesson 05: both policies on paper, from lengths and the size of the cache; and a run of each, played again."""

from dataclasses import dataclass, replace
from functools import lru_cache

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.engine.config import POLICIES, BuildConfig, ExecutorConfig
from inflight.engine.play import Asked, Counts, Iteration, Trial
from inflight.engine.scheduler import built_in
from inflight.lessons.kv_cache import at_iteration
from inflight.lessons.kv_cache.charts import POLICY
from inflight.notebook.dashboard import Frame
from inflight.notebook.explorable import MEASURED, Explorable
from inflight.notebook.palette import INK

SIZES = 7  # caches on the axis, at each of which each policy is played


@dataclass(frozen=True)
class _Run:
    """A policy, played: iterations, those that are alike as one, and what they come to."""

    iterations: list[Iteration]
    counts: Counts


def replay(
    runs: dict[str, pd.DataFrame], promised: dict[str, pd.DataFrame], slots: int, iteration: int = 1
) -> Explorable:
    """Slots and blocks at one iteration of each run; the control `iteration` goes through them.

    Parameters
    ----------
    runs, promised, slots
        As `replay.replay` takes them.
    iteration : int
        Where the slider stands first.
    """

    def draw(_: pd.DataFrame, iteration: int) -> Frame:
        summary = at_iteration.replay_summary(runs, promised, iteration)
        return Frame(at_iteration.replay(runs, promised, iteration, slots), summary)

    last = max(len(log) for log in runs.values())
    slider = ipywidgets.IntSlider(iteration, 1, last, description="iteration")
    return Explorable({"iteration": slider}, draw, "Replay of a run")


def policies_on_paper(lengths: list[tuple[int, int]], build: BuildConfig, most_tokens: int = 2560) -> Explorable:
    """Above, iterations against the size of the cache, a line a policy; below, blocks in use while time goes on.

    Controls: `cache_tokens`, `slots`, and `used`, the share of its `max_tokens` after which an answer ends. A measured
    point has `policy`, `cache` (tokens) and `iterations`.

    Parameters
    ----------
    lengths : list of (int, int)
        Tokens of the prompt and of the longest answer of each request; all wait from the start, in this order.
    build : BuildConfig
        The engine. Its longest request is the smallest cache that there is, and the largest here is `most_tokens`.
    """
    block, least = build.tokens_per_block, build.max_seq_len

    @lru_cache(maxsize=1000)
    def play_with(policy: str, num_blocks: int, slots: int, used: float) -> _Run:
        scheduler = built_in(ExecutorConfig(batch_scheduler_policy=policy))
        asked = [
            Asked(prompt, longest, max(1, round(used * longest)), arrives=number > 0)  # the idle engine does not wait
            for number, (prompt, longest) in enumerate(lengths)
        ]
        trial = Trial(asked, num_blocks, replace(build, max_batch_size=slots))
        iterations = list(trial.play(scheduler, leaps=True))
        return _Run(iterations, trial.counts(iterations))

    def play(policy: str, cache_tokens: int, slots: int, used: float) -> _Run:
        whole = sorted(-(-(prompt + longest) // block) for prompt, longest in lengths)
        enough = sum(whole[-slots:])  # with more blocks than that nothing changes
        return play_with(policy, min(cache_tokens // block, max(enough, least // block)), slots, used)

    def draw(points: pd.DataFrame, cache_tokens: int, slots: int, used: float) -> Frame:
        step = (most_tokens - least) // (SIZES - 1) // block * block
        sizes = sorted({*range(least, most_tokens + 1, step), cache_tokens})
        now = {policy: play(policy, cache_tokens, slots, used) for policy in POLICIES}
        fig = go.Figure()
        for policy in POLICIES:
            runs = [play(policy, size, slots, used) for size in sizes]
            _draw_sizes(fig, policy, sizes, runs)
            _draw_blocks(fig, policy, now[policy], cache_tokens // block)
        for number, (policy, rows) in enumerate(points.groupby("policy") if len(points) else ()):
            fig.add_scatter(
                x=rows["cache"].tolist(),
                y=rows["iterations"].tolist(),
                mode="markers",
                marker={**MEASURED, "color": POLICY[policy]["color"]},
                name="measured",
                legendgroup="measured",
                showlegend=number == 0,
                hovertemplate=f"measured · {policy} · %{{x:,}} tokens of cache · %{{y:,}} iterations<extra></extra>",
            )
        _lay_out(fig, now, cache_tokens, (least, most_tokens), cache_tokens // block)
        fig.update_layout(meta={} if len(points) else {"device": ""})
        return Frame(fig, _policies_in_words(now, cache_tokens, slots))

    return Explorable(
        {
            "cache_tokens": ipywidgets.IntSlider(least, least, most_tokens, 4 * block, description="KV cache (tokens)"),
            "slots": ipywidgets.IntSlider(
                build.max_batch_size, 2, 2 * build.max_batch_size, description="slots (max_batch_size)"
            ),
            "used": ipywidgets.FloatSlider(1.0, min=0.1, max=1.0, step=0.1, description="used of max_tokens"),
        },
        draw,
        "Policies on paper",
    )


def _draw_sizes(fig: go.Figure, policy: str, sizes: list[int], runs: list[_Run]) -> None:
    fig.add_scatter(
        x=sizes,
        y=[run.counts.iterations for run in runs],
        mode="lines+markers",
        line={"color": POLICY[policy]["color"], "width": 3, "dash": POLICY[policy]["dash"]},
        marker={"size": 6},
        name=policy,
        legendgroup=policy,
        hovertext=[
            f"{policy} · {size:,} tokens of cache · {run.counts.iterations:,} iterations · {run.counts.pauses} pauses"
            for size, run in zip(sizes, runs)
        ],
        hoverinfo="text",
    )


def _draw_blocks(fig: go.Figure, policy: str, run: _Run, num_blocks: int) -> None:
    last = run.counts.iterations
    fig.add_scatter(
        x=[iteration.number - 1 for iteration in run.iterations] + [last],
        y=[iteration.blocks_used for iteration in run.iterations] + [0],
        mode="lines",
        line={"color": POLICY[policy]["color"], "width": 2, "dash": POLICY[policy]["dash"], "shape": "hv"},
        legendgroup=policy,
        showlegend=False,
        hovertext=[
            f"{policy} · from iteration {iteration.number:,} on · {iteration.blocks_used} of {num_blocks} blocks in "
            f"use · {_in_words(iteration)}"
            for iteration in run.iterations
        ]
        + [f"{policy} · all answers are complete after {last:,} iterations"],
        hoverinfo="text",
        xaxis="x2",
        yaxis="y2",
    )


def _in_words(iteration: Iteration) -> str:
    """Requests in it."""
    admitted, pausing = set(iteration.plan.admit), set(iteration.plan.pause)
    running = {*iteration.running, *admitted} - pausing
    waiting, paused = set(iteration.waiting) - admitted, {*iteration.paused, *pausing} - admitted
    return f"{len(running)} run, {len(waiting)} wait, {len(paused)} paused"


def _lay_out(fig: go.Figure, now: dict[str, _Run], cache_tokens: int, ends: tuple[int, int], num_blocks: int) -> None:
    margin, last = 0.03 * (ends[1] - ends[0]), max(run.counts.iterations for run in now.values())
    most = max(max(trace.y) for trace in fig.data if trace.yaxis != "y2") * 1.12
    for place, (x, y), said, name in (
        ("", ([cache_tokens] * 2, [0, most]), f"here · {cache_tokens:,} tokens of cache", "cache, as set"),
        ("2", ([0, last], [num_blocks] * 2), f"all · {num_blocks} blocks", "all blocks"),
    ):
        fig.add_scatter(
            x=x,
            y=y,
            mode="lines",
            line={"color": INK, "width": 1.5, "dash": "dot" if place == "" else "longdash"},
            name=name,
            showlegend=False,
            hovertemplate=f"{said}<extra></extra>",
            xaxis=f"x{place}",
            yaxis=f"y{place}",
        )
    fig.update_layout(
        title="Two policies on paper",
        height=560,
        xaxis={"title": "KV cache (tokens)", "range": [ends[0] - margin, ends[1] + margin], "anchor": "y"},
        yaxis={"title": "iterations", "range": [0, most], "domain": [0.6, 1.0]},
        xaxis2={"title": "iteration", "range": [0, last * 1.02], "anchor": "y2"},
        yaxis2={"title": "blocks in use", "range": [0, num_blocks * 1.15], "domain": [0.0, 0.4], "anchor": "x2"},
    )


def _policies_in_words(now: dict[str, _Run], cache_tokens: int, slots: int) -> str:
    parts = [
        f"{policy} takes {counts.iterations:,} iterations"
        + (f", with {counts.pauses} pauses and {counts.twice:,} tokens computed twice" if counts.pauses else "")
        for policy, counts in ((policy, run.counts) for policy, run in now.items())
    ]
    return f"On paper, with {cache_tokens:,} tokens of cache and {slots} slots: {'; '.join(parts)}."
