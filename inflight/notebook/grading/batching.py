"""Lab 04: static against in-flight batching."""

import math
import random
from collections.abc import Callable

import pandas as pd

from inflight.engine.prediction import schedule
from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding


def _iterations_of(lengths: list[int], slots: int) -> tuple[int, int]:
    """Iterations of requests that all wait from the start: static, in flight."""
    static, in_flight = (
        len(schedule(lengths, slots, kind, at_the_start=slots).iterations) for kind in ("V1", "inflight_fused_batching")
    )
    return static, in_flight


@grades(
    "4.1", "Static batching pays the longest of each batch: the more the lengths differ, the more there is to gain."
)
def _count_iterations(answer: tuple[Callable, Callable], _choose: random.Random) -> dict[str, Callable[[], Finding]]:
    static, in_flight = answer
    return {"static": lambda: _counts(static, 0), "in flight": lambda: _counts(in_flight, 1)}


def _counts(function: Callable, way: int) -> Finding:
    choose = random.Random(4)
    for _ in range(30):
        slots, number = choose.randint(1, 8), choose.randint(1, 30)
        lengths = [choose.randint(1, 50) for _ in range(number)]
        got = function(list(lengths), slots)
        if got is None:
            return NOT_YET
        if got != _iterations_of(lengths, slots)[way]:
            return f"Lengths {lengths} on {slots} slots: your function says {got}. Draw the slots and count."
    return None


@grades(
    "4.2", "The share of wasted slots is the most that better batching can win back; fuller iterations take their part."
)
def _wasted(wasted: Callable, _choose: random.Random) -> Finding:
    choose = random.Random(4)
    for _ in range(10):
        slots = choose.randint(2, 8)
        scheduled = [choose.randint(1, slots) for _ in range(choose.randint(1, 40))]
        got = wasted(pd.DataFrame({"scheduled": scheduled}), slots)
        if got is None:
            return NOT_YET
        if not math.isclose(got, 1 - sum(scheduled) / (len(scheduled) * slots), abs_tol=1e-9):
            return (
                f"For scheduled = {scheduled} and {slots} slots you have {got:.3f}. How many slots were there in all "
                "iterations together, and how many of them computed something?"
            )
    return None


@grades("4.3", "What decides is how lengths differ within a batch, not how they differ in the whole list.")
def _two_traces(
    answer: tuple[list[int] | None, list[int] | None], _choose: random.Random
) -> dict[str, Callable[[], Finding]]:
    wins, draws = answer
    return {"wins": lambda: _is_trace("wins", wins), "draws": lambda: _is_trace("draws", draws)}


def _is_trace(name: str, lengths: list[int] | None) -> Finding:
    if lengths is None:
        return NOT_YET
    if len(lengths) != 24 or not all(8 <= length <= 128 for length in lengths):
        return (
            f"{name} needs 24 lengths between 8 and 128; it has {len(lengths)}, from {min(lengths)} to {max(lengths)}."
        )
    static, in_flight = _iterations_of(lengths, 8)
    needed = f"{name} takes {static} iterations static and {in_flight} in flight"
    if name == "wins":
        return None if static >= 2.5 * in_flight else f"{needed}: {static / in_flight:.1f} times, not 2.5."
    if static > 1.1 * in_flight:
        return f"{needed}: more than 1.1 times as many."
    if max(lengths) < 4 * min(lengths):
        return "In draws, make at least one answer four times as long as another."
    return None
