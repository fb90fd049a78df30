"""What a grader is, and how it is asked; with the standard library alone, so that it is asked in a browser, too.

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

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from inflight.notebook.checks.answers import plain, what_failed
from inflight.notebook.checks.findings import NOT_YET, Finding, Measured, NotYet, Right, Wrong, figures


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


def graded(
    grade: Callable, answer: object, seed: int | None, path: str = "", say: Callable[[str], None] = lambda part: None
) -> dict[str, Finding]:
    """Return a grader's finding for each part of an answer; "" stands for the whole.

    Parameters
    ----------
    seed : int or None
        Of the hidden cases, where the grader has any.
    path : str
        The learner's file, where the answer is one: a problem is told with its line.
    say : callable
        Is told each part before it is graded.
    """
    found = {}
    for part, given in parts_of(grade, answer, seed, path).items():
        say(part)
        found[part] = found_by(given, path)
    return found


def parts_of(grade: Callable, answer: object, seed: int | None, path: str) -> dict[str, Any]:
    """Return for each part the grader's finding, or a function that finds it."""
    hidden = [] if seed is None else [random.Random(seed)]
    found = found_by(lambda: grade(plain(answer), *hidden), path, or_parts=True)
    return found if isinstance(found, dict) else {"": found}


def found_by(given: Any, path: str, or_parts: bool = False) -> Any:
    """Return a function's finding, or its error as one: an answer of any type may arrive, and a lab must go on.

    With `or_parts` it may be a dict of parts.
    """
    try:
        found = given() if callable(given) else given
        is_measured = bool(figures(found)) and all(isinstance(each, Measured) for each in figures(found))
        if not (is_measured or isinstance(found, Right | NotYet | Wrong) or (or_parts and isinstance(found, dict))):
            raise ValueError(f"the grader gave {found!r}, which is no finding")
        return found
    except NotImplementedError:
        return NOT_YET
    except (Exception, SystemExit) as error:
        return Wrong(what_failed(error, path))
