"""Seats told from the client's clock alone: made runs, of which it is known who sat where and when."""

import random

import pandas as pd
import pytest

from inflight.bench import life_lines
from inflight.bench.load_generator import COLUMNS, Run

SEATS, ITERATIONS, START = 4, 400, 1000.0


def log():
    rows = {
        "timestamp": [START + number / 10 for number in range(ITERATIONS)],
        "scheduled": 1,
        "empty_seats": SEATS - 1,
    }
    return pd.DataFrame(rows)


def run_of(rows):
    table = pd.DataFrame(rows, columns=["request", "sent_s", "first_s", "last_s"])
    table = table.reindex(columns=COLUMNS).assign(**{name: table[name] for name in table})
    return Run(table.assign(error=""), started_at=START)


def played(choose, number):
    """Requests that are all there at once and take their seats not quite in order, as a server's threads have them."""
    free_at, rows = [0.0] * SEATS, []
    for request in choose.sample(range(number), number):
        seat = free_at.index(min(free_at))
        first = free_at[seat] + 0.1
        last = first + choose.randint(1, 20) / 10
        rows.append((request, request * 1e-4, first, last))
        free_at[seat] = last
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_a_seat_has_one_at_a_time_and_nobody_leaves_before_they_sit(seed):
    print("seed", seed)
    rows = played(random.Random(seed), 24)
    stays = life_lines.stays(run_of(rows), log())
    assert sorted(stays["request"]) == list(range(24)) and set(stays["slot"]) <= set(range(1, SEATS + 1))
    assert (stays["first"] <= stays["prompt_until"]).all() and (stays["prompt_until"] <= stays["last"]).all()
    for _, taken in stays.sort_values("first").groupby("slot"):
        assert (taken["first"].iloc[1:].to_numpy() >= taken["last"].iloc[:-1].to_numpy()).all()


@pytest.mark.parametrize("seed", range(20))
def test_times_that_contradict_the_seats_still_give_stays(seed):
    """Pieces that wait in a client for its only thread come late, and all at once."""
    print("seed", seed)
    choose = random.Random(seed)
    rows = [
        (request, sent, min(first + late, last + late), last + late)
        for request, sent, first, last in played(choose, 24)
        for late in [choose.choice([0.0, 0.0, 3.0])]
    ]
    stays = life_lines.stays(run_of(rows), log())
    assert (stays["first"] <= stays["prompt_until"]).all() and (stays["prompt_until"] <= stays["last"]).all()


def test_whole_answers_take_their_seats_in_the_order_they_were_sent():
    rows = [(number, number * 1e-3, float("nan"), 1.0 + number // SEATS) for number in range(8)]
    stays = life_lines.stays(run_of(rows), log())
    assert stays["request"].tolist() == list(range(8))
    assert stays["slot"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
