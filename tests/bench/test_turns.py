"""Ways that take turns: their order, their rounds, and what is left of them when somebody ends it."""

import math
from statistics import stdev

import pytest

from inflight.bench.turns import interval, ratio, take_turns


def test_the_order_turns_around():
    called, told = [], []

    def way(name):
        return lambda: called.append(name) or len(called)

    turns = take_turns({"a": way("a"), "b": way("b")}, 2, lambda *step: told.append(step))
    assert called == ["a", "b", "b", "a"]
    assert turns == {"a": [1, 4], "b": [2, 3]}
    assert told[0] == ("round 1 of 2: a", 0, 4) and told[-1] == ("round 2 of 2: a", 3, 4)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_rounds_that_are_whole(interrupt):
    def ended_at(call):
        calls = iter(range(100))

        def way():
            if next(calls) == call:
                raise interrupt
            return call

        return way

    assert take_turns({"a": lambda: 1, "b": ended_at(1)}, 5) == {"a": [1], "b": [1]}
    with pytest.raises(interrupt):
        take_turns({"a": lambda: 1, "b": ended_at(0)}, 5)


def test_a_ratio_is_taken_round_by_round():
    assert ratio([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == {"median": 3.0, "min": 2.0, "max": 4.0}


@pytest.mark.parametrize(
    ("degrees", "tables", "within"),
    [(2, 4.302653, 0.01), (3, 3.182446, 0.002), (5, 2.570582, 2e-4), (10, 2.228139, 1e-5), (20, 2.085963, 1e-6)],
)
def test_an_interval_is_as_wide_as_students_t_of_the_tables_says(degrees, tables, within):
    values = list(range(degrees + 1))
    middle, low, high = interval(values)
    assert middle == degrees / 2 and high - middle == pytest.approx(middle - low)
    assert high - middle == pytest.approx(tables * stdev(values) / math.sqrt(len(values)), rel=within)
