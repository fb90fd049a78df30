"""What a lab's check answers, and that it never stops a lab."""

import pytest

from inflight.errors import CourseError
from inflight.notebook import grading
from inflight.notebook.grading import NOT_YET, check, grades


@pytest.fixture(autouse=True)
def graders(monkeypatch):
    monkeypatch.setattr(grading, "_graders", {})
    monkeypatch.delenv("COURSE_STRICT", raising=False)

    @grades("9.1")
    def bytes_a_token(answer):
        if answer == 0:
            return NOT_YET
        return None if answer == 11520 else f"Count keys and values: {11520 // answer} times what you have."


@pytest.mark.parametrize("answer", [None, ..., [1, None], (2, ...), {"a": 1, "b": {"c": None}}, 0])
def test_an_untouched_answer_is_not_done_yet(answer):
    assert repr(check("9.1", answer)) == "Exercise 9.1: Not done yet."


def test_a_right_answer_is_done():
    assert repr(check("9.1", 11520)) == "Exercise 9.1: Done."


def test_a_wrong_answer_gets_the_hint():
    assert repr(check("9.1", 5760)) == "Exercise 9.1: Not right yet. Count keys and values: 2 times what you have."


def test_an_answer_of_another_type_does_not_stop_the_lab():
    result = check("9.1", "many")
    assert result.status == "wrong" and "TypeError" in result.hint


def test_an_unknown_exercise_names_those_there_are():
    assert check("9.7", 1).hint == "There is no such exercise; there are 9.1."


def test_what_is_shown_says_it_in_words_and_escapes_the_hint():
    grades("9.2")(lambda answer: "a <b> is not a token")
    shown = check("9.2", 1)._repr_html_()
    assert "Not right yet" in shown and "a &lt;b&gt; is not" in shown


@pytest.mark.parametrize("answer", [None, 5760])
def test_strict_raises_for_what_is_not_right(answer, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    with pytest.raises(CourseError, match=r"Exercise 9\.1: Not"):
        check("9.1", answer)
    assert check("9.1", 11520).status == "done"


def test_two_graders_for_one_exercise_are_refused():
    with pytest.raises(ValueError, match="9.1"):
        grades("9.1")(lambda answer: None)
