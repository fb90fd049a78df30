"""Lab 05: the blocks of a request, the smallest cache that is enough, and two schedulers for a cache that is not."""

import random
import runpy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from inflight.engine.config import BuildConfig
from inflight.engine.own_scheduler import OwnScheduler
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.play import Asked, Iteration, Trial
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Now, Plan, Scheduler
from inflight.notebook.checks import NOT_YET, Beside, Finding, Measured, OneAtATime, grades
from inflight.notebook.mine import COURSES_OWN

NUM_BLOCKS = 32
LIMITS = BuildConfig(max_input_len=512, max_seq_len=1024)
SHORT_ITERATIONS = BuildConfig(max_input_len=256, max_seq_len=1024, max_num_tokens=256)  # in which few prompts fit
TRIALS_S = 60  # for all trials of a learner's scheduler: it takes two or three
MOST_COST = 1.15  # counted in blocks it is at most 1.05; the newest, or any other, comes to 1.2 and more
MOST_ITERATIONS, MOST_TWICE = 1.25, 0.65  # of max_utilization's: guaranteed_no_evict needs 1.3 times as many at least


def _full_blocks(tokens: int, tokens_per_block: int) -> int:
    return -(-tokens // tokens_per_block)


# Blocks ---------------------------------------------------------------------------------------------------------------


@grades("5.1", "A request wastes less than one block, however long it is: that is what pages buy.")
def _blocks(blocks: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"the prompt": None, "prompt and answer": None}
    for size in (16, 32, 64, 128):
        # One that fills its blocks, one with a token more, one whose two parts fill blocks together, and any.
        full = size * choose.randrange(1, 9)
        cases = [
            (full, size * choose.randrange(1, 5)),
            (full + 1, choose.randrange(1, size)),
            (size - 1, 1 + size * choose.randrange(1, 5)),
            (choose.randrange(1, 900), choose.randrange(1, 300)),
        ]
        for prompt, answer in cases:
            got = blocks(prompt, answer, size)
            if got is None:
                return NOT_YET
            right = _full_blocks(prompt, size), _full_blocks(prompt + answer, size)
            if not isinstance(got, tuple | list) or len(got) != 2:
                return f"blocks returns {got!r}: give two numbers, those of the prompt and those of both together."
            for part, number, wanted in zip(findings, got, right, strict=True):
                if number != wanted:
                    findings[part] = (
                        f"A prompt of {prompt} and an answer of {answer} tokens, in blocks of {size}: your function "
                        f"says {tuple(got)}, and they take {right}. Round up, and round the sum only once."
                    )
    return findings


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
        whole = sorted((_full_blocks(prompt + answer, 32) for prompt, answer in lengths), reverse=True)
        right = max(sum(whole[:slots]), _full_blocks(longest, 32)) * 32
        case = f"{slots} slots, max_seq_len {longest} and {lengths}"
        if got < right:
            return (
                f"{case}: in {got} tokens of cache a request may have to wait beside an empty slot, or the engine "
                f"refuses to load; {right} are needed."
            )
        if got > right:
            return f"{case}: less than {got} tokens of cache is enough; {right} are."
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
        self._scheduler, self.given_up, self.fewest = scheduler, 0, 0

    def __getattr__(self, name: str):
        return getattr(self._scheduler, name)

    def schedule(self, now: Now) -> Plan:
        plan = self._scheduler.schedule(now)
        if isinstance(plan, Plan) and plan.pause:
            tokens = {request.id: request.known_tokens for request in now.running}
            self.given_up += sum(tokens.get(request, 0) for request in plan.pause)
            self.fewest += sum(sorted(tokens.values())[: len(plan.pause)])
        return plan

    @property
    def cost(self) -> float:
        return self.given_up / self.fewest if self.fewest else 1.0


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
    beside = Beside(mine, *(_played(each, trials) for each in (GuaranteedNoEvict(), OneAtATime())))
    return [
        beside.measured(
            "pauses",
            "pauses",
            exactly=0,
            advice="Whoever is let in must never have to give blocks back: promise for the longest answer.",
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
            advice="Whoever came first joins first: nobody may be overtaken for ever.",
        ),
    ]


@grades(
    "5.4",
    "The cheapest pause is the one that never comes: leave those who run some room to grow, and pause whoever costs "
    "least.",
    keeps="scheduler",
    within_s=TRIALS_S,
)
def _eviction(path: str, choose: random.Random) -> Finding:
    trials = _trials(choose, LIMITS)
    mine = _played_from(path, trials)
    if not isinstance(mine, _Played):
        return mine
    own = runpy.run_path(str(COURSES_OWN / "scheduler.py"))["Scheduler"]()
    promises, tight, courses = (_played(each, trials) for each in (GuaranteedNoEvict(), MaxUtilization(), own))

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
            advice="Every pause costs all tokens that its request had. Leave some blocks free for those who run when "
            "you let somebody in, and pause a request that has few tokens.",
        ),
        beside_tight.measured(
            "P99 of the latency, in iterations",
            "p99",
            at_most=promises.p99,
            advice="Somebody waits too long: let paused requests back in first, and who came first before the others.",
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
            advice="Of those who run, the one with the fewest tokens loses least: neither the newest nor the oldest.",
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
    has_admitted = False
    played: list[list[Iteration]] = []
    try:
        scheduler = _Watched(OwnScheduler(path))
        for trial in trials:
            played.append([])
            for iteration in trial.play(scheduler):
                played[-1].append(iteration)
                has_admitted = has_admitted or bool(iteration.plan.admit)
    except SchedulerError as error:
        return str(error) if has_admitted or "computed nothing" not in str(error) else NOT_YET
    return _together(trials, played, scheduler.cost)


def _played(scheduler: Scheduler, trials: list[Trial]) -> _Played:
    """What a scheduler makes of the trials."""
    watched = _Watched(scheduler)
    played = [list(trial.play(watched)) for trial in trials]
    return _together(trials, played, watched.cost)


def _together(trials: list[Trial], played: list[list[Iteration]], cost: float) -> _Played:
    counts = [trial.counts(iterations) for trial, iterations in zip(trials, played)]
    latencies = [iterations for one in counts for iterations in one.latencies]
    all_iterations = [iteration for iterations in played for iteration in iterations]
    return _Played(
        sum(one.iterations for one in counts),
        sum(one.twice for one in counts),
        sum(one.pauses for one in counts),
        int(np.quantile(latencies, 0.99, method="higher")),
        sum(len(set(one.plan.admit) - set(one.plan.compute)) for one in all_iterations),
        sum(map(_num_overtaking, all_iterations)),
        cost,
    )


def _num_overtaking(iteration: Iteration) -> int:
    admitted, paused = set(iteration.plan.admit), set(iteration.paused)
    return len(admitted - paused) if paused - admitted else 0
