"""What a lab's check answers, and that it never stops a lab."""

import json
import subprocess
import sys

import pytest

from inflight.errors import CourseError
from inflight.notebook.grading import NOT_YET, check, checker, grades


@pytest.fixture(autouse=True)
def graders(monkeypatch):
    monkeypatch.setattr(checker, "_graders", {})
    monkeypatch.setattr(checker, "_LESSONS", {})
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


@pytest.fixture
def course():
    """What a Python of its own finds after the check of one exercise, and what it says of one that there is not."""
    script = """
import json, sys
from inflight.notebook import check
status = check("4.2", lambda log, seats: None).status
modules = [name.rpartition(".")[2] for name in sys.modules if name.startswith("inflight.notebook.grading.")]
print(json.dumps([status, sorted(modules), check("8.1", 1).hint]))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_check_imports_the_graders_of_its_lesson_and_no_others(course):
    status, modules, _ = course
    assert status == NOT_YET and modules == ["batching", "checker"]


def test_an_unknown_exercise_names_those_of_all_lessons(course):
    known = course[2].partition("there are ")[2].rstrip(".").split(", ")
    assert known == [f"{lesson}.{number}" for lesson in range(1, 8) for number in range(1, 4 + (lesson == 6))]
