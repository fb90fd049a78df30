"""Ways that take turns in one run, and the result of a benchmark.

    turns = take_turns({"plain": one_round_of_plain, "batched": one_round_of_batched}, rounds=3)
    result({"rounds": 3}, rows, {"batched_over_plain": ratio(turns["batched"], turns["plain"])})

Times depend on the machine and on what else it does. Only ratios of ways that took turns in one run can be compared,
with their spread over its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist, mean, median, stdev
from typing import TypeVar

from inflight import machine

One = TypeVar("One")
Progress = Callable[[str, int, int], None]  # what runs now, how many steps of how many are done


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that tells nothing."""


def take_turns(ways: Mapping[str, Callable[[], One]], rounds: int, progress: Progress = silent) -> dict[str, list[One]]:
    """Call every way once a round, in an order that turns around from round to round.

    Parameters
    ----------
    ways : dict of str to function
        Each makes one measurement, and warms up by itself.
    rounds : int
        Rounds that count, at least 1.

    Returns
    -------
    dict of str to list
        By way: what it returned, a value for each round. An interrupt (Ctrl-C, SIGTERM) after the first whole round
        ends the turns early, with the rounds that are whole; before it, it is raised.
    """
    whole: dict[str, list[One]] = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        now: dict[str, One] = {}
        try:
            for name in list(ways)[:: 1 if number % 2 else -1]:
                done = (number - 1) * len(ways) + len(now)
                progress(f"round {number} of {rounds}: {name}", done, rounds * len(ways))
                now[name] = ways[name]()
        except (KeyboardInterrupt, SystemExit):
            if number < 2:
                raise
            break
        for name in ways:
            whole[name].append(now[name])
    return whole


def ratio(values: Sequence[float], base: Sequence[float]) -> dict[str, float]:
    """Return median, least and most of the ratios of `values` to `base`, round by round."""
    ratios = [value / reference for value, reference in zip(values, base, strict=True)]
    return {"median": median(ratios), "min": min(ratios), "max": max(ratios)}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of three or more independent values, and both ends of its 95 % confidence interval, by Student's t."""
    middle = mean(values)
    reach = _student_t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle, middle - reach, middle + reach


def _student_t(degrees: int) -> float:
    """The 97.5th percentile of Student's t, to 1 % from 2 degrees of freedom (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def result(settings: dict, rows: list[dict], ratios: dict[str, dict[str, float]], **more) -> dict:
    """Make the result of a benchmark, as printed with `--json`: the machine, its settings, rows and ratios."""
    return {"machine": machine.describe(), "settings": settings, "rows": rows, "ratios": ratios, **more}
