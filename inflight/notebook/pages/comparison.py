"""Compares two things measured in the same rounds: more, less, or not told apart, with a 95 % interval.

told = told_apart(streamed_s, whole_s)         # one number a round; both took turns in each round
print(f"Streamed against whole: {told}.")   # less: 0.93 times (0.91 to 0.95 with 95 % confidence, 5 rounds)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.bench.turns import interval
from inflight.errors import CourseError

NOT_TOLD_APART = "not told apart"


@dataclass(frozen=True)
class Comparison:
    """The result of `told_apart`.

    Attributes
    ----------
    word : str
        "more", "less" (or what the caller says for them), or "not told apart".
    ratio : float
        Geometric mean of the rounds' ratios.
    low, high : float
        Its 95 % confidence interval.
    rounds : int
    """

    word: str
    ratio: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        reach = self.high / self.low - 1
        digits = max(2, 1 - math.floor(math.log10(reach))) if reach else 3  # as many as the interval can tell
        ratio, low, high = (f"{number:#.{digits}g}".rstrip(".") for number in (self.ratio, self.low, self.high))
        return f"{self.word}: {ratio} times ({low} to {high} with 95 % confidence, {self.rounds} rounds)"


def told_apart(a: Sequence[float], b: Sequence[float], more: str = "more", less: str = "less") -> Comparison:
    """Compare `a` with `b`, measured in rounds: `more` or `less` only where the rounds show it.

    The statistic is the geometric mean of the ratios a/b of the rounds, with its 95 % confidence interval (Student's t,
    of the ratios' logarithms). If the interval contains 1, the two are not told apart: equal things are told apart
    about once in twenty times.

    Parameters
    ----------
    a, b : sequence of float
        Above zero, the same number of each; at least three.
    more, less : str
        The words for a/b above and below 1, such as "later" and "earlier".

    Raises
    ------
    CourseError
        Fewer than three rounds, not as many of each, or a number that is not above zero.
    """
    if not len(a) == len(b) >= 3:
        raise CourseError(f"{len(a)} and {len(b)} repeats: measure both in the same rounds, at least three.")
    if min(*a, *b) <= 0:
        raise CourseError(f"A repeat measured {min(*a, *b)}: ratios need numbers above zero.")
    middle, low, high = interval([math.log(one / other) for one, other in zip(a, b)])
    word = more if low > 0 else less if high < 0 else NOT_TOLD_APART
    return Comparison(word, math.exp(middle), math.exp(low), math.exp(high), len(a))
