"""When requests arrive: steady, by chance, in bursts, over a day.

    times = poisson(200, rate=4.0, seed=0)
    times = bursts(200, rate=4.0, cv=3.0, seed=0)

Times are seconds after the start of the run, in order; the first request of every process but the day's comes at 0.
`rate` is requests a second, on average over a long time: what few requests come to differs from it, the more the
burstier they are.
"""

from __future__ import annotations

import math
import random
from itertools import accumulate

from inflight.errors import CourseError

BURSTS_CV = 3.0
DAY_S, DAY_SWING = 120.0, 0.8


def all_at_once(number: int) -> list[float]:
    """Every request at the start."""
    check_number(number)
    return [0.0] * number


def constant(number: int, rate: float) -> list[float]:
    """`rate` requests a second at equal distances, the first at the start."""
    check_number(number)
    check_rate(rate)
    return [index / rate for index in range(number)]


def poisson(number: int, rate: float, seed: int) -> list[float]:
    """`rate` requests a second on average, independent of one another: exponential gaps, the first at the start."""
    check_number(number)
    check_rate(rate)
    draw = random.Random(seed)
    return list(accumulate((draw.expovariate(rate) for _ in range(number - 1)), initial=0.0))


def bursts(number: int, rate: float, cv: float = BURSTS_CV, seed: int = 0) -> list[float]:
    """`rate` requests a second on average in bursts: gaps from a gamma distribution, the first at the start.

    Parameters
    ----------
    cv : float
        Coefficient of variation of the gaps, their standard deviation over their mean: 1 is a Poisson process, above 1
        requests come in bursts with long pauses between, below 1 they come more evenly.
    """
    check_number(number)
    check_rate(rate)
    if not 0.1 <= cv <= 20:
        raise CourseError(
            f"The coefficient of variation is {cv:g}; it must be from 0.1 (nearly even) to 20, where 1 is a Poisson "
            "process."
        )
    shape, draw = cv**-2, random.Random(seed)
    gaps = (draw.gammavariate(shape, 1 / (shape * rate)) for _ in range(number - 1))
    return list(accumulate(gaps, initial=0.0))


def day(number: int, rate: float, day_s: float = DAY_S, swing: float = DAY_SWING, seed: int = 0) -> list[float]:
    """A day's curve, in short: a Poisson process whose rate is lowest at the start and highest half a day later.

    At time t the rate is `rate` · (1 − `swing` · cos(2π t / `day_s`)). Where a process with one request a second on
    average reaches what the curve has summed up to by t, a request arrives at t.

    Parameters
    ----------
    day_s : float
        Seconds that a day takes here. The days go on for as long as there are requests.
    swing : float
        From 0, no curve at all, to 1: nobody comes at night, and twice as many as on average at the peak.
    """
    check_number(number)
    check_rate(rate)
    if not (math.isfinite(day_s) and day_s > 0):
        raise CourseError(f"A day of {day_s:g} s is none: give a number of seconds above 0.")
    if not 0 <= swing <= 1:
        raise CourseError(f"The day's swing is {swing:g}; it must be from 0 (no curve) to 1 (nobody at night).")
    draw = random.Random(seed)
    turn = 2 * math.pi / day_s

    def arrived_by(t: float) -> float:
        return rate * (t - swing * math.sin(turn * t) / turn)

    def when(total: float) -> float:
        """The time by which `total` have arrived, by halving: the sum never falls."""
        low, high = max(0.0, total / rate - day_s), total / rate + day_s
        while high - low > 1e-9 * max(1.0, high):
            middle = (low + high) / 2
            low, high = (middle, high) if arrived_by(middle) < total else (low, middle)
        return high

    return [when(total) for total in accumulate(draw.expovariate(1) for _ in range(number))]


def at_rate(times: list[float], rate: float) -> list[float]:
    """The same arrivals, stretched or pressed together until they are `rate` requests a second on average.

    Raises
    ------
    CourseError
        All come at once: there is nothing to stretch.
    """
    check_rate(rate)
    if times[-1] <= times[0]:
        raise CourseError("All arrivals come at one moment, which no rate can be made of: leave out --rate.")
    factor = (len(times) - 1) / rate / (times[-1] - times[0])
    return [(time - times[0]) * factor for time in times]


def check_number(number: int) -> None:
    """CourseError for less than one request."""
    if number < 1:
        raise CourseError(f"The number of requests is {number}; it must be at least 1.")


def check_rate(rate: float) -> None:
    """CourseError for a rate that is none."""
    if not (math.isfinite(rate) and rate > 0):
        raise CourseError(f"The rate is {rate} requests a second; it must be above 0.")
