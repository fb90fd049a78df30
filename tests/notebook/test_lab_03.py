"""The checks of lab 03 find the mistakes that learners make, and say which."""

import pytest

from inflight.notebook.grading import check


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def right_felt(times_s):
    gaps = len(times_s) - 1
    return {
        "ttft_ms": times_s[0] * 1000,
        "itl_ms": (times_s[-1] - times_s[0]) / gaps * 1000 if gaps else None,
        "end_to_end_ms": times_s[-1] * 1000,
        "tokens_per_s": len(times_s) / times_s[-1],
    }


def until(stream, word):
    text = ""
    for piece in stream:
        text += piece
        if word in text:
            break
    return text


def fit(table, max_ttft_ms, max_itl_ms):
    held = 0
    for row in table.sort_values("readers").itertuples():
        if row.ttft_ms > max_ttft_ms or row.itl_ms > max_itl_ms:
            break
        held = row.readers
    return held


@pytest.mark.parametrize(("exercise", "answer"), [("3.1", right_felt), ("3.2", until), ("3.3", (fit, "TTFT"))])
def test_another_right_way_is_done(exercise, answer):
    assert check(exercise, answer).status == "done"


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("3.1", lambda times_s: {"ttft_ms": times_s[0]}, "ttft_ms is 0.25. Look at its unit"),
        ("3.1", lambda times_s: {**right_felt(times_s), "itl_ms": times_s[-1] / len(times_s) * 1000}, "itl_ms is 200"),
        ("3.1", lambda times_s: {**right_felt(times_s), "itl_ms": right_felt(times_s)["itl_ms"] or 0}, "has no gaps"),
        ("3.1", lambda times_s: {"itl_ms": 1}, "'ttft_ms' is missing"),
        (
            "3.2",
            lambda stream, word: "".join(stream),
            "the text not right yet, the end of the request not right yet. From the pieces",
        ),
        ("3.2", lambda stream, word: until(iter(list(stream)), word), "The request was not ended"),
        ("3.3", (fit, "ITL"), "which column grows more"),
        (
            "3.3",
            (lambda table, ttft, itl: table["readers"].max(), "TTFT"),
            "readers fit into this table, and you say 16",
        ),
    ],
)
def test_a_wrong_answer_gets_its_hint(exercise, answer, hint):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and hint in repr(result)
