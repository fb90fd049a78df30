"""Checks a learner's answer, and gives a hint when it is not right yet: `check("1.4", "quantizer.py")`.

A check never stops a lab. With COURSE_STRICT=1 in the environment (how the solutions are built and tested) it raises.

A grader says what is asked and what is counted. It stands in its lesson's `inflight/lessons/<topic>/grading.py`:

    @grades("4.1", "Better batching wins back at most the share of wasted slots.")
    def _wasted(wasted, choose):                          # a function from a cell: asked case by case
        return asked(wasted, [Case((log, 4), right=0.25, hint="How many slots were there?") for log in …])

    @grades("5.2", "A promise keeps everybody in their slot.", within_s=60)
    def _admission(path, choose):                         # a file: run in a process of its own, at most 60 s a part
        beside = simulate_scheduler.beside(path, trials, GuaranteedNoEvict(), {"pauses": "Promise for the longest."})
        return [beside.measured("pauses", exactly=0)]

It gets the answer as `answers.plain` gives it and, where it has hidden cases, a `random.Random`. What it returns is a
`Finding`: RIGHT, NOT_YET, Wrong("How to go on."), or figures with their budgets (`findings`); or a dict of these by
part, in which a part may be a function, so that what goes wrong in one does not hide what is right in another. What it,
or the learner's code, raises is the finding; NotImplementedError says that the learner has not begun.

Its tests are rows of a table, `tests/lessons/<topic>/test_lab.py`; `tests/lessons/answers.py` says how it is written.
"""

from __future__ import annotations

import importlib
import inspect
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from inflight.errors import CourseError
from inflight.notebook.checks import parts, record
from inflight.notebook.checks.answers import is_untouched, names_a_file
from inflight.notebook.checks.isolated import graded, graded_apart
from inflight.notebook.checks.verdict import DONE, OPEN, SEED, WRONG, Result
from inflight.notebook.pages import progress, syllabus

MOST_KEPT = 300  # characters of a hint, in the learner's record


@dataclass(frozen=True)
class Grader:
    """A grader as `grades` registers it."""

    grade: Callable
    insight: str
    keeps: str
    within_s: float | None
    of_file: bool = True

    @property
    def has_hidden_cases(self) -> bool:
        return len(inspect.signature(self.grade).parameters) == 2


graders: dict[str, Grader] = {}  # by exercise, for the lessons that are imported


def grades(
    exercise: str, insight: str = "", keeps: str = "", within_s: float | None = None, of_file: bool = True
) -> Callable[[Callable], Callable]:
    """Register the decorated function for `exercise`.

    Parameters
    ----------
    exercise : str
        As "4.1".
    insight : str
        One sentence, said after a right answer.
    keeps : str
        The part of the learner's own stack (`parts`) that a right answer is: the answer, or the first of several, is
        the path of its file or folder.
    within_s : float, optional
        The grader runs in a process of its own, which is ended where it, or a part, takes so long. The answer is what
        JSON can hold, or a server: of that the grader has a dict with `grpc_url`, `http_url` and `repo`.
    of_file : bool
        With `within_s`: the answer, or the first of several, is the path of the file that is run. If not, the answer
        may name files, as settings do, and one that names none is graded in this process.
    """

    def register(grade: Callable) -> Callable:
        graders[exercise] = Grader(grade, insight, keeps, within_s, of_file)
        return grade

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is None or `...`, or that holds nothing else, counts as not begun. $INFLIGHT_SEED repeats the hidden
    cases of an earlier check.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    with progress.wait(f"Exercise {exercise} is checked"):
        result = Result(exercise, OPEN) if is_untouched(answer) else _result(exercise, answer)
    if result.status != OPEN:
        shown = [
            {"what": figure.what, "value": figure.value, "course": figure.course, "nothing": figure.nothing}
            for figure in result.figures
        ]
        what = {"status": result.status, "seed": result.seed, "said": result.hint[:MOST_KEPT]}
        record.note("exercise", exercise=exercise, figures=shown, **what)
    if result.status != DONE and os.environ.get("COURSE_STRICT") == "1":
        raise CourseError(f"{result!r} Correct the answer in the lesson's lab.py, or the exercise's grader.")
    return result


def _result(exercise: str, answer: object) -> Result:
    _import_graders(exercise.partition(".")[0])
    if exercise not in graders:
        return Result(exercise, WRONG, "There is no such exercise.")
    grader, wanted = graders[exercise], os.environ.get(SEED, "")
    seed = None
    if grader.has_hidden_cases:
        seed = int(wanted) if wanted.isdecimal() else 10_000 + secrets.randbelow(90_000)
    if grader.within_s is None or not (grader.of_file or names_a_file(answer)):
        found = graded(grader.grade, answer, seed)
    else:
        found = graded_apart(grader.grade, answer, seed, grader.within_s, grader.of_file)
    result = Result.of(exercise, found, grader.insight, seed)
    if grader.keeps and result.status == DONE:
        path = answer[0] if isinstance(answer, list | tuple) else answer
        return replace(result, kept=parts.keep(grader.keeps, Path(str(path)), exercise))
    return result


# Graders of a lesson --------------------------------------------------------------------------------------------------


def _lessons() -> dict[str, str]:
    """Return the folder in `inflight/lessons` of each lesson, by the number before the dot of its exercises."""
    return {str(int(lesson.number)): lesson.topic for lesson in syllabus.read()}


def _import_graders(lesson: str) -> None:
    """Import the graders of one lesson, which registers them: a lab does not load the graders of others."""
    folder = f"inflight.lessons.{_lessons().get(lesson)}"
    if find_spec(folder) and find_spec(f"{folder}.grading"):
        importlib.import_module(f"{folder}.grading")
