"""Arrival processes: their rate, how their gaps vary, and what cannot be drawn."""

import math
import statistics
from itertools import pairwise

import pytest

from inflight.bench import arrivals
from inflight.errors import CourseError

SEED = 11


def gaps(times):
    return [after - before for before, after in pairwise(times)]


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_bursts_have_the_rate_and_the_variation_asked_for(cv):
    times = arrivals.bursts(60_001, rate=5.0, cv=cv, seed=SEED)
    between = gaps(times)
    assert times[0] == 0 and min(between) >= 0
    assert statistics.mean(between) == pytest.approx(0.2, rel=0.06)
    assert statistics.stdev(between) / statistics.mean(between) == pytest.approx(cv, rel=0.06)
    assert times == arrivals.bursts(60_001, 5.0, cv, SEED) != arrivals.bursts(60_001, 5.0, cv, SEED + 1)


def test_a_day_is_quiet_at_its_start_and_busy_in_its_middle():
    times = arrivals.day(20_000, rate=10.0, day_s=100.0, swing=0.8, seed=SEED)
    assert all(gap >= 0 for gap in gaps(times))
    assert times[-1] == pytest.approx(2000, rel=0.03)
    hour = [sum(at % 100 // 10 == part for at in times) for part in range(10)]
    # The mean of 1 - 0.8 cos over each tenth of a turn.
    tenths = [
        1 - 0.8 * (math.sin(0.2 * math.pi * (n + 1)) - math.sin(0.2 * math.pi * n)) / (0.2 * math.pi) for n in range(10)
    ]
    assert hour == pytest.approx([2000 * share for share in tenths], rel=0.12)


def test_a_day_without_a_swing_is_a_poisson_process():
    between = gaps(arrivals.day(20_001, rate=4.0, day_s=50.0, swing=0.0, seed=SEED))
    assert statistics.mean(between) == pytest.approx(0.25, rel=0.03)
    assert statistics.stdev(between) / statistics.mean(between) == pytest.approx(1, rel=0.03)


def test_times_are_stretched_to_a_rate():
    assert arrivals.at_rate([2.0, 3.0, 6.0], rate=0.5) == [0.0, 1.0, 4.0]
    with pytest.raises(CourseError, match="All arrivals come at one moment"):
        arrivals.at_rate([2.0, 2.0], rate=1.0)


@pytest.mark.parametrize(
    ("draw", "complaint"),
    [
        (lambda: arrivals.bursts(5, 0), "The rate is 0 requests a second; it must be above 0."),
        (lambda: arrivals.bursts(5, 1, float("nan")), "The coefficient of variation is nan; it must be from 0.1"),
        (lambda: arrivals.bursts(5, 1, 100), "The coefficient of variation is 100; it must be from 0.1"),
        (lambda: arrivals.bursts(0, 1), "The number of requests is 0"),
        (lambda: arrivals.day(5, float("inf")), "The rate is inf"),
        (lambda: arrivals.day(5, 1, day_s=-3), "A day of -3 s is none: give a number of seconds above 0."),
        (lambda: arrivals.day(5, 1, swing=1.5), "The day's swing is 1.5; it must be from 0 "),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(draw, complaint):
    with pytest.raises(CourseError) as refused:
        draw()
    assert str(refused.value).startswith(complaint)
