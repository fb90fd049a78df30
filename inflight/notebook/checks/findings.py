"""The findings of a grader about an answer or a part of it: right, not begun, wrong because of something, or measured.

RIGHT, NOT_YET, Wrong("Count keys, not users."), Measured("pauses", 3, exactly=0)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.notebook.checks import answers

DIGITS = 3  # of a figure, as it is shown
MOST_SAID = 600  # characters of a hint


@dataclass(frozen=True)
class Right:
    """The answer is right."""


@dataclass(frozen=True)
class NotYet:
    """The learner has not begun."""


@dataclass(frozen=True)
class Wrong:
    """The answer is wrong; `because` helps the learner to go on."""

    because: str

    def __post_init__(self):
        if len(self.because) > MOST_SAID:
            object.__setattr__(self, "because", f"{self.because[: MOST_SAID - 2]} …")


RIGHT, NOT_YET = Right(), NotYet()


@dataclass(frozen=True)
class Measured:
    """A figure that an answer reached, and its budget.

    Right or wrong rests on counts and equality: what has a budget is counted, never timed. A figure without a budget,
    such as a speed, is shown and judges nothing.

    Parameters
    ----------
    what : str
        The name of the figure, as "iterations"; the number follows it in a sentence.
    value : float
    at_most, at_least, exactly : float, optional
        The budget, one of these or none.
    course, nothing : float, optional
        The figures of the course's own answer on the same cases, and of doing nothing.
    course_is, nothing_is : str
        What these two are in truth, as "max_utilization": the names of their columns.
    unit : str
        Follows each number.
    advice : str
        A hint for when the budget is not kept.
    """

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    exactly: float | None = None
    course: float | None = None
    nothing: float | None = None
    course_is: str = "the course's"
    nothing_is: str = "doing nothing"
    unit: str = ""
    advice: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the budget is kept, with an exact number compared as in `is_same`; true without a budget."""
        if self.at_most is not None:
            return -math.inf < self.value <= self.at_most
        if self.at_least is not None:
            return math.inf > self.value >= self.at_least
        return self.exactly is None or is_same(self.value, self.exactly)

    @property
    def budget(self) -> str:
        """The budget in words, blank without one."""
        limits = (("at most", self.at_most), ("at least", self.at_least), ("exactly", self.exactly))
        return next((f"{words} {self.number(limit)}" for words, limit in limits if limit is not None), "")

    @property
    def hint(self) -> str:
        """The figure against its budget, and the advice."""
        wanted = f", where {self.budget} is wanted" if self.budget else ""
        return f"{self.what}: {self.number(self.value)}{wanted}. {self.advice}".rstrip()

    def number(self, value: float | None) -> str:
        """A figure of this kind, with the digits that tell it from its budget; blank where there is none."""
        if value is None:
            return ""
        limit = next((each for each in (self.at_most, self.at_least, self.exactly) if each is not None), None)
        digits = DIGITS
        if limit is not None and not self.is_right:
            digits = next((d for d in range(DIGITS, 9) if _shown(self.value, d) != _shown(limit, d)), DIGITS)
        return f"{_shown(value, digits)} {self.unit}".rstrip()


def _shown(value: float, digits: int = DIGITS) -> str:
    if not math.isfinite(value):
        return "none"
    is_whole = float(value).is_integer() or (abs(value) >= 10**digits)
    return f"{value:,.0f}" if is_whole else f"{value:.{digits}g}"


Finding = Right | NotYet | Wrong | Measured | list[Measured]


def because(problem: str | None) -> Right | Wrong:
    """Return RIGHT where there is no problem."""
    return Wrong(problem) if problem else RIGHT


def figures(finding: Finding) -> list[Measured]:
    return [finding] if isinstance(finding, Measured) else finding if isinstance(finding, list) else []


def judged(finding: Finding) -> Right | NotYet | Wrong:
    """Return the finding, with figures judged by their budgets: the first that is not kept is the reason."""
    if isinstance(finding, Right | NotYet | Wrong):
        return finding
    return because(next((figure.hint for figure in figures(finding) if not figure.is_right), None))


@dataclass(frozen=True)
class Compared:
    """The counts of an answer on some cases, with those of the course's own answer and of doing nothing.

    Parameters
    ----------
    own, course, nothing : object
        Of one kind, with a number for each count.
    advice : mapping of str to str
        By count, a hint for when its budget is not kept.
    nothing_is : str
        As in `Measured`.
    """

    own: Any
    course: Any
    nothing: Any
    advice: Mapping[str, str] = field(default_factory=dict)
    nothing_is: str = "doing nothing"

    def measured(self, count: str, what: str = "", **budget) -> Measured:
        """Make the figure of attribute `count` of all three, with the name `what`; `budget` as in `Measured`."""
        own, course, nothing = (getattr(one, count) for one in (self.own, self.course, self.nothing))
        budget.setdefault("advice", self.advice.get(count, ""))
        return Measured(what or count, own, course=course, nothing=nothing, nothing_is=self.nothing_is, **budget)


# A function that is asked ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """The arguments of a learner's function, and the result that it should return.

    Parameters
    ----------
    given : tuple
        Its arguments.
    right : object
        As `answers.plain` has it. A float is right as a page shows it: see `is_same`.
    hint : str, or callable from what was returned to str
        A hint for any other result; `told` makes one that knows common wrong ideas.
    about : str
        The result that is asked for, where the call alone does not say it.
    """

    given: tuple
    right: Any
    hint: str | Callable[[Any], str] = ""
    about: str = ""


def told(otherwise: str, *ideas: tuple[Any, str]) -> Callable[[Any], str]:
    """Make the hint of a case: the words of the first wrong idea that gives what was returned, else `otherwise`."""
    return lambda got: next((words for value, words in ideas if is_same(got, value)), otherwise)


def is_same(got: object, right: object) -> bool:
    """Say whether `got` counts as `right`: equal or, for a float, within two decimals or half a per cent.

    In a dict this holds for each value of `right`.
    """
    if isinstance(right, dict) and isinstance(got, dict):
        return all(is_same(got.get(name), value) for name, value in right.items())
    if isinstance(right, float) and isinstance(got, int | float) and not isinstance(got, bool):
        return math.isclose(got, right, rel_tol=0.005, abs_tol=0.0051)
    return got == right and isinstance(got, bool) == isinstance(right, bool)


def asked(function: Callable, cases: Iterable[Case]) -> Right | NotYet | Wrong:
    """Ask a learner's function each case: Wrong of the first that it gets wrong, NOT_YET if it gives None for all."""
    wrong, has_answered = None, False
    for case in cases:
        got = function(*copy.deepcopy(case.given))
        has_answered = has_answered or got is not None
        if wrong is None and not is_same(got, case.right):
            wrong = _told_of(function, case, got)
        if wrong and has_answered:
            return wrong
    return NOT_YET if wrong else RIGHT


def _told_of(function: Callable, case: Case, got: object) -> Wrong:
    hint = case.hint if isinstance(case.hint, str) else "" if got is None else case.hint(got)
    about = case.about or answers.call(function, *case.given)
    if isinstance(got, int | float) and isinstance(case.right, int | float):
        return Wrong(Measured(about, got, exactly=case.right, advice=hint).hint)
    return Wrong(f"{about}: {answers.brief(got)}, where {answers.brief(case.right)} is wanted. {hint}".rstrip())
