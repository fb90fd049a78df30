"""Lab 05: blocks promised for nothing, the smallest cache that is enough, and two schedulers for one that is not."""

import random
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from inflight.engine.config import BuildConfig
from inflight.engine.own_scheduler import OwnScheduler
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.play import Asked, Iteration, Trial
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Now, Plan, Scheduler
from inflight.notebook.checks import NOT_YET, Beside, Finding, Measured, OneAtATime, grades, near
from inflight.notebook.mine import COURSES_OWN

NUM_BLOCKS = 32
LIMITS = BuildConfig(max_input_len=512, max_seq_len=1024)
SHORT_ITERATIONS = BuildConfig(max_input_len=256, max_seq_len=1024, max_num_tokens=256)  # in which few prompts fit
TRIALS_S = 60  # for all trials of a learner's scheduler: it takes two or three
MOST_COST = 1.15  # counted in blocks it is at most 1.05; the newest, or any other, comes to 1.2 and more
MOST_ITERATIONS, MOST_TWICE = 1.25, 0.65  # of max_utilization's: guaranteed_no_evict needs 1.3 times as many at least


# Blocks ---------------------------------------------------------------------------------------------------------------


@grades(
    "5.1", "What a client asks for to be safe is taken from the requests that wait: cap max_tokens, or do not promise."
)
def _unused(unused: Callable, choose: random.Random) -> Finding:
    count = "For each request count the blocks of prompt and max_tokens, and those of prompt and answer."
    days = [
        ([(32, 32, 31)], 32, "Of the two blocks that were promised both were used, the last one but for one place."),
        ([(40, 88, 20)], 32, "The answer begins in the prompt's last block: add prompt and answer, then round up."),
        ([(20, 12, 10), (20, 492, 10)], 32, "Add up the blocks of the whole day before you divide."),
        ([(20, 60, 4)], 16, "A block has tokens_per_block tokens."),
    ]
    for _ in range(12):
        most = [choose.randrange(20, 400) for _ in range(8)]
        day = [(choose.randrange(10, 300), each, choose.randrange(1, each)) for each in most]
        days.append((day, choose.choice((16, 32, 64)), count))
    for day, size, hint in days:
        share = unused(list(day), size)
        if share is None:
            return NOT_YET
        if not 0 <= share <= 1:
            return f"For {day} your function says {share!r}. A share lies between 0 and 1."
        promised, used = (sum(ceil((row[0] + row[part]) / size) for row in day) for part in (1, 2))
        if not near(share, 1 - used / promised):
            return f"For {day} and blocks of {size} tokens your function says {share!r}. {hint}"
    return None


@grades(
    "5.2", "Sized for the worst evening, a cache makes both policies the same one; most services cannot pay for it."
)
def _smallest_cache(smallest_cache: Callable, choose: random.Random) -> Finding:
    for slots in (1, 2, 4, 8, 8, 8, 16):
        lengths = [(choose.randrange(20, 400), choose.randrange(5, 300)) for _ in range(choose.randrange(1, 14))]
        longest = 32 * choose.randrange(22, 64)
        got = smallest_cache(list(lengths), slots, 32, longest)
        if got is None:
            return NOT_YET
        whole = sorted((ceil((prompt + answer) / 32) for prompt, answer in lengths), reverse=True)
        enough, least = 32 * sum(whole[:slots]), 32 * ceil(longest / 32)
        case = f"{slots} slots, max_seq_len {longest} and {lengths}: with {got} tokens of cache"
        if got < least:
            return f"{case} the engine refuses to load, since one request of max_seq_len does not fit."
        if got < enough:
            return f"{case} a request may have to wait beside a free slot, when the largest ones run together."
        if got > max(enough, least):
            return (
                f"{case} nobody waits beside a free slot, but less is enough: no more run at once than there are slots."
            )
    return None


# Schedulers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Played:
    """What came of all hidden trials together.

    Attributes
    ----------
    iterations, twice, pauses : int
        As `play.Counts` has them.
    p99 : int
        Of the latencies of all requests, in iterations.
    too_soon : int
        Requests let in although their prompts could not be computed in that iteration.
    overtaking : int
        Let in for the first time while somebody who was paused waited on.
    cost : float
        Tokens that those who were paused had, over the fewest that as many of those who ran had.
    """

    iterations: int
    twice: int
    pauses: int
    p99: int
    too_soon: int
    overtaking: int
    cost: float


class _Watched:
    """A scheduler, and what its pauses cost: tokens that were given up, and the fewest that would have done."""

    def __init__(self, scheduler: Scheduler):
        self._scheduler, self.has_admitted, self.given_up, self.fewest = scheduler, False, 0, 0

    def __getattr__(self, name: str):
        return getattr(self._scheduler, name)

    def schedule(self, now: Now) -> Plan:
        plan = self._scheduler.schedule(now)
        if isinstance(plan, Plan):
            tokens = {request.id: request.known_tokens for request in now.running}
            self.has_admitted = self.has_admitted or bool(plan.admit)
            self.given_up += sum(tokens.get(request, 0) for request in plan.pause)
            self.fewest += sum(sorted(tokens.values())[: len(plan.pause)])
        return plan


@grades(
    "5.3",
    "A promise keeps everybody in their slot; its price is blocks that lie idle until the promise is called.",
    within_s=TRIALS_S,
)
def _admission(path: str, choose: random.Random) -> Finding:
    trials = _trials(choose, SHORT_ITERATIONS)
    mine = _played_from(path, trials)
    if not isinstance(mine, _Played):
        return mine
    beside = Beside(mine, *(_played(_Watched(each), trials) for each in (GuaranteedNoEvict(), OneAtATime())))
    return [
        beside.measured(
            "pauses",
            "pauses",
            exactly=0,
            advice="A request that has started must never have to give blocks back: promise for its longest answer.",
        ),
        beside.measured(
            "iterations",
            "iterations",
            at_most=beside.course.iterations,
            advice="Let requests in until a slot, blocks that can be promised, or room in the iteration runs out.",
        ),
        beside.measured(
            "let in before there was room for their prompts",
            "too_soon",
            exactly=0,
            advice="Take each newcomer's pending_tokens off room, and stop at the first that does not fit.",
        ),
        beside.measured(
            "P99 of the latency, in iterations",
            "p99",
            at_most=beside.course.p99,
            advice="First come, first served: stop at the first request that does not fit, or it may wait for ever.",
        ),
    ]


@grades(
    "5.4",
    "The cheapest pause is the one that never comes: leave running requests some room to grow, and pause the one that "
    "loses least.",
    keeps="scheduler",
    within_s=TRIALS_S,
)
def _eviction(path: str, choose: random.Random) -> Finding:
    trials = _trials(choose, LIMITS)
    mine = _played_from(path, trials)
    if not isinstance(mine, _Played):
        return mine
    own = runpy.run_path(str(COURSES_OWN / "scheduler.py"))["Scheduler"]()
    promises, tight, courses = (
        _played(_Watched(each), trials) for each in (GuaranteedNoEvict(), MaxUtilization(), own)
    )

    def points(played: _Played) -> float:
        return played.iterations / tight.iterations + played.twice / tight.twice

    beside_tight, beside_promises = Beside(mine, courses, tight), Beside(mine, courses, promises)
    return [
        beside_promises.measured(
            "iterations",
            "iterations",
            at_most=int(MOST_ITERATIONS * tight.iterations),
            advice="Slots stay empty: let requests in as soon as their next iteration fits, with a little room to "
            "spare, and not only when their longest answer does.",
        ),
        beside_tight.measured(
            "tokens computed twice",
            "twice",
            at_most=int(MOST_TWICE * tight.twice),
            advice="Every pause costs all tokens that its request had. Leave some blocks free for running requests "
            "when you let another one in, and pause one that has few tokens.",
        ),
        beside_tight.measured(
            "P99 of the latency, in iterations",
            "p99",
            at_most=promises.p99,
            advice="A request waits too long: let paused requests back in first, then the others in the order in which "
            "they came.",
        ),
        beside_tight.measured(
            "let in before somebody who was paused",
            "overtaking",
            exactly=0,
            advice="Paused requests come first: while new ones pass it, one of them may wait for ever.",
        ),
        beside_tight.measured(
            "tokens that pauses gave up, over the fewest that would have done",
            "cost",
            at_most=MOST_COST,
            advice="Of those that run, the one with the fewest tokens loses least: neither the newest nor the oldest.",
        ),
        Measured("points, fewer is better", points(mine), course=points(courses), nothing=points(tight)),
    ]


def _trials(choose: random.Random, limits: BuildConfig) -> list[Trial]:
    """Answers as long as they may be, answers that end early, requests that come one after the other: each twice."""
    lengths, number = (45, 70, 130, 190), 20

    def whole() -> Asked:
        answer = choose.choice((40, 70, 110, 170))
        return Asked(choose.choice(lengths), answer, answer)

    def early() -> Asked:
        return Asked(choose.choice((36, 45, 70)), 256, choose.choice((5, 8, 8, 12, 20, 40, 130)))

    def spread() -> Asked:
        return Asked(choose.choice(lengths), 170, choose.choice((20, 40, 110, 170)), choose.randrange(300))

    return [Trial([make() for _ in range(number)], NUM_BLOCKS, limits) for make in (whole, early, spread) * 2]


def _played_from(path: str, trials: list[Trial]) -> _Played | str:
    """What the scheduler in a file makes of the trials; NOT_YET, or a hint when it does not get through them."""
    try:
        scheduler = _Watched(OwnScheduler(path))
        return _played(scheduler, trials)
    except SchedulerError as error:
        return NOT_YET if "computed nothing" in str(error) and not scheduler.has_admitted else str(error)


def _played(scheduler: _Watched, trials: list[Trial]) -> _Played:
    """What a scheduler makes of the trials."""
    played = [list(trial.play(scheduler)) for trial in trials]
    counts = [trial.counts(iterations) for trial, iterations in zip(trials, played)]
    latencies = [iterations for one in counts for iterations in one.latencies]
    every = [iteration for iterations in played for iteration in iterations]
    return _Played(
        sum(one.iterations for one in counts),
        sum(one.twice for one in counts),
        sum(one.pauses for one in counts),
        int(np.quantile(latencies, 0.99, method="higher")),
        sum(len(set(one.plan.admit) - set(one.plan.compute)) for one in every),
        sum(map(_num_overtaking, every)),
        scheduler.given_up / scheduler.fewest if scheduler.fewest else 1.0,
    )


def _num_overtaking(iteration: Iteration) -> int:
    admitted, paused = set(iteration.plan.admit), set(iteration.paused)
    return len(admitted - paused) if paused - admitted else 0
