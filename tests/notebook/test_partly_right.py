"""Of every exercise with several parts: an answer that is right in some, and what is said of each."""

import numpy as np
import pytest

from inflight.lessons.batchers import on_paper
from inflight.lessons.sequences.sequences import Step
from inflight.notebook import checks, record
from inflight.notebook.checks import check
from inflight.paths import COURSE


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise, whatever the run that these tests are part of has set."""
    monkeypatch.setenv("COURSE_STRICT", "0")


def not_written(*_):
    return None


def felt(times_s):
    return {"ttft_ms": times_s[0] * 1000, "itl_ms": None, "end_to_end_ms": times_s[-1] * 1000}


def sizes_without_a_delay(arrivals_ms, delay_ms, *rest):
    return on_paper(arrivals_ms, 0, *rest).sizes


def only_started(messages):
    seen = set()
    return [Step(one, value=value, start=not (one in seen or seen.add(one))) for one, value in messages]


def idle_between_all(requests, executions):
    return 1000 * (executions["start_s"] - executions["end_s"].shift()).clip(lower=0).sum()


def padded(prompts, length):
    return sum(len(prompts) * (max(prompts) + before) for before in range(length))


def all_projections_again(x, query, key, value, cache):
    past = cache.setdefault("past", [])
    past.append(x)
    keys, values = np.stack([key(one) for one in past]), np.stack([value(one) for one in past])
    weights = np.exp(keys @ query(x) / 2)
    return weights / weights.sum() @ values


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("3.1", felt, "ttft_ms ✓, itl_ms still open, end_to_end_ms ✓, tokens_per_s still open."),
        ("4.4", (([128] + [8] * 7) * 3, None), "wins ✓, draws still open."),
        ("4.4", (([128] + [8] * 7) * 3, [None] * 24), "wins ✓, draws still open."),
        ("6.1", sizes_without_a_delay,
         "no delay ✓, max_batch_size ✓, the delay not right yet, a full batch not right yet, a busy "),
        ("6.4", idle_between_all, "a gap in which somebody waits ✓, a gap in which nobody waits not right yet"),
        ("7.1", only_started, "messages ✓, start ✓, end not right yet."),
        ("8.1", (padded, not_written, not_written), "padded ✓, without a cache still open, with a cache still open."),
        ("8.2", all_projections_again, "one projection each not right yet, the result ✓. tokens projected: "),
    ],
)  # fmt: skip
def test_a_check_says_which_part_is_right(exercise, answer, says):
    result = check(exercise, answer)
    assert result.status == "partly" and f"Exercise {exercise}: Partly right: {says}" in repr(result)
    assert "Partly right: " in result._repr_html_() and "✓" in result._repr_html_()
    assert result.insight == ""


def test_every_check_of_a_lab_has_a_grader_and_a_sentence_or_two_of_insight_for_who_is_done():
    for lesson in checks._lessons():
        checks._import_graders(lesson)
    labs = "".join(path.read_text(encoding="utf-8") for path in (COURSE / "lessons").glob("*/lab.py"))
    assert sorted(checks._graders) == sorted(record.CHECKED.findall(labs))
    for exercise, grader in checks._graders.items():
        insight = grader.insight
        assert insight.endswith(".") and insight.count(". ") < 2 and len(insight.split()) > 6, exercise


def test_the_insight_follows_a_right_answer():
    result = check("4.4", (([128] + [8] * 7) * 3, [32] * 8 + [64] * 8 + [128] * 8))
    assert repr(result).startswith("Exercise 4.4: Done. It matters how lengths differ within a batch")
    assert "It matters" in result._repr_html_()
