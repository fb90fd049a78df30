"""Plays a rule of acceptance, and counts what it brings: the standard library suffices, as in a browser.

broken_by([3, 5], draft=[3, 4], end=0)                   # "": one guess was right, and the model replaced the other
seen = Played(accept, p, q, end=0, choose=random.Random(7))
seen.kept(0)                                             # each first guess: how often made, how often it came, wanted
columns([7, 8, 9, 7, 8], propose, k=2)                   # drafts accepted and thrown away, a pair an iteration
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence


def broken_by(came: Sequence[int], draft: Sequence[int], end: int) -> str:
    """Say what is wrong with the tokens of one iteration; blank if nothing is.

    Parameters
    ----------
    came : sequence of int
        What the rule brought.
    draft : sequence of int
        The guesses that it was given.
    end : int
        The token that ends an answer.
    """
    came, draft = list(came), list(draft)
    if not came:
        return "No token came: an iteration brings at least one, a replacement if the first guess is thrown away."
    if len(came) > len(draft) + 1:
        return "That is more tokens than rows: each row gives one."
    if any(token != guess for token, guess in zip(came[:-1], draft)):
        return (
            "It goes on behind a token that is not the guess: the later rows were computed for a text that the answer "
            "does not have."
        )
    if end in came[:-1]:
        return "The answer goes on behind its end: stop at `end`, however right the guesses behind it are."
    if came == draft and came[-1] != end:
        return (
            "The last guess came, and nothing behind it. If it was kept, the token after the last is forgotten: there "
            "is one row more than guesses. If it was thrown away, it cannot come as its own replacement."
        )
    if len(came) <= len(draft) and came[-1] == draft[len(came) - 1] != end:
        return (
            "It stops at a guess that came. If it was kept, go on with the next row, which gives one token at least. "
            "If it was thrown away, it cannot come as its own replacement: max(0, p − q) is 0 there."
        )
    return ""


class Played:
    """A rule, played many times on the same probabilities, each time with another draft.

    Parameters
    ----------
    accept : callable
        `accept(p, q, draft, choose, end)` returns the tokens of one iteration.
    p : list of list of float
        The large model's probabilities, a row a place; one row more than `q`.
    q : list of list of float
        The drafter's, which each guess is drawn from.
    end : int
    choose : random.Random
        Draws the drafts; the rule may draw with it, too.
    trials : int

    Attributes
    ----------
    fault : str
        What is wrong with one of the iterations, as `broken_by` says it; blank if nothing is. It ends the play.
    draft, came : list of int
        Those of the latest iteration.
    """

    def __init__(
        self,
        accept: Callable,
        p: list[list[float]],
        q: list[list[float]],
        end: int,
        choose: random.Random,
        trials: int = 4000,
    ):
        self.p, self.q, self.end = p, q, end
        self.fault, self.draft, self.came = "", [], []
        self._seen: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()  # draft, tokens -> how often
        for _ in range(trials):
            self.draft = [choose.choices(range(len(row)), row)[0] for row in q]
            rows = [list(row) for row in p], [list(row) for row in q]
            self.came = list(accept(*rows, list(self.draft), choose, end))
            self.fault = broken_by(self.came, self.draft, end)
            if self.fault:
                return
            self._seen[tuple(self.draft), tuple(self.came)] += 1

    def reached(self, place: int) -> list[tuple[int | None, int, int]]:
        """Of each iteration that came as far as this place: the guess there, the token that came, how often."""
        some = []
        for (draft, came), many in self._seen.items():
            if len(came) > place and came[:place] == draft[:place]:
                some.append((draft[place] if place < len(draft) else None, came[place], many))
        return some

    def kept(self, place: int) -> list[tuple[int, int, int, float]]:
        """Of each guess at this place: the guess, how often it was made, how often it came, and the share that should.

        With the smaller of 1 and p/q a guess is kept as often as it can be without changing what the model says.
        """
        made: Counter[int | None] = Counter()
        right: Counter[int | None] = Counter()
        for guess, token, many in self.reached(place):
            made[guess] += many
            right[guess] += many * (token == guess)
        return [
            (guess, made[guess], right[guess], min(1.0, self.p[place][guess] / self.q[place][guess]))
            for guess in sorted(one for one in made if one is not None)
        ]

    def shares(self, place: int) -> list[tuple[int, int, int, float]]:
        """Of each token: the token, how many came at this place in all, how often this one, and its probability."""
        come: Counter[int] = Counter()
        for _, token, many in self.reached(place):
            come[token] += many
        total = sum(come.values())
        return [(token, total, come[token], chance) for token, chance in enumerate(self.p[place])]


def columns(answer: list[int], propose: Callable, k: int, prompt: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Drafts accepted and thrown away in each iteration of a greedy answer that is known.

    Parameters
    ----------
    answer : list of int
        Its tokens, with the one that ends it.
    propose : callable
        `propose(tokens, most)` gives at most so many guesses at what follows the tokens.
    k : int
        Most drafts of an iteration.
    """
    found, at = [], 0
    while at < len(answer):
        draft = list(propose([*prompt, *answer[:at]], min(k, len(answer) - at - 1)))
        right = [one == other for one, other in zip(draft, answer[at:])]
        accepted = [*right, False].index(False)
        found.append((accepted, len(draft) - accepted))
        at += 1 + accepted
    return found
