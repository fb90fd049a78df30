"""A scheduler on trial: requests through the engine's own bookkeeping, without a model, a thread or a clock.

    requests = [TrialRequest(prompt_tokens=45, max_answer_tokens=110, answer_tokens=20)] * 12
    trial(GuaranteedNoEvict(), requests, num_blocks=32, limits=BuildConfig()).iterations

Everything is counted in iterations and tokens, so the same requests give the same figures on every machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as Line
from dataclasses import dataclass

import numpy as np

from inflight.engine.config import BuildConfig, Request
from inflight.engine.kv_cache import BlockManager
from inflight.engine.plan_rules import SchedulerError, plan_of
from inflight.engine.scheduler import EMPTY_PLANS, Scheduler
from inflight.engine.sequences import Sequence, Sequences

TOKEN = 0  # what all prompts and answers are made of


@dataclass(frozen=True)
class TrialRequest:
    """A request whose answer's end is known to us, and to no scheduler.

    Attributes
    ----------
    prompt_tokens, max_answer_tokens : int
        What a scheduler sees.
    answer_tokens : int
        Where the answer ends; at most `max_answer_tokens`.
    arrives : int
        Iterations before it comes.
    """

    prompt_tokens: int
    max_answer_tokens: int
    answer_tokens: int
    arrives: int = 0


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes
    ----------
    iterations : int
        Until the last answer was complete.
    computed, twice : int
        Tokens computed in all, and those of them that had been computed before.
    pauses : int
        How often a request was paused.
    latencies : list of int
        Of each request, iterations from its arrival to its last token.
    """

    iterations: int
    computed: int
    twice: int
    pauses: int
    latencies: list[int]

    @property
    def p99(self) -> int:
        """The 99th percentile of the latencies, in iterations."""
        return int(np.quantile(self.latencies, 0.99, method="higher"))


def trial(
    scheduler: Scheduler,
    requests: Line[TrialRequest],
    num_blocks: int,
    limits: BuildConfig,
    within_s: float = math.inf,
) -> Trial:
    """Let `scheduler` serve `requests` until every answer is complete.

    Raises
    ------
    SchedulerError
        It broke a rule, failed, left requests waiting for ever, or did not finish within `within_s`.
    """
    sequences = Sequences(BlockManager(num_blocks, limits.tokens_per_block), limits, chunked_context=False, reuse=False)
    coming = sorted(enumerate(requests, 1), key=lambda numbered: numbered[1].arrives)
    ends = {number: request.answer_tokens for number, request in enumerate(requests, 1)}
    iterations = num_empty = computed = pauses = 0
    finished: dict[int, int] = {}
    deadline = time.monotonic() + within_s
    while len(finished) < len(requests):
        if not (sequences.waiting or sequences.running or sequences.paused):
            iterations = max(iterations, coming[0][1].arrives)  # an idle engine makes no iterations
        while coming and coming[0][1].arrives <= iterations:
            number, request = coming.pop(0)
            prompt = [TOKEN] * request.prompt_tokens
            sequences.waiting.append(Sequence(number, Request(prompt, request.max_answer_tokens)))
        plan = plan_of(scheduler, sequences.now())
        chunks = sequences.carry_out(plan)
        iterations += 1
        pauses += len(plan.pause)
        for sequence, chunk in chunks.items():
            computed += len(chunk.token_ids)
            sequences.computed(sequence, chunk)
            if sequence.num_pending:
                continue
            sequence.answer.append(TOKEN)
            if len(sequence.answer) == ends[sequence.id]:
                sequences.remove(sequence)
                finished[sequence.id] = iterations
        num_empty = 0 if chunks else num_empty + 1
        _check_progress(scheduler, sequences, num_empty, deadline)
    once = sum(request.prompt_tokens + request.answer_tokens - 1 for request in requests)
    latencies = [finished[number] - request.arrives for number, request in enumerate(requests, 1)]
    return Trial(iterations, computed, computed - once, pauses, latencies)


def _check_progress(scheduler: Scheduler, sequences: Sequences, num_empty: int, deadline: float) -> None:
    place = getattr(scheduler, "place", type(scheduler).__name__)
    if num_empty == EMPTY_PLANS:
        left = [line[0].id for line in (sequences.running, sequences.paused, sequences.waiting) if line]
        raise SchedulerError(
            f"{place}: schedule() computed nothing {EMPTY_PLANS} times in a row, and request {left[0]} waits."
        )
    if time.monotonic() > deadline:
        raise SchedulerError(
            f"{place}: schedule() takes too long: the trial was ended before every answer was complete."
        )
