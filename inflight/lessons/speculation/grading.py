"""Lab 11: drafts.

A lookup is asked what followed; the rule is played with many seeds on made-up distributions, and what it brings is
counted beside what they say; a drafter plays answers that are known, without a model.
"""

import math
import random
from collections import Counter
from collections.abc import Callable
from operator import index
from pathlib import Path
from typing import Any

from inflight.engine.own.part import OwnPart
from inflight.errors import CourseError
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Finding, Measured, Wrong, asked, told
from inflight.notebook.checks.parts import COURSES_OWN

END = 0  # ends an answer of 11.2
TRIALS, SIGMAS = 2000, 6  # of the rule; a share so many standard deviations off has another probability
VOCABULARY, LONGEST = 1000, 4  # of the answers of 11.5, and of their drafts


@grades("11.1", "A lookup costs microseconds and knows one thing only: what has been said before.")
def _lookup(propose: Callable, choose: random.Random) -> Finding:
    a, b, c, d, x, y = choose.sample(range(100, 999), 6)
    itself = "The last tokens are found at the end of the text, too: that place does not count."
    latest = told(
        "Look for the last three tokens, from the end of the text to its beginning; what followed is the draft.",
        ([x, a], "The latest place is wanted: search from the end of the text to its beginning."),
        ([a, b], "Begin behind the place that was found: its tokens are in the answer already."),
        ([], itself),
        ([y, a, b, c], "That is more than k tokens."),
    )
    cases = [
        ([a, b, c, x, a, b, c, y, a, b, c], 2, 3, [y, a], latest),
        ([a, b, c, x, d, c, y, a, b, c], 1, 3, [x], "Try the longest first: it says more of what comes."),
        ([d, c, y, x, a, c], 2, 3, [y, x], "Three or two tokens are not found here; one is: go down to 1."),
        ([a, b, c, x, b, c, y, a, b, c], 1, 2, [y], "`longest` says how many tokens to begin with: here 2."),
        ([a, x, a], 5, 3, [x, a], "There are only two tokens behind that place: propose these."),
        ([a, a], 3, 3, [a], told("The text is shorter than `longest`: go down to what there is.", ([], itself))),
        ([a, b, c, d], 3, 3, [], "No token came before: propose nothing, an empty list."),
        ([a, b, a], 0, 3, [], "k is 0: there is room for no draft."),
    ]
    return asked(propose, [Case(tuple(given), right, hint) for *given, right, hint in cases])


# 11.2 -----------------------------------------------------------------------------------------------------------------


@grades(
    "11.2", "Each token is drawn as without a draft, so answers are distributed as without; a guess only saves time."
)
def _rule(accept: Callable, choose: random.Random) -> Finding:
    def draw(row):
        return choose.choices(range(len(row)), [float(chance) for chance in row])[0]

    for draft in ([2, 3], [3, END, 2], []):
        rows = [_row(choose, likely=2 + at % 2) for at in range(len(draft) + 1)]
        brought: Counter[tuple] = Counter()
        for _ in range(TRIALS):
            got = accept([list(row) for row in rows], list(draft), draw, END)
            if got is None:
                return NOT_YET
            if problem := _problem(list(got), draft):
                return Wrong(f"{problem} For a draft of {draft} it brought {list(got)}; {END} ends an answer.")
            brought[tuple(got)] += 1
        if problem := _bias(brought, rows, draft):
            return Wrong(f"{problem} The draft was {draft}.")
    return RIGHT


def _row(choose: random.Random, likely: int) -> list[float]:
    """Chances of five tokens, of which one has 60 %."""
    chances = [choose.uniform(0.06, 0.12) for _ in range(5)]
    chances[likely] = 1.5 * (sum(chances) - chances[likely])
    return [chance / sum(chances) for chance in chances]


def _problem(got: list[int], draft: list[int]) -> str:
    """Say what is wrong with the tokens of one iteration; blank if nothing is."""
    if not got:
        return "No token came: the first row belongs to a text that is there, so its token is right in any case."
    if len(got) > len(draft) + 1:
        return "That is more tokens than rows: each row gives one."
    if any(token != guess for token, guess in zip(got[:-1], draft)):
        return (
            "It goes on behind a token that is not the guess: the later rows were computed for a text that the answer "
            "does not have."
        )
    if END in got[:-1]:
        return "The answer goes on behind its end: stop at `end`, however right the guesses behind it are."
    if got == draft and got[-1] != END:
        return "All guesses are right, and the token after the last is forgotten: there is one row more than guesses."
    if len(got) <= len(draft) and got[-1] == draft[len(got) - 1] != END:
        return "It stops at a guess that is right: the next row holds too, and gives at least the model's correction."
    return ""


def _bias(brought: Counter, rows: list[list[float]], draft: list[int]) -> str:
    """Say where the shares of tokens over all iterations differ from the rows; blank if nowhere."""
    before = 1.0  # the chance that all guesses so far are right
    for at, (row, guess) in enumerate(zip(rows, [*draft, None])):
        for token in sorted(range(len(row)), key=lambda token: token != guess):
            share = sum(many for got, many in brought.items() if got[: at + 1] == (*draft[:at], token)) / TRIALS
            wanted = before * row[token]
            if abs(share - wanted) <= SIGMAS * math.sqrt(wanted * (1 - wanted) / TRIALS):
                continue
            if token != guess:
                advice = "A token that replaces a guess is drawn from that guess's own row."
            elif share > wanted:
                advice = "Do not accept a guess because it is likely: draw from the row, and accept what was drawn."
            else:
                advice = "A guess that is drawn is right, however unlikely it was."
            return f"{share:.2f} of the answers have token {token} at place {at + 1}, {wanted:.2f} are wanted. {advice}"
        if guess is None or guess == END:
            break
        before *= row[guess]
    return ""


# 11.3 and 11.4 --------------------------------------------------------------------------------------------------------


@grades("11.3", "With the users the price of a draft grows and its gain does not: that is where it turns round.")
def _on_paper(speed_up: Callable, choose: random.Random) -> Finding:
    return asked(speed_up, [_paper(choose, users) for users in (1, 4, 8)])


def _paper(choose: random.Random, users: int) -> Case:
    drafted, plain_ms, token_ms = choose.uniform(2, 5), choose.uniform(10, 20), choose.uniform(0.4, 0.9)
    accepted = choose.uniform(0.3, 0.8) * drafted

    def times(brought: float, more_tokens: float) -> float:
        return brought * plain_ms / (plain_ms + more_tokens * token_ms)

    right = times(1 + accepted, users * drafted)
    hint = told(
        "How many tokens does an iteration bring a user, and how many times as long does it take?",
        (times(accepted, users * drafted), "Each iteration brings one token more than were accepted."),
        (times(1 + accepted, drafted), "Each of the users has a draft to pay for."),
        (times(1 + accepted, users * accepted), "Guesses that are thrown away are computed, too: pay for all."),
        (1 / right, "That is the time with drafts over the time without: turn it round."),
        (1 + accepted, "That is as if drafts cost nothing: an iteration takes longer with them."),
        (times(1 + accepted, users * (1 + drafted)), "plain_ms has the first token of each user already."),
    )
    return Case((accepted, drafted, users, plain_ms, token_ms), right, hint)


@grades("11.4", "The chance that a guess counts falls with each before it, its price does not: there is a best length.")
def _best_length(best_length: Callable, choose: random.Random) -> Finding:
    shares = (0.9, 0.15, 0.6, 0.75, 0.4, 0.05)
    return asked(best_length, [_prices(choose, right, users) for right in shares for users in (1, 8)])


def _prices(choose: random.Random, right: float, users: int) -> Case:
    """A price list on which one length is the best."""
    second, first, rates, price_ms = 1.0, 1.0, [0.0], [0.0]
    while first < 1.002 * second:
        plain_ms, token_ms = choose.uniform(10, 20), choose.uniform(0.3, 1.0)
        price_ms = [round(plain_ms + users * drafts * token_ms, 2) for drafts in range(9)]
        rates = [sum(right**place for place in range(drafts + 1)) / ms for drafts, ms in enumerate(price_ms)]
        second, first = sorted(rates)[-2:]
    best, least = rates.index(first), 1 + rates[1:].index(max(rates[1:]))
    hint = told(
        "For each length: the tokens that it brings on average, over its price.",
        (least if best == 0 else -1, "No draft at all is a length, too: 0."),
        (8, "The third guess counts only if the first two were right, and each one has its price."),
    )
    return Case((right, price_ms), best, hint)


# 11.5 -----------------------------------------------------------------------------------------------------------------


@grades("11.5", "A drafter may learn from anything: a wrong guess costs time, and never a word.", "drafter", 30)
def _drafter(path: str, choose: random.Random) -> list[Measured]:
    letters = _letters(choose)
    iterations, proposed = _iterations(path, letters)
    if not proposed:
        raise NotImplementedError
    plain = sum(map(len, letters))
    advice = "The letters share sentences, not the prompts: remember what earlier requests said."
    course = _iterations(COURSES_OWN["drafter"], letters)[0]
    return [
        Measured("iterations", iterations, at_most=plain * 7 // 10, course=course, nothing=plain, advice=advice),
        Measured("tokens proposed", proposed),
    ]


def _letters(choose: random.Random) -> list[list[int]]:
    """Answers that are made of the same sentences, in other orders; only the first comes twice in one of them."""
    sentences = [choose.sample(range(VOCABULARY), choose.randint(10, 14)) for _ in range(12)]
    letters = [choose.sample(sentences, 6) for _ in range(12)]
    return [sum([*letter, letter[0]], []) for letter in letters]


def _iterations(path: str | Path, answers: list[list[int]]) -> tuple[int, int]:
    """Iterations that these answers take with a learner's drafts, and how many tokens it proposed."""
    part = OwnPart(path, "Drafter", "propose", "self, token_ids, k")
    iterations = proposed = 0
    for number, answer in enumerate(answers):
        drafter = part.call(part.made)  # one for each request, as in the engine
        at = 0
        while at < len(answer):
            most = min(LONGEST, len(answer) - at - 1)
            draft = part.call(_proposed, drafter, [VOCABULARY + number, *answer[:at]], most)
            if len(draft) > most:
                raise CourseError(f"{part.place}: propose() gave {len(draft)} tokens; k was {most}.")
            right = [one == other for one, other in zip(draft, answer[at:])]
            at += 1 + [*right, False].index(False)
            iterations, proposed = iterations + 1, proposed + len(draft)
    return iterations, proposed


def _proposed(drafter: Any, token_ids: list[int], most: int) -> list[int]:
    return list(map(index, drafter.propose(token_ids, most)))
