"""Lab 05: blocks promised for nothing, and two schedulers for a cache that is too small."""

import random
from collections.abc import Callable
from math import ceil

from inflight.engine.own.scheduler import OwnScheduler
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import SimulatedRequest, Simulation
from inflight.notebook.checks import grades, simulate_scheduler
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import Case, Compared, Finding, Measured, asked
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.notebook.checks.simulate_scheduler import Counts, counted

NUM_BLOCKS = 32
LIMITS = BuildConfig(max_input_len=512, max_seq_len=1024)
SHORT_ITERATIONS = BuildConfig(max_input_len=256, max_seq_len=1024, max_num_tokens=256)  # in which few prompts fit
TRIALS_S = 30  # for all trials of a learner's scheduler: it takes two or three
MOST_ITERATIONS, MOST_TWICE = 1.25, 0.65  # of max_utilization's: guaranteed_no_evict needs 1.3 times as many at least


# Blocks ---------------------------------------------------------------------------------------------------------------


@grades(
    "5.1", "What a client asks for to be safe is taken from the requests that wait: cap max_tokens, or do not promise."
)
def _unused(unused: Callable, choose: random.Random) -> Finding:
    days = [
        ([(32, 32, 31)], 32, "Of the two blocks that were promised both were used, the last one but for one place."),
        ([(40, 88, 20)], 32, "The answer begins in the prompt's last block: add prompt and answer, then round up."),
        ([(20, 12, 10), (20, 492, 10)], 32, "Add up the blocks of the whole day before you divide."),
        ([(20, 60, 4)], 16, "A block has tokens_per_block tokens."),
    ]
    for _ in range(12):
        most = [choose.randrange(20, 400) for _ in range(8)]
        day = [(choose.randrange(10, 300), each, choose.randrange(1, each)) for each in most]
        count = "For each request count the blocks of prompt and max_tokens, and those of prompt and answer."
        days.append((day, choose.choice((16, 32, 64)), count))

    def share(day: list[tuple[int, int, int]], size: int) -> float:
        promised, used = (sum(ceil((row[0] + row[part]) / size) for row in day) for part in (1, 2))
        return 1 - used / promised

    def hint(words: str) -> Callable[[object], str]:
        return lambda got: (
            words if isinstance(got, int | float) and 0 <= got <= 1 else "A share is a number from 0 to 1."
        )

    return asked(unused, [Case((day, size), share(day, size), hint(words)) for day, size, words in days])


# Schedulers -----------------------------------------------------------------------------------------------------------

P99 = "P99 of the latency, in iterations"
PROMISES = {
    "pauses": "A request that has started must never have to give blocks back: promise for its longest answer.",
    "iterations": "Let requests in until a slot, blocks that can be promised, or room in the iteration runs out.",
    "too_soon": "Take each newcomer's pending_tokens off room, and stop at the first that does not fit.",
    "overtaken": "First come, first served: stop at the first request that does not fit, or it may wait for ever.",
    "p99": "A request waits too long: let requests in, in the order in which they came, as soon as they fit.",
}
PAUSES = {
    "iterations": "Slots stay empty: let requests in as soon as their next iteration fits, with a little room to "
    "spare, and not only when their longest answer does.",
    "twice": "Every pause costs all tokens that its request had. Leave some blocks free for running requests when you "
    "let another one in, and pause one that has few tokens.",
    "p99": "A request waits too long: let paused requests back in first, then the others in the order in which they "
    "came.",
    "passed_over": "Paused requests come first: while new ones pass it, one of them may wait for ever.",
}


@grades(
    "5.2",
    "A promise keeps everybody in their slot; its price is blocks that lie idle until the promise is called.",
    within_s=TRIALS_S,
)
def _admission(path: str, choose: random.Random) -> list[Measured]:
    # The blocks of the first end half empty; the second are short, so that slots run out before blocks do.
    alike = ([SimulatedRequest(30, 100, 100)] * 12, [SimulatedRequest(20, 8, 8)] * 12)
    trials = [Simulation(requests, NUM_BLOCKS, SHORT_ITERATIONS) for requests in alike]
    trials += _trials(choose, SHORT_ITERATIONS)
    beside = simulate_scheduler.beside(path, trials, GuaranteedNoEvict(), PROMISES)
    return [
        beside.measured("pauses", exactly=0),
        beside.measured("overtaken", "requests that a later one overtook", exactly=0),
        beside.measured("iterations", at_most=beside.course.iterations),
        beside.measured("too_soon", "requests let in before there was room for their prompts", exactly=0),
        beside.measured("p99", P99, at_most=beside.course.p99),
    ]


@grades(
    "5.3",
    "The cheapest pause is the one that never comes: leave running requests some room to grow, and pause the one that "
    "loses least.",
    keeps="scheduler",
    within_s=TRIALS_S,
)
def _eviction(path: str, choose: random.Random) -> list[Measured]:
    trials = _trials(choose, LIMITS)
    courses = load(COURSES_OWN["scheduler"]).Scheduler()
    mine, best, promises, tight = (
        counted(each, trials) for each in (OwnScheduler(path), courses, GuaranteedNoEvict(), MaxUtilization())
    )

    def points(counts: Counts) -> float:
        return counts.iterations / tight.iterations + counts.twice / tight.twice

    beside_tight = Compared(mine, best, tight, PAUSES, "max_utilization")
    return [
        beside_tight.measured("iterations", at_most=int(MOST_ITERATIONS * tight.iterations)),
        beside_tight.measured("twice", "tokens computed twice", at_most=int(MOST_TWICE * tight.twice)),
        beside_tight.measured("p99", P99, at_most=promises.p99),
        beside_tight.measured("passed_over", "requests let in before one that was paused", exactly=0),
        Measured(
            "points, fewer is better",
            points(mine),
            course=points(best),
            nothing=points(tight),
            nothing_is=beside_tight.nothing_is,
        ),
    ]


def _trials(choose: random.Random, limits: BuildConfig) -> list[Simulation]:
    """Answers as long as they may be, answers that end early, requests that come one after the other: each twice."""
    lengths, number = (45, 70, 130, 190), 20

    def whole() -> SimulatedRequest:
        answer = choose.choice((40, 70, 110, 170))
        return SimulatedRequest(choose.choice(lengths), answer, answer)

    def early() -> SimulatedRequest:
        return SimulatedRequest(choose.choice((36, 45, 70)), 256, choose.choice((5, 8, 8, 12, 20, 40, 130)))

    def spread() -> SimulatedRequest:
        return SimulatedRequest(choose.choice(lengths), 170, choose.choice((20, 40, 110, 170)), choose.randrange(300))

    return [Simulation([make() for _ in range(number)], NUM_BLOCKS, limits) for make in (whole, early, spread) * 2]
