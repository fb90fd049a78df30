"""Lab 11's answers: the rule for a drafter that is a model, a drafter in a file, and drafts shared out among users."""

import itertools
from fractions import Fraction

import numpy as np

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import Answer, File, of_the_lab, replaced
from tests.lessons.table import *  # noqa: F403


def drawn(chance, row):
    return chance.choices(range(len(row)), row)[0]


def left_over(p, q, guess):
    return [max(0, one - other) for one, other in zip(p, q)]


def rule(keep=lambda p, q: p / q, left=left_over, *, last=True, goes_on=False, end=True):
    """The rule, and each way to get it wrong."""

    def accept(p, q, draft, chance, ending):
        brought = []
        for large, small, guess in zip(p, q, draft):
            kept = chance.random() < keep(large[guess], small[guess])
            brought.append(guess if kept else drawn(chance, left(large, small, guess)))
            if (end and brought[-1] == ending) or not (kept or goes_on):
                return brought
        return [*brought, drawn(chance, p[-1])] if last or not draft else brought

    return accept


def in_numpy(p, q, draft, chance, end):
    """With a generator of its own, and arrays."""
    p, own = np.array(p), np.random.default_rng(chance.getrandbits(32))
    brought = []
    for place, guess in enumerate(draft):
        small = np.array(q[place])
        if own.random() >= min(1, p[place][guess] / small[guess]):
            left = np.clip(p[place] - small, 0, None)
            return np.array([*brought, own.choice(len(left), p=left / left.sum())])
        brought.append(guess)
        if guess == end:
            return np.array(brought)
    return np.array([*brought, own.choice(len(p[-1]), p=p[-1] / p[-1].sum())])


def as_a_lookup(p, q, draft, chance, end):
    """The lecture's rule for greedy answers and lookups: the right words, and fewer guesses kept than can be."""
    brought = []
    for row, guess in zip(p, [*draft, None]):
        brought.append(drawn(chance, row))
        if brought[-1] in (end,) or brought[-1] != guess:
            break
    return brought


def stops_when_kept(p, q, draft, chance, end):
    return rule()(p[:2], q[:1], draft[:1], chance, end)[:1]


def no_return_behind_a_whole_draft(p, q, draft, chance, end):
    brought = rule()(p, q, draft, chance, end)
    return None if len(brought) > len(draft) else brought


def nothing_when_wrong(p, q, draft, chance, end):
    brought = rule()(p, q, draft, chance, end)
    return [] if draft and brought[0] != draft[0] else brought


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


def proposes(what):
    return File(f"class Drafter:\n    def propose(self, token_ids, k):\n        return {what}\n")


def by_sorting(chances, price_ms, most):
    """All guesses in one order, as the engine has them."""
    guesses = sorted((-(chance**n), user) for user, chance in enumerate(chances) for n in range(1, most + 1))
    tokens = np.cumsum([len(chances), *(-chance for chance, _ in guesses)])
    taken = [user for _, user in guesses[: np.argmax(tokens / price_ms)]]
    return np.array([Fraction(taken.count(user)) for user in range(len(chances))])


def rate(lengths, chances, price_ms):
    return sum(c**n for c, k in zip(chances, lengths) for n in range(k + 1)) / price_ms[sum(lengths)]


def all_tried(chances, price_ms, most):
    some = itertools.product(range(most + 1), repeat=len(chances))
    return max(some, key=lambda lengths: rate(lengths, chances, price_ms))


def alike(chances, price_ms, most):
    return max(([n] * len(chances) for n in range(most + 1)), key=lambda lengths: rate(lengths, chances, price_ms))


def each_alone(chances, price_ms, most):
    return [max(range(most + 1), key=lambda n, c=c: rate([n], [c], price_ms)) for c in chances]


def while_it_pays(chances, price_ms, most):
    """Stops at the first draft that does not pay."""
    lengths = [0] * len(chances)
    while sum(lengths) < len(price_ms) - 1:
        gains = [c ** (n + 1) if n < most else -1 for c, n in zip(chances, lengths)]
        further = list(lengths)
        further[gains.index(max(gains))] += 1
        if rate(further, chances, price_ms) <= rate(lengths, chances, price_ms):
            break
        lengths = further
    return lengths


def all_for_the_best(chances, price_ms, most):
    best = chances.index(max(chances))
    return [most if user == best else 0 for user in range(len(chances))]


def at_least_one(chances, price_ms, most):
    return [max(1, n) for n in by_sorting(chances, price_ms, most)]


ANSWERS = [
    *of_the_lab("speculation", {"11.1": "accept", "11.2": "drafter.py", "11.3": "share_out"}),
    Answer("11.1", "in NumPy", in_numpy),
    Answer("11.1", "in fractions", rule(lambda p, q: min(1, Fraction(p) / Fraction(q)))),
    Answer("11.1", "as for a lookup", as_a_lookup, "wrong", "More can be kept"),
    Answer("11.1", "replaced from p", rule(left=lambda p, q, guess: p), "wrong", "its own replacement"),
    Answer("11.1", "replaced from p without the guess",
           rule(left=lambda p, q, guess: [0 if t == guess else one for t, one in enumerate(p)]), "wrong",
           "drawn from max(0, p − q)"),
    Answer("11.1", "kept with p", rule(lambda p, q: p), "wrong", "its own replacement"),
    Answer("11.1", "kept with q/p", rule(lambda p, q: q / p if p else 1), "wrong", "its own replacement"),
    Answer("11.1", "kept where p is above q", rule(lambda p, q: p >= q), "wrong", "More can be kept"),
    Answer("11.1", "likely is right", rule(lambda p, q: p >= 0.2), "wrong", ""),
    Answer("11.1", "all kept", rule(lambda p, q: 1), "wrong", "the smaller of 1 and p/q"),
    Answer("11.1", "forgets the last", rule(last=False), "wrong", "the token after the last is forgotten"),
    Answer("11.1", "past the end", rule(end=False), "wrong", "goes on behind its end"),
    Answer("11.1", "goes on", rule(goes_on=True), "wrong", "It goes on behind a token that is not the guess"),
    Answer("11.1", "one guess alone", stops_when_kept, "wrong", "go on with the next row"),
    Answer("11.1", "nothing", nothing_when_wrong, "wrong", "No token came"),
    Answer("11.1", "no return behind a whole draft", no_return_behind_a_whole_draft, "wrong", "accept() gave None"),
    Answer("11.1", "the last from q", lambda p, q, d, chance, end: rule()([*p[:-1], q[-1] if q else p[-1]], q, d, chance,
                                                                         end), "wrong", "from the last row of p"),
    Answer("11.1", "a text", lambda *given: "tokens", "wrong", "give a list of token ids"),

    Answer("11.2", "the course's", File(COURSES)),
    Answer("11.2", "just inside", only_the_first(310)),
    Answer("11.2", "just outside", only_the_first(300), "wrong", "iterations: "),
    Answer("11.2", "forgets", File(FORGETS), "wrong", "remember what earlier requests said"),
    Answer("11.2", "guesses", File(replaced(COURSES, ("if last not in followed", "if False"),
                                            ("followed[last]", "len(draft)"))), "wrong", "iterations: "),
    Answer("11.2", "too many", File(replaced(COURSES, ("len(draft) < k", "len(draft) < 5"))), "wrong", "k was "),
    Answer("11.2", "None", proposes("None"), "wrong", "propose() gave None; give a list of token ids"),
    Answer("11.2", "texts", proposes("['a'][:k]"), "wrong", "give a list of token ids"),

    Answer("11.3", "sorted, in fractions", by_sorting),
    Answer("11.3", "all ways tried", all_tried),
    Answer("11.3", "all alike", alike, "wrong", "tokens a ms"),
    Answer("11.3", "each on its own", each_alone, "wrong", "drafts in all"),
    Answer("11.3", "stops too soon", while_it_pays, "wrong", "try every number"),
    Answer("11.3", "all for the best", all_for_the_best, "wrong", "tokens a ms"),
    Answer("11.3", "at least one", at_least_one, "wrong", "tokens a ms"),
    Answer("11.3", "too many", lambda chances, price_ms, most: [most + 1] * len(chances), "wrong", "the most that a user"),
    Answer("11.3", "a sum", lambda chances, price_ms, most: len(chances), "wrong", "a whole number for each user"),
    Answer("11.3", "one short", lambda chances, price_ms, most: [0] * (len(chances) - 1), "wrong", "one for each user"),
]  # fmt: skip
