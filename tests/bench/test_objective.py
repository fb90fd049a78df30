"""Which requests meet an objective, and how many a second."""

import math

import pandas as pd
import pytest

from inflight.bench import objective
from inflight.bench.load import COLUMNS, Run
from inflight.bench.objective import Objective
from inflight.errors import CourseError

NAN = math.nan
ROWS = pd.DataFrame(
    [
        # due, sent, last, ttft, itl, latency, error
        (0.0, 0.0, 1.0, 100.0, 20.0, 1000.0, ""),
        (0.0, 0.1, 2.0, 400.0, 20.0, 2000.0, ""),
        (1.0, 1.0, 3.0, 100.0, 60.0, 2000.0, ""),
        (1.0, 1.0, 1.1, 100.0, NAN, 100.0, ""),  # one token
        (2.0, 2.0, 4.0, NAN, NAN, NAN, "It failed."),
    ],
    columns=["due_s", "sent_s", "last_s", "ttft_ms", "itl_ms", "latency_ms", "error"],
).reindex(columns=COLUMNS)
RUN = Run(ROWS, 0.0)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("ttft=100", [True, False, True, True, False]),
        ("itl=20", [True, True, False, True, False]),
        ("latency=1000", [True, False, False, True, False]),
        ("ttft=400, itl=59.9,latency=1999", [True, False, False, True, False]),
    ],
)
def test_a_request_meets_it_when_it_keeps_every_limit(text, met):
    wanted = objective.parse(text)
    assert wanted.met(ROWS).tolist() == met
    assert objective.goodput(RUN, wanted) == pytest.approx(sum(met) / 4)


def test_without_limits_an_answer_meets_it():
    assert Objective().met(ROWS).tolist() == [True, True, True, True, False]


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=0", "ttft=-3", "ttft=inf", "ttft=nan", "p99=3", "itl=1,itl=2"]
)
def test_what_is_no_objective_is_one_sentence(text):
    with pytest.raises(CourseError, match="cannot be read: write limits in milliseconds, as ttft=500"):
        objective.parse(text)


def test_limits_of_pieces_need_pieces():
    objective.parse("latency=5").check_streaming(False)
    with pytest.raises(CourseError, match="add --stream"):
        objective.parse("itl=5").check_streaming(False)
