"""Lesson 04: the schedule of static and of in-flight batching, from the lengths of the answers."""

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.lessons.batching.charts import length_class, slot_map
from inflight.lessons.batching.simulate import schedule
from inflight.notebook.charts.palette import INK
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable

PANELS = {"V1": "static (V1)", "inflight_fused_batching": "in-flight"}


def simulated_slots(lengths: list[int], slots: int) -> Explorable:
    """Draw which request sits in which slot, static above and in flight below.

    Controls: `requests`, how many of the list, from its first on; `slots`; `longest`, the tokens that the longest
    answers have. A measured point has `type` ("V1", "inflight_fused_batching") and `iterations`.

    Parameters
    ----------
    lengths : list of int
        Tokens of each answer; all wait from the start, in this order.
    slots : int
        Where the control begins.
    """
    longest_of_all = max(lengths)
    kinds = length_class(pd.Series(lengths))  # which the sliders do not change

    def draw(points: pd.DataFrame, requests: int, slots: int, longest: int) -> Frame:
        tokens = [longest if length == longest_of_all else length for length in lengths[:requests]]
        plans = {kind: schedule(tokens, slots, kind).assign(kind=kinds) for kind in PANELS}
        fig = slot_map({PANELS[kind]: plan for kind, plan in plans.items()}, slots)
        counted = dict(zip(points.get("type", ()), points.get("iterations", ())))
        for number, kind in enumerate(PANELS):
            if kind in counted:
                _draw_counted(fig, counted[kind], slots, "" if number == 0 else str(number + 1))
        fig.update_layout(meta={} if counted else {"device": ""})
        return Frame(fig, _plans_in_words(plans, counted))

    return Explorable(
        {
            "requests": ipywidgets.IntSlider(len(lengths), 1, len(lengths), description="requests"),
            "slots": ipywidgets.IntSlider(slots, 1, 2 * slots, description="slots (max_batch_size)"),
            "longest": ipywidgets.IntSlider(
                longest_of_all, 8, 2 * longest_of_all, 8, description="tokens of the longest"
            ),
        },
        draw,
        "Slots on paper",
    )


def _draw_counted(fig: go.Figure, iterations: int, slots: int, suffix: str) -> None:
    """A line across the panel where the run ended."""
    fig.add_scatter(
        x=[iterations] * 3,
        y=[0.4, (slots + 1) / 2, slots + 0.6],
        mode="lines+markers",
        line={"color": INK, "width": 2, "dash": "dot"},
        marker={"symbol": "diamond-open", "size": [0, 12, 0], "color": INK},
        showlegend=False,
        hovertemplate=f"measured · the run ended after {iterations:,} iterations<extra></extra>",
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
    )


def _plans_in_words(plans: dict[str, pd.DataFrame], counted: dict[str, int]) -> str:
    static, joining = (plans[kind]["last"].max() for kind in PANELS)
    shares = " and ".join(f"{100 * _occupancy(plans[kind]):.0f}" for kind in PANELS)
    words = (
        f"On paper {static:,} iterations static and {joining:,} in flight: static needs {static / joining:.1f} times "
        f"as many. {shares} % of the slots' time is used."
    )
    if counted:
        words += f" Counted: {' and '.join(f'{counted[kind]:,}' for kind in PANELS if kind in counted)}."
    return words


def _occupancy(stays: pd.DataFrame) -> float:
    """Return the share of all slots in all iterations that computed something."""
    return (stays["last"] - stays["first"] + 1).sum() / (stays["last"].max() * stays["slot"].max())
