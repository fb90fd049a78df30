"""What a grader finds of an answer, or of a part of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

NOT_YET = "not done yet"  # what a grader returns when it sees that the learner has not begun


@dataclass(frozen=True)
class Measured:
    """A figure that an answer reached, beside what it should reach.

    Right or wrong rests on counts and equality: what has a budget is counted, never timed. A figure without a budget,
    such as a speed, is shown and judges nothing.

    Parameters
    ----------
    what : str
        What was measured, as "iterations"; it follows the number in a sentence.
    value : float
    at_most, at_least, exactly : float, optional
        The budget, one of these or none.
    course : float, optional
        What the course's own answer reaches on the same cases.
    nothing : float, optional
        What doing nothing reaches.
    unit : str
        Follows each number.
    advice : str
        Which way to go when the budget is not kept.
    """

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    exactly: float | None = None
    course: float | None = None
    nothing: float | None = None
    unit: str = ""
    advice: str = ""

    def __post_init__(self):
        if sum(limit is not None for limit in (self.at_most, self.at_least, self.exactly)) > 1:
            raise ValueError(f"{self.what} has more than one budget")

    @property
    def is_right(self) -> bool:
        """Whether the budget is kept; true without one."""
        if not math.isfinite(self.value):
            return False
        if self.at_most is not None:
            return self.value <= self.at_most
        if self.at_least is not None:
            return self.value >= self.at_least
        return self.exactly is None or math.isclose(self.value, self.exactly, rel_tol=1e-9)

    @property
    def budget(self) -> str:
        """The budget in words, blank without one."""
        for words, limit in (("at most", self.at_most), ("at least", self.at_least), ("exactly", self.exactly)):
            if limit is not None:
                return f"{words} {self.number(limit)}"
        return ""

    @property
    def hint(self) -> str:
        """Measured against budget, and which way to go."""
        wanted = f", where {self.budget} is wanted" if self.budget else ""
        return f"{self.what}: {self.number(self.value)}{wanted}. {self.advice}".rstrip()

    def number(self, value: float | None) -> str:
        """A figure of this kind as it is shown; blank where there is none."""
        if value is None:
            return ""
        if not math.isfinite(value):
            return "none"
        shown = f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:.3g}"
        return f"{shown} {self.unit}".rstrip()


@dataclass(frozen=True)
class Beside:
    """What an answer came to on some cases, beside what the course's own and doing nothing come to on the same.

    Parameters
    ----------
    own, course, nothing : object
        Of one kind, with a number for each count.
    """

    own: Any
    course: Any
    nothing: Any

    def measured(self, what: str, count: str, **budget) -> Measured:
        """The figure that is the attribute `count` of all three; `budget` and advice as `Measured` takes them."""
        own, course, nothing = (getattr(one, count) for one in (self.own, self.course, self.nothing))
        return Measured(what, own, course=course, nothing=nothing, **budget)


# Of an answer, or of a part of it: None when it is right, NOT_YET, a hint, or what was measured.
Finding = str | Measured | list[Measured] | None


def measured(finding: Finding) -> list[Measured]:
    """The figures in a finding."""
    if isinstance(finding, Measured):
        return [finding]
    return list(finding) if isinstance(finding, list) else []


def hint(finding: Finding) -> str | None:
    """What is to be said of a finding: None where it is right, NOT_YET, or how to go on."""
    if finding is None or isinstance(finding, str):
        return finding
    return next((figure.hint for figure in measured(finding) if not figure.is_right), None)
