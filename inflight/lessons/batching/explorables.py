"""Lesson 04: the schedule of static and of in-flight batching, from the lengths of the answers."""

import ipywidgets
import pandas as pd

from inflight.lessons.batching.charts import length_class, slot_map
from inflight.lessons.batching.simulate import schedule
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable

PANELS = {"V1": "static (V1)", "inflight_fused_batching": "in-flight"}


def simulated_slots(lengths: list[int], slots: int) -> Explorable:
    """Draw which request sits in which slot, static above and in flight below.

    Controls: `requests`, how many of the list, from its first on; `slots`; `longest`, the tokens that the longest
    answers have.

    Parameters
    ----------
    lengths : list of int
        Tokens of each answer; all wait from the start, in this order.
    slots : int
        Where the control begins.
    """
    longest_of_all = max(lengths)
    kinds = length_class(pd.Series(lengths))  # which the sliders do not change

    def draw(requests: int, slots: int, longest: int) -> Frame:
        tokens = [longest if length == longest_of_all else length for length in lengths[:requests]]
        plans = {kind: schedule(tokens, slots, kind).assign(kind=kinds) for kind in PANELS}
        fig = slot_map({PANELS[kind]: plan for kind, plan in plans.items()}, slots)
        fig.update_layout(meta={"device": ""})
        return Frame(fig, _plans_in_words(plans))

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


def _plans_in_words(plans: dict[str, pd.DataFrame]) -> str:
    static, joining = (plans[kind]["last"].max() for kind in PANELS)
    shares = " and ".join(f"{100 * _occupancy(plans[kind]):.0f}" for kind in PANELS)
    return (
        f"On paper {static:,} iterations static and {joining:,} in flight: static needs {static / joining:.1f} times "
        f"as many. {shares} % of the slots' time is used."
    )


def _occupancy(stays: pd.DataFrame) -> float:
    """Return the share of all slots in all iterations that computed something."""
    return (stays["last"] - stays["first"] + 1).sum() / (stays["last"].max() * stays["slot"].max())
