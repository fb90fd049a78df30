"""Lab 11's answers: a lookup, the rule of acceptance, prices on paper, and a drafter in a file."""

import random

import numpy as np

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403


def lookup(tokens, k, longest, *, latest=True, skip=0, sizes=None, cut=True):
    """The lookup, and each way to get it wrong."""
    for size in sizes or range(longest, 0, -1):
        places = range(len(tokens) - size)
        for start in reversed(places) if latest else places:
            if tokens[start : start + size] == tokens[-size:]:
                begin = start + size - skip * size
                return tokens[begin : begin + k] if cut else tokens[begin:]
    return []


def wrong(**how):
    return lambda tokens, k, longest: lookup(tokens, k, longest, **how)


def finds_itself(tokens, k, longest):
    return tokens[len(tokens) :][:k]


def by_text(tokens, k, longest):
    """With strings: an unusual way that is right."""
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        text = "".join(map(chr, tokens))
        place = text[:-1].rfind(text[-size:])
        if place >= 0:
            return np.array([ord(letter) for letter in text[place + size :][:k]], int)
    return ()


def plain_rule(rows, draft, choose, end):
    brought = []
    for row, guess in zip(rows, [*draft, None]):
        brought.append(choose(row))
        if brought[-1] == end or brought[-1] != guess:
            break
    return brought


def textbook(rows, draft, choose, end):
    """Leviathan's rule for a drafter that is sure of its guess."""
    for at, guess in enumerate(draft):
        if random.random() >= rows[at][guess]:
            return [*draft[:at], choose([0 if token == guess else p for token, p in enumerate(rows[at])])]
        if guess == end:
            return draft[: at + 1]
    return [*draft, choose(rows[-1])]


def likely(threshold):
    def rule(rows, draft, choose, end):
        for at, guess in enumerate(draft):
            if rows[at][guess] < threshold:
                return [*draft[:at], choose(rows[at])]
            if guess == end:
                return draft[: at + 1]
        return [*draft, choose(rows[-1])]

    return rule


def without_the_last(rows, draft, choose, end):
    brought = plain_rule(rows[: len(draft)], draft, choose, end)
    return brought if draft else plain_rule(rows, draft, choose, end)


def without_the_correction(rows, draft, choose, end):
    brought = plain_rule(rows, draft, choose, end)
    return brought if len(brought) == 1 or len(brought) > len(draft) or brought[-1] == end else brought[:-1]


def past_the_end(rows, draft, choose, end):
    return plain_rule(rows, draft, choose, None)


def goes_on(rows, draft, choose, end):
    return [choose(row) for row in rows]


def drawn_from_the_next(rows, draft, choose, end):
    brought = plain_rule(rows, draft, choose, end)
    at = len(brought) - 1
    wrong_one = at < len(draft) and brought[at] != draft[at]
    if not wrong_one:
        return brought
    token = choose(rows[at + 1])
    return brought if token == draft[at] else [*brought[:-1], token]


def nothing_where_wrong(rows, draft, choose, end):
    brought = plain_rule(rows, draft, choose, end)
    return brought[:-1] if brought[:1] != draft[:1] else brought


def speed(accepted, drafted, users, plain, token):
    return (1 + accepted) * plain / (plain + users * drafted * token)


def best(right, price_ms, lengths=None, brought=lambda right, n: sum(right**place for place in range(n + 1))):
    return max(lengths or range(len(price_ms)), key=lambda n: brought(right, n) / price_ms[n])


COURSES = COURSES_OWN["drafter"].read_text()
FORGETS = replaced(COURSES, ("    known = 3\n", "    known = 3\n\n    def __init__(self):\n        followed.clear()\n"))


def only_the_first(number):
    """The course's, which proposes nothing after so many calls."""
    return File(
        replaced(
            COURSES,
            ("known = 3", "known, calls = 3, 0"),
            ("draft = []", "draft, Drafter.calls = [], Drafter.calls + 1"),
            ("len(draft) < k", f"len(draft) < k and Drafter.calls <= {number}"),
        )
    )


ANSWERS = [
    *of_the_lab(
        "speculation",
        {"11.1": "propose", "11.2": "accept", "11.3": "speed_up", "11.4": "best_length", "11.5": "drafter.py"},
    ),
    Answer("11.1", "with strings, in NumPy", by_text),
    Answer("11.1", "the first place", wrong(latest=False), "wrong", "The latest place is wanted"),
    Answer("11.1", "the match itself", wrong(skip=1), "wrong", "Begin behind the place that was found"),
    Answer("11.1", "finds the end", finds_itself, "wrong", "that place does not count"),
    Answer("11.1", "short ones first", wrong(sizes=(1, 2, 3)), "wrong", "Try the longest first"),
    Answer("11.1", "only of that size", lambda t, k, n: lookup(t, k, n, sizes=(n,)), "wrong", "go down to 1"),
    Answer("11.1", "all that followed", wrong(cut=False), "wrong", "more than k tokens"),
    Answer("11.1", "always three", wrong(sizes=(3, 2, 1)), "wrong", "`longest` says"),

    Answer("11.2", "by the textbook", textbook),
    Answer("11.2", "likely is right", likely(0.5), "wrong", "Do not accept a guess because it is likely"),
    Answer("11.2", "always right", likely(0), "wrong", "Do not accept a guess because it is likely"),
    Answer("11.2", "forgets the last", without_the_last, "wrong", "the token after the last is forgotten"),
    Answer("11.2", "forgets the correction", without_the_correction, "wrong", "It stops at a guess that is right"),
    Answer("11.2", "past the end", past_the_end, "wrong", "goes on behind its end"),
    Answer("11.2", "all rows", goes_on, "wrong", "It goes on behind a token that is not the guess"),
    Answer("11.2", "the next row", drawn_from_the_next, "wrong", "drawn from that guess's own row"),
    Answer("11.2", "nothing", nothing_where_wrong, "wrong", "No token came"),
    Answer("11.2", "never right", lambda r, d, choose, end: [choose(r[0])], "wrong", "It stops at a guess that is right"),

    Answer("11.3", "of rates", lambda a, d, u, p, t: (1 + a) / (1 + u * d * t / p)),
    Answer("11.3", "without its own token", lambda a, d, u, p, t: speed(a - 1, d, u, p, t), "wrong", "one token more"),
    Answer("11.3", "one draft for all", lambda a, d, u, p, t: speed(a, d, 1, p, t), "wrong", "has a draft to pay for"),
    Answer("11.3", "accepted ones alone", lambda a, d, u, p, t: speed(a, a, u, p, t), "wrong", "thrown away"),
    Answer("11.3", "turned round", lambda a, d, u, p, t: 1 / speed(a, d, u, p, t), "wrong", "turn it round"),
    Answer("11.3", "for nothing", lambda a, d, u, p, t: 1 + a, "wrong", "as if drafts cost nothing"),
    Answer("11.3", "the first token twice", lambda a, d, u, p, t: speed(a, 1 + d, u, p, t), "wrong",
           "has the first token"),

    Answer("11.4", "in NumPy", lambda r, p: np.argmax(np.cumsum(r ** np.arange(len(p))) / p)),
    Answer("11.4", "never none", lambda r, p: best(r, p, range(1, len(p))), "wrong", "No draft at all is a length"),
    Answer("11.4", "each on its own", lambda r, p: best(r, p, brought=lambda r, n: 1 + n * r), "wrong",
           "counts only if the first two were right"),
    Answer("11.4", "the longest", lambda r, p: len(p) - 1, "wrong", "each one has its price"),

    Answer("11.5", "the course's", File(COURSES)),
    Answer("11.5", "just inside", only_the_first(310)),
    Answer("11.5", "just outside", only_the_first(300), "wrong", "iterations: "),
    Answer("11.5", "forgets", File(FORGETS), "wrong", "remember what earlier requests said"),
    Answer("11.5", "guesses", File(replaced(COURSES, ("if last not in followed", "if False"),
                                            ("followed[last]", "len(draft)"))), "wrong", "iterations: "),
    Answer("11.5", "too many", File(replaced(COURSES, ("len(draft) < k", "len(draft) < 5"))), "wrong", "k was "),
]  # fmt: skip
