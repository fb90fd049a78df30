"""What repeats show, and no more: more, less, or not told apart."""

import random
import statistics

import pytest

from inflight.errors import CourseError
from inflight.notebook import told_apart


def test_it_says_what_it_judged_and_by_which_statistic():
    told = told_apart([2.0, 2.2, 1.9, 2.1], [1.0, 1.0, 1.0, 1.0])
    assert told.word == "more" and told.low < told.ratio < told.high
    assert told.ratio == pytest.approx(statistics.geometric_mean([2.0, 2.2, 1.9, 2.1]))
    assert str(told) == "more: 2.0 times (1.9 to 2.3 with 95 % confidence, 4 rounds)"
    assert told_apart([1.0] * 4, [2.0, 2.2, 1.9, 2.1], more="later", less="earlier").word == "earlier"


def test_a_narrow_interval_is_not_from_1_to_1():
    told = told_apart([1.0002, 1.0004, 0.9999], [1.0, 1.0, 1.0])
    assert str(told) == "not told apart: 1.000 times (0.9995 to 1.001 with 95 % confidence, 3 rounds)"
    assert "1.00 times (1.00 to 1.00" in str(told_apart([1.0] * 3, [1.0] * 3))


def test_a_round_that_is_out_of_line_takes_the_claim_back():
    assert told_apart([1.1, 1.1, 1.1], [1.0, 1.0, 1.0]).word == "more"
    assert told_apart([1.1, 1.1, 0.9], [1.0, 1.0, 1.0]).word == "not told apart"


@pytest.mark.parametrize("rounds", [3, 12])
def test_equal_things_are_told_apart_in_one_of_twenty_trials(rounds):
    draw = random.Random(3)
    trials = [[[draw.lognormvariate(0, 0.2) for _ in range(rounds)] for _ in "ab"] for _ in range(4000)]
    claims = sum(told_apart(*trial).word != "not told apart" for trial in trials)
    assert 0.035 < claims / len(trials) < 0.06


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ([1, 2], [1, 2], "2 and 2 repeats"),
        ([1, 2, 3], [1, 2], "3 and 2 repeats"),
        ([1, 2, 0], [1, 2, 3], "A repeat measured 0"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(a, b, says):
    with pytest.raises(CourseError, match=says):
        told_apart(a, b)
