"""The checks of lab 08 find the mistakes that learners make, and say which; and the lesson's pictures are drawn."""

import json

import numpy as np
import pandas as pd
import pytest

from inflight.bench import gpt2_client
from inflight.notebook import charts
from inflight.notebook.charts.display import in_course_look
from inflight.notebook.grading import check
from inflight.triton import telemetry

SETTINGS = {"max_batch_size": 4, "sequence_batching.oldest.max_candidate_sequences": 10, "kv_cache_slots": 10}


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def padded(prompts, answer):
    return len(prompts) * (max(prompts) * answer + answer * (answer - 1) // 2)


def without(prompts, answer):
    return sum(prompts) * answer + len(prompts) * answer * (answer - 1) // 2


def with_cache(prompts, answer):
    return sum(prompts) + len(prompts) * (answer - 1)


def as_long_as_the_first(prompts, answer):
    return padded([prompts[0]] * len(prompts), answer)


def attend(query, keys, values):
    weights = np.exp(np.array(keys) @ query / 2)
    return weights / weights.sum() @ np.array(values)


def next_token(x, query, key, value, cache):
    for name, function in (("k", key), ("v", value)):
        cache.setdefault(name, []).append(function(x))
    return attend(query(x), cache["k"], cache["v"])


def without_itself(x, query, key, value, cache):
    keys, values = cache.setdefault("k", []), cache.setdefault("v", [])
    result = attend(query(x), keys, values) if keys else value(x)
    keys.append(key(x))
    values.append(value(x))
    return result


SHARED = {}


def one_cache_for_all(x, query, key, value, cache):
    return next_token(x, query, key, value, SHARED)


def all_again(x, query, key, value, cache):
    texts = cache.setdefault("texts", [])
    texts.append(x)
    return attend(query(x), [key(each) for each in texts], [value(each) for each in texts])


def passes(*members):
    """A log in which each pass has these sequences."""
    rows = [(number, sequence) for number, sequences in enumerate(members, 1) for sequence in sequences]
    return pd.DataFrame(rows, columns=["iteration", "sequence"])


TEN = range(1, 11)
IN_TURN = passes((1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 1, 2), TEN[2:6], TEN[6:])


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("8.1", (padded, without, with_cache)),
        ("8.2", next_token),
        ("8.3", (SETTINGS, IN_TURN)),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("8.1", (as_long_as_the_first, without, with_cache), "padded"),
        ("8.1", (padded, padded, with_cache), "without a cache"),
        ("8.1", (padded, without, lambda prompts, answer: sum(prompts) + len(prompts) * answer), "goes into none"),
        ("8.2", without_itself, "to itself too"),
        ("8.2", one_cache_for_all, "its own cache alone"),
        ("8.2", all_again, "are enough"),
        ("8.3", (SETTINGS, passes(TEN, TEN)), "The fullest forward pass had 10"),
        ("8.3", (SETTINGS, passes(*((number,) for number in TEN))), "The fullest forward pass had 1 "),
        ("8.3", (SETTINGS, passes(TEN[:4], TEN[:4], TEN[4:8], TEN[8:])), "that one waited"),
        ("8.3", (SETTINGS, passes(TEN[:4], TEN[4:8])), "not 10"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, hint):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and hint in repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("8.1", [lambda *_: None] * 3),
        ("8.2", lambda *_: None),
        ("8.3", ({}, IN_TURN)),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


# The lesson's tables and pictures -------------------------------------------------------------------------------------


def test_passes_are_counted_from_one_and_sequences_in_the_order_of_their_start():
    log = pd.DataFrame({"sequences": [[[7, True, 0, 6, 5]], [[7, False, 0, 7, 1], [9, True, 1, 4, 3]]]})
    assert telemetry.passes(log).values.tolist() == [
        [1, 1, 7, True, 0, 6, 5],
        [2, 1, 7, False, 0, 7, 1],
        [2, 2, 9, True, 1, 4, 3],
    ]


def test_a_token_costs_the_time_since_the_one_before():
    tokens = gpt2_client.table(
        [gpt2_client.Token(1, number, time_s, "x") for number, time_s in ((1, 0.5), (2, 0.51), (3, 0.53))]
    )
    costs = gpt2_client.costs(tokens, prompt_tokens=4)
    assert costs["length"].tolist() == [5, 6] and costs["ms"].round().tolist() == [10, 20]


def growing(slope):
    lengths = np.arange(5, 300)
    return pd.DataFrame({"length": lengths, "ms": 3 + slope * lengths})


def test_a_line_is_fitted_and_its_law_named():
    ways = {"without": growing(0.1), "with": growing(0.0)}
    assert charts.iterative_gpt2.growth(ways["without"]) == pytest.approx((3, 0.1))
    fig = charts.cost_of_a_token(ways)
    words = {note.text for note in fig.layout.annotations}
    assert {"◆ without: 3.0 ms + 100.0 µs · n", "◆ without: 3.0 ms · n + 50.0 µs · n²"} <= words
    assert {"● with: 3.0 ms + 0.0 µs · n", "● with: 3.0 ms · n + 0.0 µs · n²"} <= words
    summary = charts.cost_of_a_token_summary(ways)
    assert "3.5 ms after 5 tokens and 32.9 ms after 299" in summary and "3.0 ms after 299" in summary
    assert json.dumps(in_course_look(fig))


def test_races_and_passes_are_drawn_on_one_scale():
    tokens = [
        gpt2_client.table(
            [gpt2_client.Token(stream, number, end * number / 10, "x") for stream in (1, 2) for number in range(1, 11)]
        )
        for end in (1.0, 2.0)
    ]
    runs = dict(zip(("simple", "iterative"), tokens))
    fig = charts.race(runs, [0.0, 0.05])
    assert tuple(fig.layout.xaxis.range) == tuple(fig.layout.xaxis2.range) and fig.layout.xaxis.range[1] > 2
    assert "stream 2 from 0.20 to 2.00 s" in charts.race_summary(runs)
    assert json.dumps(in_course_look(fig))
    members = {
        "one": passes((1,), (2,)).rename(columns={"sequence": "stream"}),
        "two": IN_TURN.rename(columns={"sequence": "stream"}),
    }
    summary = charts.forward_passes_summary(members)
    assert (
        "one: 2 passes for 2 tokens, 0 of them with more than one" in summary
        and "two: 5 passes for 20 tokens, 5" in summary
    )
    assert json.dumps(in_course_look(charts.forward_passes(members)))
