"""The checks of lab 05 find the mistakes that learners make, and say which."""

import math

import pytest

from inflight.notebook.grading import check

ADVICE = {"captions": "guaranteed_no_evict", "labels": "max_utilization"}


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def right_blocks(prompt, answer, size):
    return math.ceil(prompt / size), math.ceil((prompt + answer) / size)


def right_price(log, prompt_tokens):
    held_back = log[(log.waiting > 0) & (log.empty_seats > 0)]
    return {
        "twice": log.context_tokens.sum() - prompt_tokens,
        "most_paused": log.paused.max(),
        "held_back": len(held_back),
    }


def right_cache(lengths, slots, size, longest):
    whole = sorted(right_blocks(*length, size)[1] for length in lengths)
    return size * max(sum(whole[-slots:]), math.ceil(longest / size))


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("5.1", right_blocks),
        ("5.2", right_price),
        ("5.3", (right_cache, ADVICE)),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("5.1", lambda prompt, answer, size: (prompt // size, (prompt + answer) // size), "Round up"),
        (
            "5.1",
            lambda prompt, answer, size: (
                math.ceil(prompt / size),
                math.ceil(prompt / size) + math.ceil(answer / size),
            ),
            "only once",
        ),
        ("5.2", lambda log, prompts: {**right_price(log, prompts), "twice": log.context_tokens.sum()}, "twice is not"),
        (
            "5.2",
            lambda log, prompts: {**right_price(log, prompts), "held_back": (log.waiting > 0).sum()},
            "held_back is not",
        ),
        ("5.2", lambda log, prompts: {"twice": log.context_tokens.sum() - prompts}, "'most_paused' is missing"),
        (
            "5.3",
            (lambda lengths, slots, size, longest: right_cache(lengths[:1], slots, size, longest), ADVICE),
            "may have to wait",
        ),
        ("5.3", (lambda lengths, slots, size, longest: right_cache(lengths, 99, size, longest), ADVICE), "is enough"),
        (
            "5.3",
            (lambda lengths, slots, size, longest: right_cache(lengths, slots, size, 32), ADVICE),
            "refuses to load",
        ),
        ("5.3", (right_cache, {**ADVICE, "labels": "guaranteed_no_evict"}), "'labels'"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, hint):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and hint in repr(result)


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("5.1", lambda *_: None),
        ("5.2", lambda *_: None),
        ("5.3", (lambda *_: None, {"captions": None, "labels": None})),
    ],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"
