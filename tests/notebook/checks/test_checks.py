"""What a lab's check answers, and that it never stops a lab."""

import fcntl
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from functools import partial
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.checks import answers, check, checking, grades
from inflight.notebook.checks.answers import load, plain
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Measured, Wrong, asked, is_same, told
from inflight.notebook.checks.graders import Grader, graders
from inflight.notebook.pages import workspace


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """No graders but those of the test; checks report and do not raise."""
    monkeypatch.setattr(checking, "_import_graders", lambda exercise: None)
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    with patch.dict(graders, clear=True):
        yield


def checked(answer, grade, **how):
    """What the check of an exercise says that is graded so."""
    grades("9.2", **how)(grade)
    return check("9.2", answer)


def test_an_untouched_answer_is_not_done_yet_and_a_none_inside_of_one_is_an_answer():
    grade = lambda answer: RIGHT if answer == {"a": None, "b": 1} else Wrong("No.")
    assert checked({"a": None, "b": 1}, grade).status == "done"
    for untouched in (None, ..., [None, None], (None, ...), {"a": None, "b": {"c": None}}):
        assert repr(checked(untouched, grade)) == "Exercise 9.2: Not done yet."


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (RIGHT, "Done. That is the insight."),
        (Wrong("Count keys."), "Not right yet. Count keys."),
        (Wrong("No. " * 1000), "Not right yet. " + "No. " * 149 + "No …"),
        (
            None,
            "Not right yet. Your answer could not be checked: ValueError: the grader gave None, which is no finding.",
        ),
        ([], "Not right yet. Your answer could not be checked: ValueError: the grader gave [], which is no finding."),
        ([Measured("tokens", 9), Wrong("No.")], "Not right yet. Your answer could not be checked: ValueError: the gra"),
        ({"a": RIGHT, "b": {"inner": Wrong("No.")}}, "Partly right: a ✓, b not right yet. Your answer could not be ch"),
        (NOT_YET, "Not done yet."),
        (CourseError("There is no engine."), "Not right yet. There is no engine."),
        (NotImplementedError(), "Not done yet."),
        (
            TypeError("no number"),
            "Not right yet. Your answer does not fit what the exercise asks for (TypeError: no numb",
        ),
        (SystemExit(), "Not right yet. Your answer could not be checked: SystemExit."),
        (
            {"a": RIGHT, "b": Wrong("Count b."), "c": NOT_YET},
            "Partly right: a ✓, b not right yet, c still open. Count b.",
        ),
        (
            {"a": RIGHT, "b": lambda: 1 / 0},
            "Partly right: a ✓, b not right yet. Your answer could not be checked: Zero",
        ),
        ({"a": Wrong("Both."), "b": Wrong("Both.")}, "Not right yet. Both."),
        ({"a": Wrong("Count a."), "b": Wrong("Count b.")}, "Not right yet. Count a."),
    ],
)
def test_what_is_found_is_said_and_strict_raises_what_is_not_right(found, said, monkeypatch):
    def grade(answer):
        if isinstance(found, BaseException):
            raise found
        return found

    result = checked(1, grade, insight="That is the insight.")
    assert repr(result).startswith(f"Exercise 9.2: {said}")
    assert result.seed is None and "seed" not in repr(result), "nothing was hidden"
    monkeypatch.setenv("COURSE_STRICT", "1")
    if found is not RIGHT:
        with pytest.raises(CourseError, match=r"Exercise 9\.2: (Not|Partly)"):
            check("9.2", 1)
    else:
        assert check("9.2", 1) == result


def test_an_error_in_a_function_says_for_what_it_came_and_in_which_line():
    def felt(times_s, table):
        return 1 / (len(times_s) - 1)

    said = checked(felt, lambda answer: answer([0.4], pd.DataFrame({"a": [1, 2]}))).hint
    assert said.endswith(
        "ZeroDivisionError: division by zero. That was for felt([0.4], a table of 2 rows), in the line "
        "`return 1 / (len(times_s) - 1)`."
    )


@pytest.mark.parametrize(
    ("answer", "same"),
    [
        (np.int64(5), 5),
        (5.0, 5),
        (Fraction(1, 4), 0.25),
        (Decimal("12"), 12),
        ([Fraction(6, 2), Decimal("0.5")], [3, 0.5]),
        (np.array([1, 2.5]), [1, 2.5]),
        ((1, None, ...), [1, None, None]),
        (range(3), [0, 1, 2]),
        (pd.Series([1, np.nan]), [1, None]),
        (pd.Series({"a": 1.0, "b": pd.NA}), {"a": 1, "b": None}),
        ({"itl_ms": float("nan"), "n": np.float32(0.5)}, {"itl_ms": None, "n": 0.5}),
        ("text", "text"),
        (True, True),
    ],
)
def test_an_honest_answer_of_another_form_counts_as_what_it_is(answer, same):
    assert plain(answer) == same and plain(lambda: answer)() == same
    assert plain(each for each in (1, 2)) == plain(map(int, "12")) == [1, 2]


def test_what_is_shown_says_it_in_words_and_escapes_the_hint():
    shown = checked(1, lambda answer: Wrong("a <b> is not a token"))._repr_html_()
    assert "Not right yet" in shown and "a &lt;b&gt; is not" in shown
    assert check("9.7", 1).hint == "There is no such exercise."


def test_a_check_imports_the_graders_of_its_lesson_and_no_others():
    script = """
import sys
from inflight.notebook import check
print(check("4.1", lambda computed: None).status)
print(*[name for name in sys.modules if name.startswith("inflight.lessons.") and name.endswith(".grading")])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout.splitlines()[-2:] == ["not done yet", "inflight.lessons.batching.grading"], ran.stderr


def test_every_check_of_a_lab_has_a_grader_with_an_insight():
    script = """
import sys
from inflight import syllabus
from inflight.notebook.checks import checking
from inflight.notebook.checks.graders import graders
for lesson in syllabus.read():
    for exercise in lesson.exercise_numbers:
        checking._import_graders(exercise)
for exercise, grader in graders.items():
    print(exercise, grader.insight)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    insights = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
    assert set(insights) == {number for lesson in syllabus.read() for number in lesson.exercise_numbers}
    for exercise, insight in insights.items():
        assert insight.endswith(".") and insight.count(". ") < 2 and len(insight.split()) > 6, exercise


# A function, asked ----------------------------------------------------------------------------------------------------

CASES = [
    Case(([1, 2],), 1.5, told("Add them up, and divide by how many there are.", (3, "Divide the sum."))),
    Case(([4],), 4, lambda got: f"One number is its own mean, not {got}.", "mean of one"),
]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda numbers: sum(numbers) / len(numbers), "Done."),
        (lambda numbers: None, "Not done yet."),
        (
            lambda numbers: 1.5 if numbers == [1, 2] else None,
            "Not right yet. mean of one: None, where 4 is wanted.",
        ),
        (
            lambda numbers: None if numbers == [1, 2] else 4,
            "Not right yet. your function([1, 2]): None, where 1.5 is wan",
        ),
        (lambda numbers: "many " * 999, "Not right yet. your function([1, 2]): 'many many"),
        (sum, "Not right yet. sum([1, 2]): 3, where exactly 1.5 is wanted. Divide the sum."),
        (max, "Not right yet. max([1, 2]): 2, where exactly 1.5 is wanted. Add them up, and divide by how many"),
        (
            lambda numbers: numbers.pop() and 1.5,
            "Not right yet. mean of one: 1.5, where exactly 4 is wanted. One number",
        ),
        (lambda numbers: "many", "Not right yet. your function([1, 2]): 'many', where 1.5 is wanted. Add them up"),
    ],
)
def test_a_function_is_told_of_the_first_case_that_it_gets_wrong(answer, said):
    assert repr(checked(answer, lambda answer: asked(answer, CASES))).startswith(f"Exercise 9.2: {said}")


def test_a_float_is_right_as_far_as_it_is_shown_and_a_count_is_not():
    assert is_same(0.35, 0.3472) and is_same(2.21, 2.2084) and is_same(300, 300.4)
    assert not (is_same(0.36, 0.3472) or is_same(None, 0.0) or is_same("many", 1.0))
    assert not (is_same(1001, 1000) or is_same(True, 1) or is_same(True, 1.0) or is_same(1.0001, 1))


# What is measured -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "right", "says"),
    [
        ({"at_most": 110}, 118, False, "iterations: 118, where at most 110 is wanted. Begin sooner."),
        ({"at_most": 110}, 110, True, "wanted at most 110"),
        ({"at_least": 3}, 2.5, False, "iterations: 2.5, where at least 3 is wanted. Begin sooner."),
        ({"exactly": 7}, 7, True, "wanted exactly 7"),
        ({"exactly": 7}, 8, False, "iterations: 8, where exactly 7 is wanted. Begin sooner."),
        ({"exactly": 2.2079}, 2.2084, True, "wanted exactly 2.21"),
        ({"exactly": 1000}, 1001, False, "iterations: 1,001, where exactly 1,000 is wanted."),
        ({"at_most": 170}, 170.04, False, "iterations: 170.04, where at most 170 is wanted."),
        ({"at_most": 1e9}, float("nan"), False, "iterations: none, where at most 1,000,000,000 is wanted."),
        ({"at_least": 3}, float("inf"), False, "iterations: none, where at least 3 is wanted."),
        ({}, 0.97, True, "yours 0.97"),
        ({}, float("nan"), True, "yours none"),
    ],
)
def test_a_budget_decides_and_is_told(limit, value, right, says):
    figure = Measured("iterations", value, advice="Begin sooner.", course=104, nothing=240, **limit)
    result = checked(1, lambda answer: {"the trace": [Measured("tokens", 9, at_most=10), figure]})
    assert (result.status == "done") == right and says in repr(result)
    assert "the course's 104; doing nothing 240" in repr(result)
    assert "<td>104</td><td>240</td>" in "".join(result._repr_html_().split()) and result.figures[1] == figure


def test_a_column_is_named_after_what_it_compares_with():
    first = Measured("iterations", 118, course=104, nothing=240, nothing_is="one at a time")
    second = Measured("in time", 9, course=8, course_is="a limit of 6", nothing=7, nothing_is="no limit")
    result = checked(1, lambda answer: [first, second])
    assert "iterations: yours 118; the course's 104; one at a time 240\n" in repr(result)
    assert "in time: yours 9; a limit of 6 8; no limit 7" in repr(result)
    table = "".join(result._repr_html_().split())
    names = ("yours", "thecourse&#x27;s", "oneatatime", "alimitof6", "nolimit")
    assert "".join(f"<thscope=col>{name}</th>" for name in names) in table
    assert "<td>118</td><td>104</td><td>240</td><td></td><td></td>" in table


def test_hidden_cases_are_fresh_and_can_be_repeated(monkeypatch):
    drawn = []
    grades("9.2")(lambda answer, choose: drawn.append(choose.sample(range(10**9), 3)) or RIGHT)
    first, second = check("9.2", 1), check("9.2", 1)
    assert first.seed != second.seed or drawn[0] == drawn[1], "one in 90,000 is equal, and then so are its cases"
    assert f"Hidden cases: seed {first.seed} (INFLIGHT_SEED={first.seed}" in repr(first)
    assert f"seed {first.seed}" in first._repr_html_()
    monkeypatch.setenv("INFLIGHT_SEED", str(first.seed))
    assert check("9.2", 1).seed == first.seed and drawn[2] == drawn[0]


# A file, in a process of its own --------------------------------------------------------------------------------------


WITHIN_S = 10


@grades("0.1", within_s=WITHIN_S)
def graded_apart(path):
    given = load(path, "first", "second")
    return {"first": given.first, "second": given.second, "third": lambda: RIGHT}


FIRST = "from inflight.notebook.checks.findings import RIGHT\ndef first(): return RIGHT\n\n"


@pytest.mark.parametrize(
    ("text", "parts", "says"),
    [
        (FIRST + "second = first", "✓✓✓", "Done."),
        (FIRST + "def second():\n    return 1 / 0", "✓×✓", "answer.py, line 5: ZeroDivisionError: division by zero."),
        (FIRST + "def second():\n    while True: pass", "✓×-", "answer.py, line 5: it had not ended after 10 s"),
        (
            FIRST + "from inflight.engine.own.part import OwnPart\n\nclass Part:\n    def work(self): ...\n\n"
            "def second():\n    OwnPart(__file__, 'Part', 'work', 'self')\n    while True: pass",
            "✓×-",
            "it had not ended after 10 s",
        ),
        (FIRST + "import os\ndef second():\n    os._exit(3)", "✓×-", "answer.py ended its process (exit status 3)."),
        (
            FIRST + "import os\ndef second():\n    print('Timeout (0:00:10)!', flush=True)\n    os._exit(3)",
            "✓×-",
            "answer.py ended its process (exit status 3). Timeout (0:00:10)!",
        ),
        (FIRST + "def second():\n    return 'a' * (1 << 35)", "✓×✓", "answer.py, line 5: MemoryError."),
        (
            FIRST + "def second():\n    while True: print('a' * (1 << 24))",
            "✓×✓",
            "answer.py, line 5: OSError: [Errno 27]",
        ),
        (
            FIRST + "import queue, threading\n\ndef heard(result): ...\n\ndef second():\n"
            "    threading.Thread(target=heard, kwargs={'error': 1}).start()\n    queue.Queue().get()",
            "✓×-",
            "answer.py does not fit what the exercise asks for (TypeError: heard() got an unexpected keyword argument",
        ),
        (FIRST, "", "answer.py: it defines no second."),
        ("def first(", "", "answer.py, line 1: SyntaxError: '(' was never closed."),
    ],
)
def test_a_file_that_fails_is_told_where_and_what_was_right_before_stays(text, parts, says, tmp_path, monkeypatch):
    monkeypatch.setitem(graders, "0.1", Grader(graded_apart, "", "", WITHIN_S))
    path = tmp_path / "answer.py"
    path.write_text(text)
    result = check("0.1", path)
    shown = {"done": "✓", "wrong": "×", "not done yet": "-"}
    assert says in repr(result), result
    assert parts == "".join(shown[status] for status in result.parts.values()), result


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("class Scheduler:\n    pass\n", "Your answer is a text of several lines: give the path of the file"),
        ("x" * 5000, "There is no file 'xxx"),
        ("nowhere.py", "There is no file 'nowhere.py': run the cell that writes it, and give its path."),
        ("null\0.py", "There is no file 'null"),
        ([], "Your answer is []: give the path of your file, which its cell writes."),
        ([[1, 2], 3], "Your answer is [1, 2]: give the path of your file"),
        (print, "give the path of your file"),
    ],
)
def test_an_answer_that_is_no_path_is_told_to_be_one(answer, says, monkeypatch):
    monkeypatch.setitem(graders, "0.1", Grader(graded_apart, "", "", WITHIN_S))
    assert repr(check("0.1", answer)).startswith("Exercise 0.1: Not right yet. ") and says in check("0.1", answer).hint


def test_what_a_file_has_started_ends_with_its_check(tmp_path, monkeypatch):
    monkeypatch.setitem(graders, "0.1", Grader(graded_apart, "", "", WITHIN_S))
    path, held = tmp_path / "answer.py", tmp_path / "held"
    path.write_text(
        f"{FIRST}import fcntl, subprocess\ndef second():\n"
        f"    held = open({str(held)!r}, 'w')\n    fcntl.flock(held, fcntl.LOCK_EX)\n"
        "    subprocess.Popen(['sleep', '600'], pass_fds=[held.fileno()])\n    return RIGHT"
    )
    assert check("0.1", path).status == "done"
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for as long as anybody lives who holds it


# A function, in this process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["while True: pass", "while True:\n        try: x += 1\n        except Exception: pass"]
)
def test_a_function_that_does_not_end_is_ended_and_told_so_and_is_not_called_for_other_parts(body, monkeypatch):
    monkeypatch.setattr(answers, "LONGEST_CALL_S", 0.5)
    space = {"called": []}
    exec(f"def forever(x):\n    called.append(x)\n    {body}", space)
    parts = lambda answer: {str(x): partial(asked, answer, [Case((x,), 1)]) for x in (3, 4)}
    said = repr(checked(space["forever"], parts))
    late = "forever(3) had not ended after 0.5 s. Is there a loop that does not end?"
    assert said == f"Exercise 9.2: Not right yet. {late}" and space["called"] == [3]


# What is kept ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path, monkeypatch):
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    return folder


def test_a_right_answer_is_kept_as_a_part_and_a_wrong_one_is_not(work, tmp_path):
    grade = lambda answer: RIGHT if "right" in answer.read_text() else Wrong("No.")
    answer = tmp_path / "scheduler.py"
    answer.write_text("wrong")
    checked(answer, grade, keeps="scheduler")
    assert not (work / "mine").exists()
    answer.write_text("right")
    result = checked(answer, grade, keeps="scheduler")
    assert result.status == "done" and "Kept as mine/scheduler.py" in repr(result)
    assert (work / "mine" / "scheduler.py").read_text() == "right"


def test_an_answer_stays_right_where_it_cannot_be_kept(work, tmp_path):
    (work / "mine").write_text("in the way")
    result = checked(tmp_path / "nowhere.py", lambda answer: RIGHT, keeps="scheduler")
    assert result.status == "done" and "not kept" in result.kept
