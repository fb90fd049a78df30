"""What a lab's check answers, and that it never stops a lab."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from inflight.errors import CourseError
from inflight.notebook import checks, workspace
from inflight.notebook.checks import NOT_YET, Case, Measured, check, grades, near, plain, tried_on


@pytest.fixture(autouse=True)
def graders(monkeypatch):
    monkeypatch.setattr(checks, "_graders", {})
    monkeypatch.setattr(checks, "_lessons", dict)
    monkeypatch.delenv("COURSE_STRICT", raising=False)

    @grades("9.1")
    def bytes_a_token(answer, _choose):
        if answer == 0:
            return NOT_YET
        return None if answer == 11520 else f"Count keys and values: {11520 // answer} times what you have."


@pytest.mark.parametrize("answer", [None, ..., [None, None], (None, ...), {"a": None, "b": {"c": None}}, 0])
def test_an_untouched_answer_is_not_done_yet(answer):
    assert repr(check("9.1", answer)) == "Exercise 9.1: Not done yet."


def test_a_right_answer_is_done():
    assert repr(check("9.1", 11520)) == "Exercise 9.1: Done."


def test_a_wrong_answer_gets_the_hint():
    assert repr(check("9.1", 5760)) == "Exercise 9.1: Not right yet. Count keys and values: 2 times what you have."


def test_an_answer_of_another_type_does_not_stop_the_lab():
    result = check("9.1", "many")
    assert result.status == "wrong" and "TypeError" in result.hint


def test_an_error_in_a_function_says_for_what_it_came():
    grades("9.2")(lambda answer, _choose: answer([0.4], pd.DataFrame({"a": [1, 2]})))

    def felt(times_s, table):
        return 1 / (len(times_s) - 1)

    said = check("9.2", felt).hint
    assert said.endswith("ZeroDivisionError: division by zero. That was for felt([0.4], a table of 2 rows).")


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (np.int64(5), 5),
        (5.0, 5),
        (np.array([1, 2.5]), [1, 2.5]),
        ((1, None, ...), [1, None, None]),
        (pd.Series([1, np.nan]), [1, None]),
        (pd.Series({"a": 1.0, "b": pd.NA}), {"a": 1, "b": None}),
        ({"itl_ms": float("nan"), "n": np.float32(0.5)}, {"itl_ms": None, "n": 0.5}),
        ("text", "text"),
        (True, True),
    ],
)
def test_an_honest_answer_of_another_form_counts_as_what_it_is(answer, same):
    assert plain(answer) == same and plain(lambda: answer)() == same


def test_a_none_inside_an_answer_is_an_answer():
    grades("9.2")(lambda answer, _choose: None if answer == {"a": None, "b": 1} else "No.")
    assert check("9.2", {"a": None, "b": 1}).status == "done"
    assert check("9.2", {"a": None}).status == NOT_YET


def test_an_unknown_exercise_is_told_so():
    assert check("9.7", 1).hint == "There is no such exercise."


def test_what_is_shown_says_it_in_words_and_escapes_the_hint():
    grades("9.2")(lambda answer, _choose: "a <b> is not a token")
    shown = check("9.2", 1)._repr_html_()
    assert "Not right yet" in shown and "a &lt;b&gt; is not" in shown


@pytest.mark.parametrize("answer", [None, 5760])
def test_strict_raises_for_what_is_not_right(answer, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    with pytest.raises(CourseError, match=r"Exercise 9\.1: Not"):
        check("9.1", answer)
    assert check("9.1", 11520).status == "done"


def test_a_check_imports_the_graders_of_its_lesson_and_no_others():
    script = """
import sys
from inflight.notebook import check
print(check("4.1", lambda log, slots: None).status)
print(*[name for name in sys.modules if name.startswith("inflight.lessons.") and name.endswith(".grading")])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-2:] == [NOT_YET, "inflight.lessons.batching.grading"], ran.stderr


# What is found --------------------------------------------------------------------------------------------------------

CASES = [
    Case(([1, 2],), 1.5, "mean of [1, 2]", "Add them up, and divide by how many there are.", ((3, "Divide the sum."),)),
    Case(([4],), 4, "mean of [4]", "One number is its own mean."),
]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda numbers: sum(numbers) / len(numbers), "Done."),
        (lambda numbers: None, "Not done yet."),
        (sum, "Not right yet. mean of [1, 2]: 3, where exactly 1.5 is wanted. Divide the sum."),
        (max, "Not right yet. mean of [1, 2]: 2, where exactly 1.5 is wanted. Add them up, and divide by how many"),
        (lambda numbers: numbers.pop() and 1.5, "Not right yet. mean of [4]: 1.5, where exactly 4 is wanted. One"),
        (lambda numbers: "many", "Not right yet. mean of [1, 2]: 'many', where 1.5 is wanted. Add them up"),
    ],
)
def test_a_function_is_told_of_the_first_case_that_it_gets_wrong(answer, said):
    grades("9.2")(lambda answer, _choose: tried_on(CASES, answer, near))
    assert repr(check("9.2", answer)).startswith(f"Exercise 9.2: {said}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CourseError("There is no engine."), "Not right yet. There is no engine."),
        (NotImplementedError(), "Not done yet."),
    ],
)
def test_an_error_that_says_enough_is_told_as_it_is(error, said):
    def grade(answer, _choose):
        raise error

    grades("9.2")(grade)
    assert repr(check("9.2", 1)) == f"Exercise 9.2: {said}"


# What is measured -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "right", "says"),
    [
        ({"at_most": 110}, 118, False, "iterations: 118, where at most 110 is wanted. Begin sooner."),
        ({"at_most": 110}, 110, True, "wanted at most 110"),
        ({"at_least": 3}, 2.5, False, "iterations: 2.5, where at least 3 is wanted. Begin sooner."),
        ({"exactly": 7}, 7, True, "wanted exactly 7"),
        ({"exactly": 7}, 8, False, "iterations: 8, where exactly 7 is wanted. Begin sooner."),
        ({"at_most": 1e9}, float("nan"), False, "iterations: none, where at most 1,000,000,000 is wanted."),
        ({}, 0.97, True, "yours 0.97"),
    ],
)
def test_a_budget_decides_and_is_told(limit, value, right, says):
    figure = Measured("iterations", value, advice="Begin sooner.", course=104, nothing=240, **limit)
    grades("9.2", "Sooner is better.")(lambda answer, choose: {"the trace": figure})
    result = check("9.2", 1)
    assert (result.status == "done") == right and says in repr(result)
    assert "the course's 104; doing nothing 240" in repr(result)
    shown = "".join(result._repr_html_().split())
    assert "<td>104</td><td>240</td>" in shown and result.figures == [figure]


def test_one_of_several_figures_that_is_over_its_budget_makes_it_wrong():
    figures = [Measured("iterations", 9, at_most=10), Measured("tokens computed twice", 5, exactly=0)]
    grades("9.2")(lambda answer, choose: figures)
    assert check("9.2", 1).hint == "tokens computed twice: 5, where exactly 0 is wanted."


def test_a_number_is_right_as_far_as_it_is_shown_and_is_told_from_its_budget():
    assert Measured("requests/s", 2.2084, exactly=2.2079).is_right
    assert not Measured("iterations", 1001, exactly=1000).is_right
    assert Measured("MB", 170.04, at_most=170).hint == "MB: 170.04, where at most 170 is wanted."
    assert near(0.35, 0.3472) and near(2.21, 2.2084)
    assert not near(0.36, 0.3472) and not near(None, 0.0) and not near("many", 1.0)


def test_hidden_cases_are_fresh_and_can_be_repeated(monkeypatch):
    drawn = []
    grades("9.2")(lambda answer, choose: drawn.append(choose.sample(range(10**9), 3)))
    first, second = check("9.2", 1), check("9.2", 1)
    assert first.seed != second.seed or drawn[0] == drawn[1], "one in 90,000 is equal, and then so are its cases"
    assert (
        f"Hidden cases: seed {first.seed} (INFLIGHT_SEED={first.seed}" in repr(first)
        and f"seed {first.seed}" in first._repr_html_()
    )
    monkeypatch.setenv("INFLIGHT_SEED", str(first.seed))
    assert check("9.2", 1).seed == first.seed and drawn[2] == drawn[0]


def test_no_seed_is_told_where_nothing_was_hidden():
    assert check("9.1", 11520).seed is None and "seed" not in repr(check("9.1", 11520))


# What is kept ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path, monkeypatch):
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    return folder


def test_a_right_answer_is_kept_as_a_part_and_a_wrong_one_is_not(work, tmp_path):
    grades("9.2", keeps="scheduler")(lambda answer, choose: None if "right" in answer.read_text() else "No.")
    answer = tmp_path / "scheduler.py"
    answer.write_text("wrong")
    check("9.2", answer)
    assert not (work / "mine").exists()
    answer.write_text("right")
    result = check("9.2", answer)
    assert result.status == "done" and "Kept as mine/scheduler.py" in repr(result)
    assert (work / "mine" / "scheduler.py").read_text() == "right"


def test_an_answer_stays_right_where_it_cannot_be_kept(work, tmp_path):
    (work / "mine").write_text("in the way")
    grades("9.2", keeps="scheduler")(lambda answer, choose: None)
    result = check("9.2", tmp_path / "nowhere.py")
    assert result.status == "done" and "not kept" in result.kept
