"""Lab 11: drafts.

A rule of acceptance is played with many seeds on made-up probabilities, and what it keeps and what comes is counted and
compared with what they say; a drafter plays answers that are known, without a model; drafts are shared out among users
whose chances are made up.
"""

import math
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any

from inflight.engine.own.part import OwnPart
from inflight.errors import CourseError
from inflight.lessons.speculation.counting import Played, columns
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Finding, Measured, Wrong
from inflight.notebook.checks.parts import COURSES_OWN

END = 0  # ends an answer of 11.1
TRIALS, SIGMAS = 4000, 6  # of the rule; a share so many standard deviations off has another probability
VOCABULARY, LONGEST = 1000, 4  # of the answers of 11.2, and of their drafts
OPTIMUM = 1 - 1e-9  # share of the best rate of 11.3 that counts as the best


# 11.1 -----------------------------------------------------------------------------------------------------------------


@grades("11.1", "A guess is kept as often as it can be; what it took too often, the replacement leaves out.")
def _rule(accept: Callable, choose: random.Random) -> Finding:
    if not _is_begun(accept, choose):
        return NOT_YET
    for p, q in _cases(choose):
        played = Played(_in_token_ids(accept), p, q, END, choose, TRIALS)
        about = f"The draft was {played.draft}"
        if played.fault:
            return Wrong(f"{played.fault} {about}, and it brought {played.came}; {END} ends an answer.")
        for place in range(len(p)):
            if problem := _bias(played, place):
                return Wrong(problem)
    return RIGHT


def _is_begun(accept: Callable, choose: random.Random) -> bool:
    """Say whether the rule answers to a guess that is kept, or to one that is thrown away."""
    p, others = [0.0, 1.0, 0.0], ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    return any(accept([[*p], [*p]], [[*q]], [q.index(1)], choose, END) is not None for q in others)


def _in_token_ids(accept: Callable) -> Callable:
    def called(*given: Any) -> list[int]:
        came = accept(*given)
        if not isinstance(came, list) or not all(isinstance(token, int) for token in came):
            raise CourseError(f"accept() gave {came!r:.80}: give a list of token ids.")
        return came

    return called


def _cases(choose: random.Random) -> list[tuple[list[list[float]], list[list[float]]]]:
    """Probabilities of both models: unlike ones, ones of which some are 0, equal ones, and a sure drafter."""
    unlike = [[0.1, 0.45, 0.25, 0.15, 0.05], [0.1, 0.1, 0.15, 0.25, 0.4]]
    p, q = ([_mixed(choose, row) for _ in range(3)] for row in unlike)
    never = [0.2, 0.5, 0.0, 0.3, 0.0], [0.0, 0.4, 0.3, 0.0, 0.3]  # guesses that the model never says, and the reverse
    sure = [0.0, 0.0, 1.0, 0.0, 0.0]  # as a lookup is
    return [
        (p, q[:2]),
        ([never[0], p[0], p[1]], [never[1], p[0]]),  # the second drafter is as good as the model
        ([[0.1, 0.1, 0.6, 0.1, 0.1], p[2]], [sure]),
        ([p[0]], []),
    ]


def _mixed(choose: random.Random, row: list[float]) -> list[float]:
    """The same chances, each a bit more or less; the end's place stays."""
    rest = [chance * choose.uniform(0.8, 1.25) for chance in choose.sample(row[1:], 4)]
    return [row[0], *((1 - row[0]) * chance / sum(rest) for chance in rest)]


def _bias(played: Played, place: int) -> str:
    """Say where guesses are kept too often or too seldom, or tokens come so; blank if nowhere."""
    for guess, made, kept, wanted in played.kept(place):
        if _is_off(kept, made, wanted):
            p, q = played.p[place][guess], played.q[place][guess]
            advice = "Keep it with the smaller of 1 and p/q; if it is thrown away, another token takes its place."
            if kept < wanted * made:
                advice = "More can be kept without changing what comes: the smaller of 1 and p/q."
            return (
                f"Of {made} guesses of token {guess} at place {place + 1}, with p = {p:.2f} and q = {q:.2f}, "
                f"{kept / made:.0%} came; {wanted:.0%} are wanted. {advice}"
            )
    for token, total, came, wanted in played.shares(place):
        if _is_off(came, total, wanted):
            is_last = place == len(played.q)
            advice = (
                "Behind a draft that was kept whole, the token is drawn from the last row of p."
                if is_last
                else "Each guess is kept as often as it should be. Look at what replaces one that is thrown away: that "
                "is drawn from max(0, p − q)."
            )
            share = f"Token {token} is {came / total:.0%} of what came at place {place + 1}"
            return f"{share}; {wanted:.0%} are wanted. {advice}"
    return ""


def _is_off(many: int, of: int, wanted: float) -> bool:
    return abs(many - wanted * of) > SIGMAS * math.sqrt(of * wanted * (1 - wanted)) + 1e-9


# 11.2 -----------------------------------------------------------------------------------------------------------------


@grades("11.2", "A drafter may learn from anything: a wrong guess costs time, and never a word.", "drafter", 30)
def _drafter(path: str, choose: random.Random) -> list[Measured]:
    letters = _letters(choose)
    steps = _steps(path, letters)
    accepted, thrown = map(sum, zip(*steps))
    if not accepted + thrown:
        raise NotImplementedError
    plain = sum(map(len, letters))
    course = len(_steps(COURSES_OWN["drafter"], letters))
    advice = "The letters share sentences, not the prompts: remember what earlier requests said."
    return [
        Measured("iterations", len(steps), at_most=plain * 7 // 10, course=course, nothing=plain, advice=advice),
        Measured("drafts accepted", accepted),
        Measured("drafts thrown away", thrown),
    ]


def _letters(choose: random.Random) -> list[list[int]]:
    """Answers that are made of the same sentences, in other orders; only the first comes twice in one of them."""
    sentences = [choose.sample(range(VOCABULARY), choose.randint(10, 14)) for _ in range(12)]
    letters = [choose.sample(sentences, 6) for _ in range(12)]
    return [sum([*letter, letter[0]], []) for letter in letters]


def _steps(path: str | Path, answers: list[list[int]]) -> list[tuple[int, int]]:
    """Drafts accepted and thrown away in each iteration of these answers, with a learner's drafts."""
    part = OwnPart(path, "Drafter", "propose", "self, token_ids, k")
    steps = []
    for number, answer in enumerate(answers):
        drafter = part.call(part.made)  # one for each request, as in the engine

        def proposed(tokens: list[int], most: int, drafter: Any = drafter) -> list[int]:
            given = part.call(drafter.propose, list(tokens), most)
            try:
                draft = list(map(index, given))
            except TypeError:
                raise CourseError(f"{part.place}: propose() gave {given!r:.80}; give a list of token ids.") from None
            if len(draft) > most:
                raise CourseError(f"{part.place}: propose() gave {len(draft)} tokens; k was {most}.")
            return draft

        steps += columns(answer, proposed, LONGEST, [VOCABULARY + number])
    return steps


# 11.3 -----------------------------------------------------------------------------------------------------------------


@grades(
    "11.3",
    "One order for all: the guess that is likeliest to count comes first, until the next is not worth its price.",
)
def _shared_out(share_out: Callable, choose: random.Random) -> Finding:
    has_answered = False
    cases = [_users(choose, number) for number in range(60)]
    for chances, price_ms, most in cases:
        lengths = share_out(list(chances), list(price_ms), most)
        if lengths is None and not has_answered:
            continue
        has_answered = True
        if problem := _not_lengths(lengths, chances, most):
            return Wrong(problem)
        best, best_rate = _best(chances, price_ms, most)
        rate = _rate(lengths, chances, price_ms)
        if rate < best_rate * OPTIMUM:
            prices = ", ".join(f"{ms:.1f}" for ms in price_ms[:6])
            case = f"Chances of {_two(chances)}, at most {most} each, prices {prices}, …"
            rates = f"{lengths} brings {rate:.4f} tokens a ms, {best} brings {best_rate:.4f}"
            return Wrong(f"{case}: {rates}. {_advice(lengths, best)}")
    return RIGHT if has_answered else NOT_YET


def _users(choose: random.Random, number: int) -> tuple[list[float], list[float], int]:
    """Chances of some users, and what an iteration costs with 0, 1, 2, … drafts in all."""
    users, most = choose.randint(1, 6), choose.randint(1, 6)  # few enough to try all ways
    chances = [
        choose.choice((0.0, 0.05, 1.0)) if choose.random() < 0.1 else choose.uniform(0.1, 0.95) for _ in range(users)
    ]
    plain_ms, token_ms, step_ms = choose.uniform(8, 14) + 0.8 * users, choose.uniform(0.3, 0.9), 0.0
    if number % 2:
        token_ms, step_ms = choose.uniform(0.05, 0.2), choose.uniform(2, 4)  # by steps, as where kernels work in tiles
    return chances, [plain_ms + n * token_ms + step_ms * -(-n // 4) for n in range(users * most + 1)], most


def _rate(lengths: Sequence[int], chances: Sequence[float], price_ms: Sequence[float]) -> float:
    tokens = sum(chance**place for chance, length in zip(chances, lengths) for place in range(length + 1))
    return tokens / price_ms[sum(lengths)]


def _best(chances: list[float], price_ms: list[float], most: int) -> tuple[list[int], float]:
    guesses = sorted(
        ((chance**place, user) for user, chance in enumerate(chances) for place in range(1, most + 1)),
        key=lambda guess: -guess[0],
    )
    tokens = accumulate((chance for chance, _ in guesses), initial=float(len(chances)))
    rates = [brought / ms for brought, ms in zip(tokens, price_ms)]
    number = rates.index(max(rates))
    taken = [user for _, user in guesses[:number]]
    return [taken.count(user) for user in range(len(chances))], rates[number]


def _not_lengths(lengths: Any, chances: list[float], most: int) -> str:
    if not isinstance(lengths, list) or not all(isinstance(one, int) for one in lengths):
        return f"share_out() gave {lengths!r:.80}: give a list with a whole number for each user."
    if len(lengths) != len(chances):
        return (
            f"There are {len(chances)} users, and {lengths} has {len(lengths)} numbers: one for each user, 0 for none."
        )
    if not all(0 <= one <= most for one in lengths):
        return f"{lengths} has a number that is not between 0 and {most}, the most that a user may have."
    return ""


def _advice(lengths: list[int], best: list[int]) -> str:
    if sum(lengths) == sum(best):
        return "As many drafts in all, at other users: the next draft goes where it is likeliest to count."
    if not any(best):
        return "No draft at all is an answer, too."
    more = "fewer" if sum(lengths) > sum(best) else "more"
    return f"Here {more} drafts in all bring more a ms: try every number, from 0 on, and all prices."


def _two(numbers: Sequence[float]) -> str:
    return "[" + ", ".join(f"{number:.2f}" for number in numbers) + "]"
