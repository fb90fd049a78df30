"""An engine without a model, a thread or a clock: its own scheduler, blocks and bookkeeping, iteration by iteration.

    requests = [SimulatedRequest(prompt_tokens=45, max_answer_tokens=110, answer_tokens=20)] * 12
    trial = Simulation(requests, num_blocks=32, limits=BuildConfig())
    for iteration in trial.run(GuaranteedNoEvict()):
        print(iteration.number, iteration.plan)

Everything is counted in iterations and tokens, so the same requests give the same figures on every machine. Times,
pictures and grades are made from the iterations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from inflight.engine.kv_cache import BlockManager
from inflight.engine.messages import Chunk, Request
from inflight.engine.own.plan_rules import COMPUTED_NOTHING, SchedulerError, enforce, place
from inflight.engine.scheduler import EMPTY_PLANS, Plan, Scheduler
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import BuildConfig

TOKEN = 1  # all answers are made of this token
MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class Iteration:
    """One iteration of a trial.

    Attributes
    ----------
    number : int
        From 1.
    waiting, running, paused : tuple of int
        Ids of those that waited, ran and were paused before the plan, in the order in which they came, were admitted or
        were paused.
    plan : Plan
    chunks : dict of Sequence to Chunk
        What each sequence computed.
    finished : list of int
        Ids of those whose answer was complete after it.
    blocks_used : int
        KV cache blocks held by those that ran in it.
    """

    number: int
    waiting: tuple[int, ...]
    running: tuple[int, ...]
    paused: tuple[int, ...]
    plan: Plan
    chunks: dict[Sequence, Chunk]
    finished: list[int]
    blocks_used: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens that were computed."""
        return sum(len(chunk.token_ids) for chunk in self.chunks.values())


def simulate(
    scheduler: Scheduler,
    sequences: Sequences,
    coming: Iterable[tuple[int, Sequence]] = (),
    ends: Mapping[int, int] | None = None,
) -> Iterator[Iteration]:
    """Let `scheduler` serve until nobody waits, runs or is paused. Sequences may be added between two iterations.

    Parameters
    ----------
    sequences : Sequences
        Those that are there from the start.
    coming : iterable of (int, Sequence)
        Those that come later, each after so many iterations; in this order.
    ends : mapping of int to int, optional
        By id, the tokens after which an answer ends, where that is before its limit. No scheduler knows it.

    Raises
    ------
    SchedulerError
        It broke a rule, failed, left requests waiting for ever, or is not done after `MOST_ITERATIONS` plans.
    """
    line, ends = deque(coming), ends or {}
    num_done = num_empty = 0
    for _ in range(MOST_ITERATIONS):
        if not sequences and line:
            num_done = max(num_done, line[0][0])  # an idle engine makes no iterations
        while line and line[0][0] <= num_done:
            sequences.add(line.popleft()[1])
        if not sequences:
            return
        now = sequences.now()
        plan = scheduler.schedule(now)
        enforce(plan, now, scheduler)
        before = tuple(sequences.waiting), tuple(sequences.running), tuple(sequences.paused)
        chunks = sequences.carry_out(plan)
        blocks_used = sequences.blocks.num_used
        num_done += 1
        yield Iteration(num_done, *before, plan, chunks, _give_tokens(sequences, chunks, ends), blocks_used)
        num_empty = 0 if chunks else num_empty + 1
        if num_empty == EMPTY_PLANS:
            left = next(iter(sequences)).id
            does = "is paused" if left in sequences.paused else "waits"
            raise SchedulerError(
                f"{place(scheduler)}: schedule() computed nothing {EMPTY_PLANS} times in a row, and request {left} "
                f"{does}.",
                code=COMPUTED_NOTHING,
            )
    raise SchedulerError(f"{place(scheduler)}: after {MOST_ITERATIONS:,} plans not every answer is complete.")


def _give_tokens(sequences: Sequences, chunks: dict[Sequence, Chunk], ends: Mapping[int, int]) -> list[int]:
    """Give a token to each request whose known tokens are all computed; return who finished."""
    finished = []
    for sequence, chunk in chunks.items():
        sequences.computed(sequence, len(chunk.token_ids))
        if sequence.num_pending:
            continue
        if sequence.add(TOKEN) or len(sequence.answer) == ends.get(sequence.id):
            sequences.remove(sequence)
            finished.append(sequence.id)
    return finished


@dataclass(frozen=True)
class SimulatedRequest:
    """A request whose lengths are known.

    Attributes
    ----------
    prompt_tokens, max_answer_tokens : int
        What a scheduler sees.
    answer_tokens : int
        Where the answer ends, at most `max_answer_tokens`; no scheduler sees it.
    arrives : int
        Iterations before it comes.
    """

    prompt_tokens: int
    max_answer_tokens: int
    answer_tokens: int
    arrives: int = 0


@dataclass(frozen=True)
class Simulation:
    """Requests, numbered from 1, and the engine that they come to."""

    requests: list[SimulatedRequest]
    num_blocks: int
    limits: BuildConfig
    chunked_context: bool = False
    reuse: bool = False

    def run(self, scheduler: Scheduler) -> Iterator[Iteration]:
        """Yield every iteration until the last answer is complete; see `simulate`."""
        blocks = BlockManager(self.num_blocks, self.limits.tokens_per_block)
        sequences = Sequences(blocks, self.limits, self.chunked_context, self.reuse)
        numbered = sorted(enumerate(self.requests, 1), key=lambda each: each[1].arrives)
        coming = (
            (asked.arrives, Sequence(number, Request([number] * asked.prompt_tokens, asked.max_answer_tokens)))
            for number, asked in numbered
        )
        return simulate(scheduler, sequences, coming, {number: asked.answer_tokens for number, asked in numbered})

    def counts(self, iterations: Iterable[Iteration]) -> SchedulerCounts:
        """Return the counts of its iterations."""
        number = num_tokens = pauses = 0
        latencies: dict[int, int] = {}
        for iteration in iterations:
            number = iteration.number
            num_tokens += iteration.num_tokens
            pauses += len(iteration.plan.pause)
            latencies |= {each: number - self.requests[each - 1].arrives for each in iteration.finished}
        once = sum(asked.prompt_tokens + asked.answer_tokens - 1 for asked in self.requests)
        return SchedulerCounts(number, num_tokens - once, pauses, [latencies[each] for each in sorted(latencies)])


@dataclass(frozen=True)
class SchedulerCounts:
    """Counts of a scheduler's trial.

    Attributes
    ----------
    iterations : int
        Until the last answer was complete.
    twice : int
        Tokens computed that had been computed before.
    pauses : int
        How often a request was paused.
    latencies : list of int
        Iterations from each request's arrival to its last token.
    """

    iterations: int
    twice: int
    pauses: int
    latencies: list[int]
