"""Checks a learner's answer, and gives a hint when it is not right yet: `check("1.4", "quantizer.py")`.

A check never stops a lab. With COURSE_STRICT=1 in the environment (how the solutions are built and tested) it raises.
How a grader is written: `graders`.
"""

from __future__ import annotations

import importlib
import os
import secrets
from dataclasses import replace
from pathlib import Path

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.checks import parts, record
from inflight.notebook.checks.answers import is_untouched, names_a_file
from inflight.notebook.checks.graders import graded, graders
from inflight.notebook.checks.isolated import graded_apart
from inflight.notebook.checks.verdict import DONE, OPEN, SEED, WRONG, Result
from inflight.notebook.pages import progress

MOST_KEPT = 300  # characters of a hint, in the learner's record


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
    _import_graders(exercise)
    if exercise not in graders:
        return Result(exercise, WRONG, "There is no such exercise.")
    grader, wanted = graders[exercise], os.environ.get(SEED, "")
    seed = None
    if grader.has_hidden_cases:
        seed = int(wanted) if wanted.isdecimal() else 10_000 + secrets.randbelow(90_000)
    if grader.within_s is None or not (grader.of_file or names_a_file(answer)):
        found = graded(grader.grade, answer, seed, say=progress.say)
    else:
        found = graded_apart(grader.grade, answer, seed, grader.within_s, grader.of_file)
    result = Result.of(exercise, found, grader.insight, seed)
    if grader.keeps and result.status == DONE:
        path = answer[0] if isinstance(answer, list | tuple) else answer
        return replace(result, kept=parts.keep(grader.keeps, Path(str(path)), exercise))
    return result


def _import_graders(exercise: str) -> None:
    """Import the graders of its lesson, which registers them: a lab does not load the graders of others."""
    for lesson in syllabus.read():
        if exercise in lesson.exercise_numbers:
            importlib.import_module(f"inflight.lessons.{lesson.topic}.grading")
