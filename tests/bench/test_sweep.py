"""A sweep of a server of which everything is known: when it stops, what it keeps, what it says; and what it refuses."""

import json
import math
from dataclasses import asdict, replace

import pandas as pd
import pytest

from inflight.bench import arrivals, md1, objective, sweep, sweep_file
from inflight.bench.load_generator import COLUMNS, Run
from inflight.bench.sweep import Aim
from inflight.bench.sweep_file import Cost, Round
from inflight.bench.workload import TimedRequest
from inflight.engine.config import IterationStats
from inflight.errors import CourseError

SERVICE_S = 0.1  # at most ten requests a second
SETTINGS = {"objective": "ttft=200", "seconds": 20.0}
AIM = Aim(objective.parse("ttft=200"), seconds=20.0)


def make(rate, number, turn):
    times = arrivals.poisson(number, rate, seed=turn)
    return [TimedRequest("Hi", 5, at_s, 30) for at_s in times]


class OneAtATime:
    """Stands for `load_generator.load` with a server that takes one request at a time: no time passes."""

    def __init__(self, stop_at=math.inf):
        self.loads, self.stop_at = 0, stop_at

    def __call__(self, send, requests, *_, **__):
        self.loads += 1
        times = [request.at_s for request in requests]
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
            for place, (at_s, wait) in enumerate(zip(times, md1.waits_s(times, SERVICE_S)))
        ]
        stopped = ""
        if self.loads >= self.stop_at:
            stopped = f"The server at nowhere went away after 20 of {len(rows)} answers."
            unknown = dict.fromkeys(("sent_s", "first_s", "last_s", "ttft_ms", "itl_ms", "latency_ms"), math.nan)
            rows[20:] = [row | unknown | {"error": "Not sent."} for row in rows[20:]]
        return Run(pd.DataFrame(rows, columns=COLUMNS), 0.0, stopped)


@pytest.fixture
def server(monkeypatch):
    fake = OneAtATime()
    monkeypatch.setattr(sweep.load_generator, "load", lambda *arguments, **options: fake(*arguments, **options))
    return fake


def opened(path=None, resume=False, settings=SETTINGS):
    kept = sweep_file.open_file(path, settings, resume)
    kept.base_per_s, kept.warm_up_requests = kept.base_per_s or 10.0, 32
    return kept


def test_rates_rise_until_the_server_is_over_its_limit(server):
    kept = opened()
    sweep.measure(kept, make, None, AIM)
    assert kept.rates[:5] == [4.0, 6.0, 7.5, 8.5, 9.5] and 10 < kept.rates[-2] <= 15
    assert kept.rates[-1] == pytest.approx(sweep.FAR_OVER * kept.rates[-2], rel=0.01)
    result = sweep.summary(kept, AIM, "here")
    over = [row["over_limit"] for row in result["rows"]]
    assert over == [False] * (len(over) - 2) + [True, True]
    assert server.loads == 3 * len(over) and all(row["rounds"] == 3 for row in result["rows"])
    assert result["capacity"]["measured"]["median"] == pytest.approx(10, rel=0.05)
    assert result["knee"] in (4.0, 6.0, 7.5) and result["devices"] == {"bench sweep": "here"}
    knee = next(row for row in result["rows"] if row["rate"] == result["knee"])
    assert knee["kept"] and knee["met_share_median"] >= 0.95
    assert result["goodput_at_objective"]["median"] == knee["goodput_per_s_median"]
    for row in result["rows"]:
        assert row["goodput_per_s_min"] <= row["goodput_per_s_median"] <= row["goodput_per_s_max"]
        assert row["goodput_per_s_median"] <= row["arrived_per_s_median"] + 1e-9
    json.dumps(result)


def test_long_answers_that_are_under_way_at_the_end_are_not_over_the_limit(monkeypatch):
    """Any number at once, for as long each as half of a round takes: all meet an objective for the first token."""

    def load(send, requests, *_, **__):
        long_s = requests[-1].at_s / 2
        run = OneAtATime()(send, requests)
        rows = run.requests.assign(ttft_ms=50.0, latency_ms=1000 * long_s)
        return Run(rows.assign(last_s=rows["due_s"] + long_s), 0.0, "")

    monkeypatch.setattr(sweep.load_generator, "load", load)
    kept, aim = opened(), Aim(AIM.objective, rates=(2.0, 4.0))
    sweep.measure(kept, make, None, aim)
    result = sweep.summary(kept, aim, "here")
    assert [row["over_limit"] for row in result["rows"]] == [False, False]
    assert result["knee"] == 4.0 and result["capacity"]["measured"] is None
    assert all(row["served_per_s_median"] < sweep.OVER * row["arrived_per_s_median"] for row in result["rows"])


def test_where_the_first_rate_is_too_high_lower_ones_come_first(server):
    """At four requests a second one in ten has to wait for longer than 20 ms; at two, one in twenty or so; at one few.

    Seeds of the rounds: 1 to 3.
    """
    kept, aim = opened(), Aim(objective.parse("ttft=70"), seconds=200.0, rounds=3)
    sweep.measure(kept, make, None, aim)
    assert [rate for rate in kept.rates if rate < 4] in ([2.0], [1.0, 2.0])
    assert list(dict.fromkeys(each.rate for each in kept.rounds))[:2] == [4.0, 2.0]
    result = sweep.summary(kept, aim, "here")
    over = [row["over_limit"] for row in result["rows"]]
    assert over == [False] * (len(over) - 2) + [True, True]


def test_rates_may_be_named_and_the_sweep_stops_at_the_first_over_the_limit(server):
    kept, aim = opened(), Aim(AIM.objective, rates=(2.0, 14.0, 20.0), rounds=2)
    sweep.measure(kept, make, None, aim)
    assert kept.rates == [2.0, 14.0] and server.loads == 4


def test_the_capacity_is_what_is_answered_at_the_highest_rate_over_the_limit():
    """Barely over it, slots are empty at times: that is no part of it."""
    kept, aim = opened(), Aim(AIM.objective, rates=(4.0, 12.0, 18.0))
    for rate, served in ((4.0, 4.0), (12.0, 8.0), (18.0, 9.5)):
        for number, more in enumerate((0.0, 0.1, -0.1), 1):
            met = 1.0 if rate == 4.0 else 0.0
            found = sweep.figures(OneAtATime()(None, make(rate, 40, number)), aim.objective)
            known = {"arrived_per_s": rate, "served_per_s": served + more, "goodput_per_s": met * rate}
            kept.add(Round(rate=rate, round=number, stopped="", figures=found | known | {"met_share": met}))
    result = sweep.summary(kept, aim, "here")
    assert [row["over_limit"] for row in result["rows"]] == [False, True, True]
    assert result["capacity"]["measured"] == {"median": 9.5, "min": 9.4, "max": 9.6}
    assert "Over its limit the server answers 9.50 requests a second (9.40 to 9.60)." in sweep.in_words(result)


def iteration(number, shares):
    """An iteration of requests with so many tokens of a prompt each."""
    rows = [[request, context, int(context == 0), 1] for request, context in shares]
    tokens = (sum(row[1] for row in rows), sum(row[2] for row in rows))
    return IterationStats(
        number, 1e9 + number, 5.0, len(rows), len(rows), 0, 0, *tokens, 1, 9, 10, 0, 16, 0, 0, rows, []
    )


def test_prompts_count_as_far_as_they_were_computed(monkeypatch, tmp_path):
    """Before the round a prompt of 500; in it each of 30 tokens, but two thirds of most were found in the cache."""
    path = tmp_path / "iterations.jsonl"

    def write(*iterations):
        with path.open("a") as file:
            file.writelines(f"{json.dumps(asdict(each))}\n" for each in iterations)

    def load(send, requests, *_, **__):
        computed = [(number, 30 if number == 1 else 10) for number, _ in enumerate(requests, 1)]
        write(*(iteration(place, [share, (0, 0)]) for place, share in enumerate(computed)))
        return OneAtATime()(send, requests)

    write(iteration(0, [(0, 500)]))
    monkeypatch.setattr(sweep.load_generator, "load", load)
    kept, aim = opened(), Aim(AIM.objective, rates=(2.0,), rounds=1)
    kept.costs = [Cost(answers_ms=[0.0, 20.0, 30.0], prompt_token_ms=0.5)]
    sweep.measure(kept, make, None, aim, path)
    [one] = kept.rounds
    assert one.figures["input_len_mean"] == 30
    # Of the first requests of a round, request 0 of an earlier one among them, some do not count.
    assert one.figures["computed_len_mean"] == pytest.approx(10, abs=0.3)
    predicted = sweep.summary(kept, aim, "here")["capacity"]["predicted"]
    assert predicted == sweep.predicted_per_s(kept.costs[0], one.figures["computed_len_mean"], 5)
    unnamed = pd.DataFrame([asdict(replace(iteration(1, [(1, 30)]), requests=[]))])
    assert sweep.figures(OneAtATime()(None, make(2.0, 40, 1)), aim.objective, unnamed)["computed_len_mean"] is None


def test_capacity_is_that_of_an_iterations_cost(server):
    """Two slots; an iteration takes 20 ms with one answer and 30 with two, and 0.5 ms for each token of a prompt."""
    cost = Cost(answers_ms=[0.0, 20.0, 30.0], prompt_token_ms=0.5)
    # Prompts of 30 and answers of 5 tokens: 0.4 prompts an iteration beside 1.6 answers, 26 + 0.4 · 15 = 32 ms.
    assert sweep.predicted_per_s(cost, 30, 5) == pytest.approx(0.4 / 0.032)
    kept = opened()
    kept.costs = [cost, cost]
    sweep.measure(kept, make, None, AIM)
    result = sweep.summary(kept, AIM, "here")
    assert result["capacity"]["predicted"] == pytest.approx(12.5)
    ratio = result["ratios"]["capacity_measured_over_predicted"]
    assert ratio["median"] == pytest.approx(result["capacity"]["measured"]["median"] / 12.5)
    assert ratio["min"] <= ratio["median"] <= ratio["max"]
    assert "From the cost of an iteration follow 12.50." in sweep.in_words(result)


# Interrupted, and taken up again --------------------------------------------------------------------------------------


def test_what_was_measured_is_kept_when_the_server_goes_away_and_gone_on_with(server, tmp_path):
    path = tmp_path / "sweep.json"
    server.stop_at = 5
    rows = []
    with pytest.raises(CourseError) as ended:
        sweep.measure(opened(path), make, None, AIM, keep_rows=lambda run, *_: rows.append(len(run.answered)))
    assert str(ended.value) == (
        "The server at nowhere went away after 20 of 120 answers at 6 requests a second, round 2."
    )
    assert rows[-1] == 20
    kept = opened(path, resume=True)
    assert [(each.rate, each.round, bool(each.stopped)) for each in kept.rounds] == [
        (4.0, 1, False),
        (4.0, 2, False),
        (4.0, 3, False),
        (6.0, 1, False),
        (6.0, 2, True),
    ]
    started = kept.rounds[-1].answered
    assert len(started) == 20 and all(row["error"] == "" and row["latency_ms"] >= 1000 * SERVICE_S for row in started)
    assert not any(each.answered for each in kept.rounds[:-1]), "of a whole round the figures say it all"
    part = sweep.summary(kept, AIM, "here")
    assert [row["rounds"] for row in part["rows"]] == [3, 1]
    server.stop_at, server.loads = math.inf, 0
    sweep.measure(kept, make, None, AIM)
    whole = opened()
    loads = server.loads
    sweep.measure(whole, make, None, AIM)
    assert loads == server.loads - loads - 4  # four rounds were there
    assert sweep.summary(kept, AIM, "")["rows"] == sweep.summary(whole, AIM, "")["rows"]
    again = opened(path, resume=True)
    assert again.rounds == kept.rounds and not any(each.stopped or each.answered for each in again.rounds)


# Wrong values ---------------------------------------------------------------------------------------------------------


def test_an_objective_that_nothing_meets_even_alone_is_said_before_anything_is_measured(monkeypatch):
    sent = []

    def one_after_another(send, requests, concurrency=None, closed=False):
        assert (concurrency, closed) == (1, True)
        sent.extend(requests)
        return OneAtATime()(send, [replace(request, at_s=float(place)) for place, request in enumerate(requests)])

    monkeypatch.setattr(sweep.load_generator, "load", one_after_another)
    all_of_them = [replace(request, input_len=length) for length, request in enumerate(make(2.0, 50, 1), 30)]
    with pytest.raises(
        CourseError,
        match=r"No request met the objective \(TTFT at most 3 ms\), even one at a time .*: the best TTFT was 50 ms",
    ):
        sweep.check_alone(None, all_of_them, objective.parse("ttft=3"))
    assert len(sent) <= sweep.ALONE and all_of_them[0] in sent and max(one.input_len for one in sent) > 70
    sweep.check_alone(None, all_of_them[:3], AIM.objective)


def test_a_request_alone_that_fails_is_said_with_its_reason(monkeypatch):
    def failed(send, requests, *_, **__):
        rows = OneAtATime()(send, requests).requests
        return Run(rows.assign(error="No room."), 0.0, "")

    monkeypatch.setattr(sweep.load_generator, "load", failed)
    with pytest.raises(CourseError, match=r"No request was answered one at a time, the first with: No room\."):
        sweep.check_alone(None, make(2.0, 5, 1), AIM.objective)


def test_a_rate_at_which_nothing_meets_the_objective_is_a_row(server):
    kept, aim = opened(), Aim(objective.parse("ttft=3"), rates=(2.0, 14.0), rounds=2)
    sweep.measure(kept, make, None, aim)
    result = sweep.summary(kept, aim, "here")
    assert [(row["rate"], row["goodput_per_s_max"]) for row in result["rows"]] == [(2.0, 0.0), (14.0, 0.0)]
    assert result["knee"] is None and result["goodput_at_objective"] is None
    assert result["capacity"]["measured"]["median"] == pytest.approx(10, rel=0.05)
    assert sweep.in_words(result).startswith("No rate kept the objective.")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"share": 0}, "--share is 0; it must be above 0 and at most 1"),
        ({"share": 1.2}, "--share is 1.2"),
        ({"seconds": 0}, "--seconds is 0"),
        ({"seconds": math.nan}, "--seconds is nan"),
        ({"rounds": 0}, "There are 0 rounds"),
        ({"rates": (2.0, 1.0)}, "The rates must be above 0 and rise"),
        ({"rates": (0.0, 1.0)}, "The rates must be above 0 and rise"),
        ({"rates": (math.nan,)}, "The rates must be above 0 and rise"),
    ],
)
def test_wrong_values_are_one_sentence(options, complaint):
    with pytest.raises(CourseError, match=complaint):
        Aim(AIM.objective, **options)
