"""Lab 05: a cap for what clients ask for, prompts in parts for readers, and a scheduler for a small cache."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from inflight.engine.own.part import PartError
from inflight.engine.own.plan_rules import COMPUTED_NOTHING
from inflight.engine.own.scheduler import OwnScheduler
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Now, Plan, Scheduler
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import SimulatedRequest, Simulation
from inflight.notebook.checks import grades
from inflight.notebook.checks.answers import load
from inflight.notebook.checks.findings import Case, Compared, Finding, Measured, asked, told
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.notebook.checks.simulate_scheduler import counted

NUM_BLOCKS = 32
LIMITS = BuildConfig(max_input_len=512, max_seq_len=1024)
TRIALS_S = 30  # for all trials of a learner's scheduler: it takes two or three
MOST_ITERATIONS = 1.15  # of the course's; promises need 1.3
MOST_TWICE = 0.6  # of max_utilization's; one block in reserve leaves 0.67


# A cap on max_tokens --------------------------------------------------------------------------------------------------


@grades("5.1", "What a client asks for to be safe is taken from the requests that wait: a cap gives most of it back.")
def _capped(cap: Callable, choose: random.Random) -> Finding:
    days = [
        ([(40, 200, answer) for answer in range(1, 101)], 32),
        ([(30, 34, 2)] * 60 + [(40, 400, 50)] * 140, 16),  # some ask for less than the cap
        ([(20, 60, 20)] * 39 + [(20, 60, 60)], 32),  # of forty, all
    ]
    for number in (40, 100, 150, 200, 300, 400):
        most = [choose.randrange(20, 500) for _ in range(number)]
        day = [(choose.randrange(10, 300), each, min(each, int(choose.lognormvariate(4, 1)) + 1)) for each in most]
        days.append((day, choose.choice((16, 32, 64))))
    return asked(cap, [_of_a_day(day, size) for day, size in days])


APART = "The answer begins in the prompt's last block: add the tokens, then round up."


def _of_a_day(day: list[tuple[int, int, int]], size: int) -> Case:
    answers = sorted(answer for *_, answer in day)
    right = answers[-(-99 * len(day) // 100) - 1]

    def fewer(with_cap: Callable[[int, int], int]) -> int:
        """Blocks fewer than without a cap."""
        return sum(ceil((prompt + most) / size) - with_cap(prompt, most) for prompt, most, _ in day)

    ideas = told(
        "For each request count the blocks of its prompt and max_tokens, with the cap and without.",
        ([right, fewer(lambda prompt, _: ceil((prompt + right) / size))],
         "A request that asks for less than the cap goes on asking for less."),
        ([right, fewer(lambda prompt, most: ceil(prompt / size) + ceil(min(most, right) / size))],
         APART),
        ([right, sum(ceil(most / size) - ceil(min(most, right) / size) for _, most, _ in day)], APART),
    )  # fmt: skip

    def hint(got: object) -> str:
        if not (isinstance(got, list) and len(got) == 2 and all(isinstance(each, int) for each in got)):
            return "Two whole numbers are wanted, the cap and the blocks."
        whole = sum(answer <= got[0] for answer in answers)
        if got[0] != right:
            smaller = " A smaller cap does, too." if got[0] > right else ""
            return f"With a cap of {got[0]:,}, {whole} of the {len(day)} answers come whole.{smaller}"
        return ideas(got)

    return Case((day, size), [right, fewer(lambda prompt, most: ceil((prompt + min(most, right)) / size))], hint)


# Schedulers -----------------------------------------------------------------------------------------------------------

P99 = "P99 of the latency, in iterations"
BESIDE_READERS = 128  # tokens in an iteration
READERS = {
    "longest": "Somebody reads while a running request has begun its answer: then the bound is for all tokens of the "
    "iteration, the answers' too.",
    "gap": "Each answer under way gets its token in every iteration.",
    "until_first": "While nobody reads, a prompt may take all that the engine computes in an iteration; and it starts "
    "as soon as it fits.",
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


class _Bounded(GuaranteedNoEvict):
    """The lecture's: the bound holds in every iteration."""

    def schedule(self, now: Now) -> Plan:
        return super().schedule(replace(now, max_num_tokens=BESIDE_READERS))


class _BoundedForReaders(GuaranteedNoEvict):
    """The course's: the bound holds in iterations with an answer under way."""

    def schedule(self, now: Now) -> Plan:
        if any(one.answer_tokens for one in now.running):
            now = replace(now, max_num_tokens=BESIDE_READERS)
        return super().schedule(now)


@dataclass
class _Reading:
    """Counts of a scheduler over all trials."""

    longest: int = 0  # most tokens in an iteration in which an answer was under way
    gap: int = 0  # most iterations from a token of an answer to its next
    until_first: int = 0  # iterations from arrival to first token, of all requests together


@grades(
    "5.2",
    "A bound protects those who read: where nobody does, a prompt in parts only comes later.",
    within_s=TRIALS_S,
)
def _in_parts(path: str, choose: random.Random) -> list[Measured]:
    limits = BuildConfig(max_input_len=1024, max_seq_len=1536, max_num_tokens=512)
    trials = []
    for apart in 60, 600, 6000:  # iterations in which 24 requests come
        prompts = [choose.choice((20, 60, 300, 500, 900)) for _ in range(24)]
        answers = [choose.choice((1, 4, 20, 60)) for _ in prompts]
        trial = [SimulatedRequest(each, 60, end, choose.randrange(apart)) for each, end in zip(prompts, answers)]
        trials.append(Simulation(trial, 512, limits, chunked_context=True))
    each = (_read(one, trials) for one in (OwnScheduler(path), _BoundedForReaders(), _Bounded()))
    beside = Compared(*each, READERS, "the lecture's")
    return [
        beside.measured("longest", "tokens in the longest iteration of a reader", at_most=BESIDE_READERS),
        beside.measured("gap", "iterations from a reader's token to the next", at_most=1),
        beside.measured("until_first", "iterations until the first tokens", at_most=beside.course.until_first),
    ]


def _read(scheduler: Scheduler, trials: list[Simulation]) -> _Reading:
    """Play the trials, and count; raises as `simulate_scheduler.counted`."""
    counts = _Reading()
    for trial in trials:
        try:
            _add(counts, trial, scheduler)
        except PartError as error:
            if error.code == COMPUTED_NOTHING and not counts.until_first:
                raise NotImplementedError from error
            raise
    return counts


def _add(counts: _Reading, trial: Simulation, scheduler: Scheduler) -> None:
    last_token: dict[int, int] = {}  # of each answer under way: its iteration
    for iteration in trial.run(scheduler):
        if last_token.keys() & set(iteration.running):
            counts.longest = max(counts.longest, iteration.num_tokens)
        for sequence in iteration.chunks:
            if sequence.answer and sequence.num_pending == 1:  # it has got a token
                if sequence.id in last_token:
                    counts.gap = max(counts.gap, iteration.number - last_token[sequence.id])
                else:
                    counts.until_first += iteration.number - trial.requests[sequence.id - 1].arrives
                last_token[sequence.id] = iteration.number
        for number in iteration.finished:
            del last_token[number]


@grades(
    "5.3",
    "The cheapest pause is the one that never comes: leave running requests some room to grow.",
    keeps="scheduler",
    within_s=TRIALS_S,
)
def _eviction(path: str, choose: random.Random) -> list[Measured]:
    trials = _trials(choose)
    courses = load(COURSES_OWN["scheduler"]).Scheduler()
    mine, best, promises, tight = (
        counted(each, trials) for each in (OwnScheduler(path), courses, GuaranteedNoEvict(), MaxUtilization())
    )

    beside_tight = Compared(mine, best, tight, PAUSES, "max_utilization")
    return [
        beside_tight.measured("iterations", at_most=int(MOST_ITERATIONS * best.iterations)),
        beside_tight.measured("twice", "tokens computed twice", at_most=int(MOST_TWICE * tight.twice)),
        beside_tight.measured("p99", P99, at_most=promises.p99),
        beside_tight.measured("passed_over", "requests let in before one that was paused", exactly=0),
    ]


def _trials(choose: random.Random) -> list[Simulation]:
    """Answers as long as they may be, answers that end early, requests that come one after another: each six times."""
    lengths, number = (45, 70, 130, 190), 20

    def whole() -> SimulatedRequest:
        answer = choose.choice((40, 70, 110, 170))
        return SimulatedRequest(choose.choice(lengths), answer, answer)

    def early() -> SimulatedRequest:
        return SimulatedRequest(choose.choice((36, 45, 70)), 256, choose.choice((5, 8, 8, 12, 20, 40, 130)))

    def spread() -> SimulatedRequest:
        return SimulatedRequest(choose.choice(lengths), 170, choose.choice((20, 40, 110, 170)), choose.randrange(300))

    return [Simulation([make() for _ in range(number)], NUM_BLOCKS, LIMITS) for make in (whole, early, spread) * 6]
