"""Lab 06: batches on paper, a delay for a budget, batches by their padded volume, and a tester's histogram."""

import random
from collections.abc import Callable
from functools import partial

from inflight.bench import workload
from inflight.errors import CourseError
from inflight.lessons.batchers.simulate import simulate
from inflight.notebook.checks import answers, grades, parts
from inflight.notebook.checks.findings import Case, Finding, Measured, Wrong, asked

# Exercise 6.1: a rule, arrivals (ms), delay (ms) and most in a batch that need it, and what to say to who lacks it.
_RULES = (
    ("no delay", [0, 10, 21, 32, 43], 0, 8, "The first leaves alone; the next batch is what came meanwhile."),
    ("max_batch_size", list(range(12)), 0, 4, "No batch holds more than max_batch_size; the rest waits for the next."),
    ("the delay", [0, 80, 150, 400], 100, 8, "A delay counts from the arrival of the oldest request that waits."),
    ("a full batch", [*range(8), 20, 150], 100, 8, "A full batch does not wait for the delay."),
    ("a busy model", [0, 5, 40, 65, 80], 20, 8, "After its delay a request still waits for the model."),
)


@grades("6.1", "By this rule a batch fills by itself while the model is busy; a delay is for a model that is idle.")
def _batch_sizes(sizes: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def case(arrivals_ms: list[float], delay_ms: float, most: int, hint: str) -> Case:
        given = (arrivals_ms, delay_ms, most, 40, 4)
        return Case(given, simulate(*given).sizes, hint)

    at_random = [
        case(
            # No two differ by a whole number: no request arrives at the very moment at which a batch leaves.
            [number + place / 100 for place, number in enumerate(sorted(choose.sample(range(600), 24)), 1)],
            choose.choice((0, 33, 77)),
            choose.choice((2, 4, 8)),
            "Play it event by event.",
        )
        for _ in range(20)
    ]
    by_rule = {rule: [case(*given)] for rule, *given in _RULES} | {"any arrivals": at_random}
    return {rule: partial(asked, sizes, cases) for rule, cases in by_rule.items()}


# Exercise 6.2 ---------------------------------------------------------------------------------------------------------

MOST_BUSY = 54  # per cent of the time: batches of 2.86; a delay that gives 3 on paper, 66,667 µs, comes to 2.94 to 3.05
MOST_MS, RATE = 150, 30
COURSES_US = 75_000
TOO_BUSY = "Larger batches are fewer: what lets a request wait for others?"
TOO_LATE = "The first of a batch waits for the whole delay, and then for the batch."


@grades("6.2", "A delay buys larger batches with the latency of the first in each: set it from the budget backwards.")
def _within_budget(delay_us: float, choose: random.Random) -> Finding:
    try:
        delay_ms = float(delay_us) / 1000
    except (TypeError, ValueError):
        return Wrong(f"Your answer is {answers.brief(delay_us)}: give the microseconds as a number.")
    if not 0 <= delay_ms <= 60_000:
        return Wrong(f"Your answer is {answers.brief(delay_us)}: give microseconds, from 0 to a minute's 60,000,000.")
    arrivals_ms = [1000 * at_s for at_s in workload.poisson(5000, rate=RATE, seed=choose.randrange(10**6))]
    own, course, nothing = (simulate(arrivals_ms, ms, 8, 40, 4) for ms in (delay_ms, COURSES_US / 1000, 0))
    mine, best, plain = (RATE * (40 / played.mean_batch + 4) / 10 for played in (own, course, nothing))
    unit = " 1,000 microseconds are a millisecond." if 0 < delay_ms < 1 else ""
    return [
        Measured("model busy", mine, at_most=MOST_BUSY, course=best, nothing=plain, nothing_is="no delay", unit="%",
                 advice=TOO_BUSY + unit),
        Measured("P95", own.p95_ms, at_most=MOST_MS, course=course.p95_ms, nothing=nothing.p95_ms,
                 nothing_is="no delay", unit="ms", advice=TOO_LATE),
    ]  # fmt: skip


# Exercise 6.3: a stream of lengths, of which WAITING wait at any time ------------------------------------------------

LIMIT, WAITING, SHARE, CHECK_S = 1024, 32, 0.68, 30
BATCH_TOKENS = 200  # what a batch costs before its first token


@grades("6.3", "A batch costs its padded volume, so texts of about equal length belong together.",
        keeps="batching", within_s=CHECK_S)  # fmt: skip
def _by_volume(path: str, choose: random.Random) -> Finding:
    take, courses = (answers.load(file, "take").take for file in (path, parts.COURSES_OWN["batching"]))
    lengths = [min(512, max(8, int(choose.lognormvariate(4, 1)))) for _ in range(5000)]
    lengths[choose.randrange(100, 4900)] = 3 * LIMIT // 2
    own, in_order, course = (_batches(each, lengths) for each in (take, _in_order, courses))
    advice = "Which texts fill the volume, next to the first, with the least padding?"
    figures = zip(("cost in tokens", "batches", "padded volume"), own, in_order, course)
    budgets = {"at_most": int(SHARE * in_order[0]), "advice": advice}, {}, {}
    return [
        Measured(what, mine, course=best, nothing=plain, nothing_is="in order of arrival", **budget)
        for (what, mine, plain, best), budget in zip(figures, budgets)
    ]


def _batches(take: Callable, lengths: list[int]) -> tuple[int, int, int]:
    """A stream's cost, batches and padded volume; WAITING texts wait at any time. Raises what is wrong."""
    coming, number, padded = iter(lengths), 0, 0
    waiting: list[int] = []
    while True:
        waiting += [length for _, length in zip(range(WAITING - len(waiting)), coming)]
        if not waiting:
            return BATCH_TOKENS * number + padded, number, padded
        places = answers.plain(take(list(waiting), LIMIT))
        places = list(places) if isinstance(places, set) else places
        if places is None:
            raise NotImplementedError
        if problem := _problem(places, waiting):
            raise CourseError(f"take({answers.brief(waiting)}, {LIMIT}) gives {answers.brief(places)}: {problem}")
        padded += len(places) * max(waiting[place] for place in places)
        waiting = [length for place, length in enumerate(waiting) if place not in set(places)]
        number += 1


def _problem(places: object, waiting: list[int]) -> str:
    """What is wrong with a batch, blank if it may leave."""
    if not isinstance(places, list) or not all(isinstance(place, int) for place in places):
        return "a list of places is wanted, whole numbers."
    if len(set(places)) < len(places) or not set(places) <= set(range(len(waiting))):
        return f"each place is one of 0 to {len(waiting) - 1}, and given once."
    if 0 not in places:
        return "place 0 has waited longest, and is always in the batch, or nobody may ever serve it."
    volume = len(places) * max(waiting[place] for place in places)
    if len(places) > 1 and volume > LIMIT:
        return f"{len(places)} texts as wide as the longest are {volume:,} tokens, and {LIMIT:,} is the limit."
    return ""


def _in_order(waiting: list[int], limit: int) -> list[int]:
    """As Triton's library and Text Embeddings Inference do: in the order of arrival, until one does not fit."""
    fits = (number for number in range(2, len(waiting) + 1) if number * max(waiting[:number]) > limit)
    return list(range(next(fits, len(waiting) + 1) - 1))


# Exercise 6.4: a histogram, one every so many ms, and a percentile ----------------------------------------------------

_HISTOGRAMS = {
    "nothing left out": (
        [({44: 3, 60: 1}, 100, 75), ({44: 3, 60: 1}, 100, 76), ({60: 9, 100: 3, 45: 8}, 100, 50)],
        "No request was due meanwhile: go up from the shortest latency until percent of 100 are not above.",
    ),
    "one slow": (
        [({50: 19, 1000: 1}, 100, 95), ({50: 9, 250: 1}, 100, 85), ({50: 1, 730: 1}, 100, 50)],
        "Each next one was due every_ms later, and was answered at the same moment: it waited that much less.",
    ),
    "many alike": (
        [({40: 10, 200: 10}, 100, 60), ({40: 6, 340: 5}, 100, 50)],
        "Each request of a count left out its own.",
    ),
    "the last of them": (
        [({390: 1}, 100, 20), ({199: 2}, 100, 10)],
        "One that takes less than every_ms is not added.",
    ),
}


@grades("6.4", "A tester that waits for its answers leaves out the slow ones: send on a schedule, as your users do.")
def _corrected(corrected: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def case(counts: dict[int, int], every_ms: int, percent: int, hint: str) -> Case:
        with_them = sorted(
            each
            for latency_ms, number in counts.items()
            for each in (latency_ms, *range(latency_ms - every_ms, every_ms - 1, -every_ms))
            for _ in range(number)
        )
        return Case((counts, every_ms, percent), with_them[-(-percent * len(with_them) // 100) - 1], hint)

    cases = {part: [case(*given, hint) for given in each] for part, (each, hint) in _HISTOGRAMS.items()}
    cases["any histogram"] = [
        case(
            {choose.randrange(10, 900): choose.randrange(1, 30) for _ in range(8)},
            choose.choice((33, 50, 100)),
            choose.choice((50, 90, 95, 99)),
            "First add what was left out, then count from the shortest.",
        )
        for _ in range(20)
    ]
    return {part: partial(asked, corrected, each) for part, each in cases.items()}
