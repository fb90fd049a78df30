"""A sweep of a server of which everything is known: when it stops, what it keeps, what it says; and what it refuses."""

import json
import math

import pandas as pd
import pytest

from inflight.bench import objective, sweep
from inflight.bench.load import COLUMNS, Run
from inflight.bench.workload import TimedRequest, poisson
from inflight.errors import CourseError
from tests.bench.queue_theory import waits_s

SERVICE_S = 0.1  # at most ten requests a second
SLOTS = 8
FIRST_TOKEN = objective.parse("ttft=600")
EACH = {"requests": 200, "rounds": 3}


def make(rate, number, turn):
    return [TimedRequest("Hi", 5, at_s, 30) for at_s in poisson(number, rate, seed=turn)]


class OneAtATime:
    """Stands for `load` with a server that takes one request at a time: no time passes."""

    def __init__(self, stop_at=math.inf, interrupt=None):
        self.loads, self.stop_at, self.interrupt = 0, stop_at, interrupt

    def __call__(self, send, requests, concurrency=None, **_):
        self.loads += 1
        times = [request.at_s if concurrency is None else number * SERVICE_S for number, request in enumerate(requests)]
        rows = [
            {
                "request": place,
                "due_s": at_s,
                "sent_s": at_s,
                "first_s": at_s + wait + SERVICE_S / 2,
                "last_s": at_s + wait + SERVICE_S,
                "input_len": 30,
                "output_len": 5,
                "max_tokens": 5,
                "ttft_ms": 1000 * (wait + SERVICE_S / 2),
                "itl_ms": 1000 * SERVICE_S / 2 / 4,
                "latency_ms": 1000 * (wait + SERVICE_S),
                "error": "",
            }
            for place, (at_s, wait) in enumerate(zip(times, waits_s(times, SERVICE_S)))
        ]
        stopped = ""
        if self.loads >= self.stop_at:
            stopped = f"The server at nowhere went away after 20 of {len(rows)} answers."
            unknown = dict.fromkeys(("sent_s", "first_s", "last_s", "ttft_ms", "itl_ms", "latency_ms"), math.nan)
            rows[20:] = [row | unknown | {"error": "No answer."} for row in rows[20:]]
        return Run(pd.DataFrame(rows, columns=COLUMNS), 0.0, stopped, self.interrupt if stopped else None)


def swept(monkeypatch, wanted=FIRST_TOKEN, load=None, **options):
    monkeypatch.setattr(sweep, "send_all", load or OneAtATime())
    return sweep.sweep(None, make, wanted, 1, **(EACH | options))


def test_rates_rise_until_the_server_is_over_its_limit(monkeypatch):
    result = swept(monkeypatch)
    rates = [row["rate"] for row in result["rows"]]
    assert rates[:2] == [6.0, 9.0] and rates[-1] == pytest.approx(sweep.FAR_OVER * rates[-2], rel=0.01)
    over = [row["over_limit"] for row in result["rows"]]
    assert over == [False] * (len(over) - 2) + [True, True] and 9 < rates[-2] <= 16
    assert all(row["rounds"] == 3 for row in result["rows"])
    assert result["capacity"]["median"] == pytest.approx(10, rel=0.05)
    knee = next(row for row in result["rows"] if row["rate"] == result["knee"])
    assert result["knee"] in (6.0, 9.0) and knee["kept"] and knee["met_share_median"] >= 0.95
    assert result["goodput_at_objective"]["median"] == knee["goodput_per_s_median"]
    for row in result["rows"]:
        assert row["goodput_per_s_min"] <= row["goodput_per_s_median"] <= row["goodput_per_s_max"]
        assert row["goodput_per_s_median"] <= row["arrived_per_s_median"] + 1e-9
    assert "Above its limit the server answers" in sweep.in_words(result) and result["ratios"] == {}
    json.dumps(result)


def test_long_answers_that_are_under_way_at_the_end_are_not_over_the_limit(monkeypatch):
    """Any number at once, for as long each as a quarter of a round takes: all meet an objective for the first token."""

    def load(send, requests, *_, **options):
        run = OneAtATime()(send, requests, **options)
        rows = run.requests.assign(ttft_ms=50.0, latency_ms=1000 * requests[-1].at_s / 4)
        return Run(rows.assign(last_s=rows["due_s"] + requests[-1].at_s / 4), 0.0)

    result = swept(monkeypatch, load=load, rates=(2.0, 4.0), rounds=2)
    assert [row["over_limit"] for row in result["rows"]] == [False, False]
    assert result["knee"] == 4.0 and result["capacity"] is None


def test_slots_that_fill_in_a_short_round_are_not_over_the_limit(monkeypatch):
    """Eight slots serve five a second. At three a second more of 32 requests sit there at the end than at the start."""

    def load(send, requests, *_, **options):
        run, free = OneAtATime()(send, requests, **options), [0.0] * SLOTS
        ends = []
        for place, request in enumerate(requests):
            free[free.index(min(free))] = end = max(request.at_s, min(free)) + 0.5 + place / 15
            ends.append(end)
        return Run(run.requests.assign(last_s=ends), 0.0)

    monkeypatch.setattr(sweep, "send_all", load)
    result = sweep.sweep(None, make, FIRST_TOKEN, SLOTS, (3.0, 20.0))
    assert result["rows"][0]["served_per_s_median"] < sweep.OVER * result["rows"][0]["arrived_per_s_median"]
    assert [row["over_limit"] for row in result["rows"]] == [False, True]


def test_rates_may_be_named_and_the_sweep_stops_at_the_first_over_the_limit(monkeypatch):
    kept = []
    keep = lambda run, rate, turn: kept.append((rate, turn, len(run.requests)))
    result = swept(monkeypatch, rates=(2.0, 14.0, 20.0), requests=32, rounds=2, keep=keep)
    assert [row["rate"] for row in result["rows"]] == [2.0, 14.0]
    assert kept == [(2.0, 1, 32), (2.0, 2, 32), (14.0, 1, 32), (14.0, 2, 32)]


def test_a_rate_at_which_nothing_meets_the_objective_is_a_row(monkeypatch):
    result = swept(monkeypatch, objective.parse("itl=12.6,latency=101"), rates=(9.0, 14.0), rounds=2)
    assert [row["kept"] for row in result["rows"]] == [False, False] and result["knee"] is None
    assert sweep.in_words(result).startswith("No rate kept the objective: ")


# Ended early ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interrupt", "error", "stopped"),
    [
        (None, CourseError, "The server at nowhere went away after 20 of 200 answers."),
        (SystemExit(143), SystemExit, "The sweep was interrupted."),
    ],
)
def test_what_was_measured_is_kept_when_it_ends_early(monkeypatch, interrupt, error, stopped):
    result = swept(monkeypatch, load=OneAtATime(7, interrupt))  # two of the warm-up, then three rounds each
    assert [(row["rate"], row["rounds"]) for row in result["rows"]] == [(6.0, 3), (9.0, 1)]
    assert result["stopped"] == stopped
    with pytest.raises(error):
        swept(monkeypatch, load=OneAtATime(3, interrupt))
