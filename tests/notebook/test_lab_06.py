"""The checks of lab 06 find the mistakes that learners make, and say which."""

import dataclasses

import pandas as pd
import pytest

from inflight.bench.batch_run import QUEUE_FULL, TIMED_OUT, Outcome
from inflight.bench.sequences import Step
from inflight.notebook.grading import check
from inflight.triton.telemetry import Statistics

SETTINGS = {"dynamic_batching.max_queue_delay_microseconds": 110_000}


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def right_sizes(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """One arrival after the other, as another than the solution might write it."""
    batches, free_ms, place = [], 0, 0
    while place < len(arrivals_ms):
        leaves_ms = max(free_ms, arrivals_ms[place] + delay_ms)
        last = place + max_batch_size - 1
        if last < len(arrivals_ms) and arrivals_ms[last] < leaves_ms:
            leaves_ms = max(free_ms, arrivals_ms[last])
        size = 1
        while size < max_batch_size and place + size < len(arrivals_ms) and arrivals_ms[place + size] <= leaves_ms:
            size += 1
        batches.append(size)
        place, free_ms = place + size, leaves_ms + fixed_ms + item_ms * size
    return batches


def changed(**fixed):
    """`right_sizes` with some of its parameters taken for something else."""
    names = ("arrivals_ms", "delay_ms", "max_batch_size", "fixed_ms", "item_ms")
    return lambda *values: right_sizes(**{**dict(zip(names, values, strict=True)), **fixed})


def outcome(latencies_ms, mean_batch, rejected=0):
    """A run with these latencies; only what the grader reads is there."""
    kinds = ["rejected"] * rejected + ["answered"] * (len(latencies_ms) - rejected)
    executions, answered = round(len(kinds) / mean_batch), len(kinds) - rejected
    counted = Statistics(len(kinds), executions, answered, rejected, 0.0, 0.0, pd.Series())
    return Outcome(pd.DataFrame({"latency_ms": latencies_ms, "outcome": kinds}), pd.DataFrame(), counted)


def right_steps(messages):
    steps = [Step(sequence, value) for sequence, value in messages]
    for sequence in {step.sequence for step in steps}:
        own = [place for place, step in enumerate(steps) if step.sequence == sequence]
        steps[own[0]] = dataclasses.replace(steps[own[0]], start=True)
        steps[own[-1]] = dataclasses.replace(steps[own[-1]], end=True)
    return steps


def right_account(outcome):
    kinds = outcome.requests["message"].value_counts()
    return {
        "answered": kinds.get("", 0),
        "queue full": kinds.get(QUEUE_FULL, 0),
        "timed out": kinds.get(TIMED_OUT, 0),
        "not counted": len(outcome.requests) - outcome.statistics.succeeded - outcome.statistics.failed,
    }


def wrong_account(name, make):
    """`right_account` with one number made otherwise, by `make` from the requests and Triton's statistics."""
    return lambda outcome: {**right_account(outcome), name: make(outcome.requests, outcome.statistics)}


def without(name):
    return lambda messages: [dataclasses.replace(step, **{name: False}) for step in right_steps(messages)]


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("6.1", right_sizes),
        ("6.2", (SETTINGS, outcome([150] * 45, 3.8))),
        ("6.3", right_steps),
        ("6.4", right_account),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("6.1", lambda arrivals, *_: [1] * len(arrivals), "what came meanwhile"),
        ("6.1", changed(max_batch_size=99), "No batch holds more"),
        ("6.1", changed(delay_ms=0), "counts from the arrival of the oldest"),
        ("6.1", changed(fixed_ms=0, item_ms=0), "what came meanwhile"),
        ("6.2", (SETTINGS, outcome([60] * 45, 1.4)), "1.4 requests a batch"),
        ("6.2", (SETTINGS, outcome([600] * 45, 4)), "P95 is 600 ms"),
        ("6.2", (SETTINGS, outcome([100] * 45, 4, rejected=2)), "2 requests were rejected"),
        ("6.3", without("end"), "end=False"),
        ("6.3", without("start"), "start=False"),
        (
            "6.3",
            lambda messages: [Step(sequence, value, start=True, end=True) for sequence, value in messages],
            "start not right yet, end not right yet",
        ),
        ("6.3", lambda messages: sorted(right_steps(messages), key=lambda step: step.sequence), "in this order"),
        ("6.4", wrong_account("answered", lambda requests, _: requests["latency_ms"].notna().sum()), "comes back too"),
        ("6.4", wrong_account("answered", lambda _, counted: counted.executions), "'answered' is 3"),
        (
            "6.4",
            wrong_account("queue full", lambda requests, _: (requests["outcome"] == "rejected").sum()),
            "QUEUE_FULL",
        ),
        ("6.4", wrong_account("timed out", lambda requests, _: (requests["outcome"] == "rejected").sum()), "TIMED_OUT"),
        ("6.4", wrong_account("not counted", lambda requests, counted: len(requests) - counted.succeeded), "as failed"),
        ("6.4", wrong_account("not counted", lambda requests, counted: counted.failed), "as failed"),
        ("6.4", lambda outcome: {"answered": 6}, "yours are answered"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, hint):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and hint in repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("6.1", lambda *_: None),
        ("6.2", ({}, outcome([60] * 45, 1.4))),
        ("6.3", lambda messages: None),
        ("6.4", lambda outcome: None),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"
