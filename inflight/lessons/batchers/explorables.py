"""Lesson 06: batch size, latency and load of the dynamic batcher, from the rate of arrivals and the queue delay."""

from collections.abc import Sequence
from functools import lru_cache

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight import machine, tiers
from inflight.lessons.batchers.batches_on_paper import Figures, batches_on_paper, in_figures, most_a_second
from inflight.notebook.dashboard import Frame
from inflight.notebook.explorable import MEASURED, Explorable
from inflight.notebook.palette import DECODE, INK, REQUEST

LONGEST_DELAY_MS, STEP_MS = 200, 10
# A panel each: what of `Figures` stands there, its line, and the unit.
_PANELS = (
    ("latency (ms)", (("p95_ms", "P95 of latency", REQUEST[3], "solid", "ms"), ("p50_ms", "P50", INK, "dash", "ms"))),
    ("requests a batch", (("mean_batch", "requests a batch", DECODE, "solid", "requests a batch"),)),
    ("model busy (%)", (("busy", "model busy", DECODE, "dash", "% of the time"),)),
)


def delay(
    gaps: Sequence[float], fixed_ms: float, item_ms: float, rate: int = 30, max_batch_size: int = 8
) -> Explorable:
    """Latency, batch size and load against `max_queue_delay_microseconds`, for any rate of arrivals.

    Controls: `rate`, requests a second; `delay_ms`; `max_batch_size`. A measured point has `delay_ms`, `p50_ms`,
    `p95_ms`, `mean_batch` and `busy` (0 to 1), as a run of the lesson's sweep.

    Parameters
    ----------
    gaps : sequence of float
        When requests come at one a second on average: at another rate they come so much closer together.
    fixed_ms, item_ms : float
        What a batch costs, and each request in it on top.
    rate, max_batch_size : int
        Where the controls begin.
    """

    @lru_cache(maxsize=2000)
    def figures(rate: int, delay_ms: float, max_batch_size: int) -> Figures:
        arrivals_ms = [1000 * at_s / rate for at_s in gaps]
        return in_figures(arrivals_ms, batches_on_paper(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms))

    def draw(points: pd.DataFrame, rate: int, delay_ms: int, max_batch_size: int) -> Frame:
        delays = list(range(0, LONGEST_DELAY_MS + 1, STEP_MS))
        rows = pd.DataFrame([figures(rate, each, max_batch_size) for each in delays]).assign(delay_ms=delays)
        now = figures(rate, delay_ms, max_batch_size)
        fig = go.Figure()
        for number, (title, lines) in enumerate(_PANELS):
            _draw_panel(fig, number, title, lines, rows, points, delay_ms)
        fig.update_layout(
            title="The dynamic batcher on paper",
            height=600,
            meta={"device": machine.device_name(tiers.CPU) if len(points) else ""},
        )
        most = most_a_second(max_batch_size, fixed_ms, item_ms)
        return Frame(fig, _delay_in_words(now, rate, delay_ms, most))

    return Explorable(
        {
            "rate": ipywidgets.IntSlider(rate, 5, 150, description="arrivals a second"),
            "delay_ms": ipywidgets.IntSlider(50, 0, LONGEST_DELAY_MS, 5, description="queue delay (ms)"),
            "max_batch_size": ipywidgets.IntSlider(max_batch_size, 1, 16, description="max_batch_size"),
        },
        draw,
        "The dynamic batcher on paper",
    )


def _draw_panel(
    fig: go.Figure, number: int, title: str, lines: tuple, rows: pd.DataFrame, points: pd.DataFrame, delay_ms: int
) -> None:
    suffix, last = "" if number == 0 else str(number + 1), number == len(_PANELS) - 1
    axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
    most = 0.0
    for column, name, colour, dash, unit in lines:
        factor, places = (100, 0) if column == "busy" else (1, 1 if column == "mean_batch" else 0)
        said = f"{name} · queue delay %{{x}} ms · %{{y:.{places}f}} {unit}<extra></extra>"
        line = {"color": colour, "dash": dash, "width": 3}
        values = (factor * rows[column]).tolist()
        fig.add_scatter(
            x=rows["delay_ms"].tolist(),
            y=values,
            mode="lines",
            line=line,
            name=name,
            showlegend=number == 0,  # in the other panels the axis says what it is
            hovertemplate=said,
            **axes,
        )
        most = max(most, *values)
        if len(points):
            measured = (factor * points[column]).tolist()
            fig.add_scatter(
                x=points["delay_ms"].tolist(),
                y=measured,
                mode="markers",
                marker={**MEASURED, "color": colour},
                name="measured",
                legendgroup="measured",
                showlegend=column == "p95_ms",
                hovertemplate=f"measured · {said}",
                **axes,
            )
            most = max(most, *measured)
    fig.add_scatter(
        x=[delay_ms] * 2,
        y=[0, most * 1.1],
        mode="lines",
        line={"color": INK, "width": 1.5, "dash": "dot"},
        name="delay, as set",
        legendgroup="here",
        showlegend=last,
        hovertemplate=f"here · queue delay {delay_ms} ms<extra></extra>",
        **axes,
    )
    top = 1 - number * 0.35
    fig.update_layout(
        {
            f"xaxis{suffix}": {
                "anchor": f"y{suffix}",
                "range": [-4, LONGEST_DELAY_MS + 4],
                "title": "max_queue_delay (ms)" if last else None,
                "showticklabels": last,
            },
            f"yaxis{suffix}": {
                "anchor": f"x{suffix}",
                "domain": [max(0.0, top - 0.29), top],
                "range": [0, most * 1.1],
                "title": title,
            },
        }
    )


def _delay_in_words(now: Figures, rate: int, delay_ms: int, most: float) -> str:
    words = (
        f"On paper, at {rate} requests a second and a delay of {delay_ms} ms: {now.mean_batch:.1f} requests a batch, "
        f"{now.wait_ms:.0f} ms of waiting on average, P50 {now.p50_ms:.0f} ms and P95 {now.p95_ms:.0f} ms, and the "
        f"model is busy {100 * now.busy:.0f} % of the time."
    )
    if rate > most:
        words += f" At most {most:.0f} a second can be served, so the queue grows for as long as they come."
    return words
