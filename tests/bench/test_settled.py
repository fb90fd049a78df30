"""Where the beginning of a run ends is found, not guessed."""

import random

import pandas as pd
import pytest

from inflight.bench import settled
from inflight.bench.load_generator import COLUMNS, Run

SEED = 5


def values(beginning, rest, high=300.0, level=100.0):
    draw = random.Random(SEED)
    rise = [high - (high - level) * number / beginning for number in range(beginning)]
    return [value + draw.gauss(0, 5) for value in [*rise, *[level] * rest]]


@pytest.mark.parametrize("length", [10, 25, 40])
def test_a_beginning_that_is_different_is_cut_off(length):
    found = settled.beginning(values(length, 120))
    assert length - 10 <= found <= length + 10


def test_where_nothing_changes_little_is_cut_off():
    draw = random.Random(SEED)
    assert settled.beginning([100 + draw.gauss(0, 5) for _ in range(200)]) <= 40


def test_never_more_than_half_and_nothing_of_a_few():
    assert settled.beginning([float(number) for number in range(100)]) == 50
    assert settled.beginning([9.0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]) == 0


def rows(latencies, gap_s):
    made = [
        {
            "request": n,
            "due_s": n * gap_s,
            "sent_s": n * gap_s,
            "last_s": n * gap_s + ms / 1000,
            "latency_ms": ms,
            "error": "",
        }
        for n, ms in enumerate(latencies)
    ]
    return Run(pd.DataFrame(made, columns=COLUMNS), 0.0)


def test_in_balance_as_many_are_answered_as_come():
    window = settled.steady(rows([250.0] * 101, gap_s=0.1))
    assert (window.arrived, window.served) == (100, 98)  # the last two come after the last arrival
    assert window.seconds == pytest.approx(10) and window.arrived_per_s == pytest.approx(10)


def test_over_the_limit_fewer_are_answered_than_come():
    """Ten come a second and five are answered."""
    window = settled.steady(rows([200.0 * (n + 1) - 100.0 * n for n in range(200)], gap_s=0.1))
    assert window.skipped == 100
    assert window.arrived_per_s == pytest.approx(10) and window.served_per_s == pytest.approx(5, rel=0.05)


def test_a_run_without_an_answer_has_nothing_that_counts():
    run = rows([100.0] * 10, 0.1)
    run.requests["error"] = "It failed."
    window = settled.steady(run)
    assert (window.arrived_per_s, window.served_per_s) == (0.0, 0.0)
