"""What a check does with an answer, whatever the exercise: find its grader, ask it, and say what it found."""

import html
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from inflight.errors import CourseError
from inflight.notebook import journal

NOT_YET = "not done yet"  # what a grader returns when it sees that the learner has not begun

# The module beside this one that holds a lesson's graders, by the number before the dot of its exercises.
_LESSONS = {
    "1": "engine",
    "2": "repository",
    "3": "serve",
    "4": "batching",
    "5": "kv_cache",
    "6": "batchers",
    "7": "iterative_gpt2",
}

_graders: dict[str, Callable] = {}  # of the lessons that are imported, by exercise

# Border colour and word: the word alone says it too, for those who do not see the colour.
_LOOK = {"done": ("#009E73", "Done"), NOT_YET: ("#999999", "Not done yet"), "wrong": ("#D55E00", "Not right yet")}


@dataclass(frozen=True)
class Result:
    """What `check` found: `status` is "done", "not done yet" or "wrong"; `hint` helps when it is wrong."""

    exercise: str
    status: str
    hint: str = ""

    def __repr__(self) -> str:
        return f"Exercise {self.exercise}: {_LOOK[self.status][1]}." + (f" {self.hint}" if self.hint else "")

    def _repr_html_(self) -> str:
        colour, word = _LOOK[self.status]
        style = f"border-left: 6px solid {colour}; padding: 4px 12px"
        hint = f"<br>{html.escape(self.hint)}" if self.hint else ""
        return f'<div style="{style}"><strong>Exercise {html.escape(self.exercise)}: {word}.</strong>{hint}</div>'


def grades(exercise: str) -> Callable[[Callable], Callable]:
    """Register the decorated `fn(answer) -> str | None` for `exercise`: a hint, NOT_YET, or None when it is right."""

    def register(grader: Callable) -> Callable:
        if exercise in _graders:
            raise ValueError(f"exercise {exercise} has two graders")
        _graders[exercise] = grader
        return grader

    return register


def check(exercise: str, answer: object) -> Result:
    """Grade `answer` and return what to show.

    An answer that is, or that holds, None or `...` counts as not begun.

    Raises
    ------
    CourseError
        Only with COURSE_STRICT=1: the answer is not right.
    """
    result = Result(exercise, NOT_YET) if untouched(answer) else _grade(exercise, answer)
    if result.status != NOT_YET:
        journal.note("exercise", exercise=exercise, status=result.status)
    if result.status != "done" and os.environ.get("COURSE_STRICT") == "1":
        raise CourseError(f"{result!r} Correct the answer in the lesson's lab.py, or the exercise's grader.")
    return result


def untouched(answer: object) -> bool:
    """Whether `answer` is None or `...`, or a list, tuple or dict that holds one of these."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return any(untouched(item) for item in answer)
    return answer is None or answer is ...


def _grade(exercise: str, answer: object) -> Result:
    lesson = str(exercise).partition(".")[0]
    if lesson in _LESSONS:
        _import_graders(lesson)
    if exercise not in _graders:
        for lesson in _LESSONS:
            _import_graders(lesson)
        known = ", ".join(sorted(_graders)) or "none"
        return Result(exercise, "wrong", f"There is no such exercise; there are {known}.")
    try:
        hint = _graders[exercise](answer)
    except Exception as error:  # an answer of any type may arrive, and a lab must go on
        hint = f"Your answer could not be checked: {type(error).__name__}: {error}."
    if hint is None:
        return Result(exercise, "done")
    return Result(exercise, NOT_YET) if hint == NOT_YET else Result(exercise, "wrong", hint)


def _import_graders(lesson: str) -> None:
    """Import the graders of one lesson, which registers them: no lab loads what another one is checked with."""
    importlib.import_module(f"{__package__}.{_LESSONS[lesson]}")
