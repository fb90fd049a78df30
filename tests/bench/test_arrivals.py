"""Arrival processes: their rate, how their gaps vary, and what cannot be drawn."""

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
