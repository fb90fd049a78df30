"""A run without a model and without waiting: the engine's own scheduler and KV cache, and a clock that counts prices.

    run = rehearse(asked, build_config, executor_config, PRICES)
    run.requests["ttft_ms"]

Who is admitted, computed, paused, and which blocks are found again, is decided by the same code as in the engine.
Only the time is not measured: an iteration takes what its answers and its prompt tokens cost. So the result depends on
the settings and the requests alone, and is the same on a busy machine as on an idle one. What it leaves out: text
models, messages, the network, and whatever else the machine does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Several
from dataclasses import dataclass

import pandas as pd

from inflight.bench.load import COLUMNS, Run
from inflight.engine.config import BuildConfig, Chunk, ExecutorConfig, Request
from inflight.engine.kv_cache import BlockManager
from inflight.engine.own_scheduler import accepted
from inflight.engine.play import play
from inflight.engine.scheduler import Scheduler, built_in
from inflight.engine.sequences import Sequence, Sequences


@dataclass(frozen=True)
class Prices:
    """Milliseconds: of an iteration, of each answer in it, and of each token of a prompt in it."""

    iteration_ms: float
    answer_ms: float
    prompt_token_ms: float

    def of(self, chunks: Several[Chunk]) -> float:
        """What an iteration with these chunks takes."""
        prompts = sum(len(chunk.token_ids) for chunk in chunks if len(chunk.token_ids) > 1)
        answers = sum(len(chunk.token_ids) == 1 for chunk in chunks)
        return self.iteration_ms + answers * self.answer_ms + prompts * self.prompt_token_ms

    def times(self, factor: float) -> Prices:
        """The prices of a machine that is so many times slower."""
        return Prices(self.iteration_ms * factor, self.answer_ms * factor, self.prompt_token_ms * factor)


# Two cores of an Intel Xeon with AMX, the course's model: as lesson 04 reads them from an iteration log.
PRICES = Prices(iteration_ms=15.0, answer_ms=1.2, prompt_token_ms=0.9)


@dataclass(frozen=True)
class Asked:
    """One request: token ids of its prompt, tokens of its answer, and when it comes, in seconds."""

    input_ids: list[int]
    max_tokens: int
    at_s: float


def rehearse(
    asked: Several[Asked], build: BuildConfig, config: ExecutorConfig, prices: Prices, allotted_ms: float = 0
) -> Run:
    """Play a run to its end.

    Parameters
    ----------
    allotted_ms : float
        A request that takes longer, its wait included, ends with an error; 0: none does.

    Returns
    -------
    Run
        As a load on a server gives it; a request that found the queue full has that as its error.

    Raises
    ------
    CourseError
        The cache is too small for one longest request; a prompt fits into no iteration; the scheduler breaks a rule or
        leaves requests waiting for ever.
    """
    config.check_prompts_fit(build)
    blocks = BlockManager(config.num_blocks(build), build.tokens_per_block)
    sequences = Sequences(blocks, build, config.enable_chunked_context, config.enable_kv_cache_reuse)
    scheduler = accepted(config, build) if config.scheduler_path else built_in(config)
    return _play(asked, sequences, scheduler, config.max_queue_size, prices, allotted_ms)


def _play(
    asked: Several[Asked],
    sequences: Sequences,
    scheduler: Scheduler,
    max_queue_size: int,
    prices: Prices,
    allotted_ms: float,
) -> Run:
    rows = [_Row(number, request) for number, request in enumerate(asked)]
    coming = deque(sorted(range(len(asked)), key=lambda number: asked[number].at_s))

    def come_and_go(now_s: float) -> None:
        """Who is due by now waits, or finds the queue full; whose time is over leaves."""
        while coming and asked[coming[0]].at_s <= now_s:
            row = rows[coming.popleft()]
            if max_queue_size and len(sequences.waiting) >= max_queue_size:
                row.fail("The queue is full.", now_s)
            else:
                sequences.add(Sequence(row.number, Request(row.asked.input_ids, row.asked.max_tokens)))
        if allotted_ms:
            for sequence in sequences:
                if 1000 * (now_s - asked[sequence.id].at_s) > allotted_ms:
                    sequences.remove(sequence)
                    rows[sequence.id].fail("Its time is over.", now_s)

    now_s = 0.0
    while coming:
        now_s = max(now_s, asked[coming[0]].at_s)  # until then the engine is idle
        come_and_go(now_s)
        for iteration in play(scheduler, sequences):
            if iteration.chunks:
                now_s += prices.of(list(iteration.chunks.values())) / 1000
            elif coming:  # the scheduler waits for more
                now_s = max(now_s, asked[coming[0]].at_s)
            for sequence in iteration.chunks:
                times = rows[sequence.id].answers_at_s
                if len(sequence.answer) > len(times):
                    times.append(now_s)
            come_and_go(now_s)
    return Run(pd.DataFrame([row.as_dict() for row in rows], columns=COLUMNS), 0.0)


class _Row:
    """What becomes of one request."""

    def __init__(self, number: int, asked: Asked):
        self.number, self.asked = number, asked
        self.answers_at_s: list[float] = []
        self.error, self.ended_at_s = "", 0.0

    def fail(self, error: str, now_s: float) -> None:
        self.error, self.ended_at_s = error, now_s

    def as_dict(self) -> dict:
        common = {
            "request": self.number,
            "due_s": self.asked.at_s,
            "sent_s": self.asked.at_s,
            "input_len": len(self.asked.input_ids),
            "max_tokens": self.asked.max_tokens,
        }
        if self.error:
            return {**common, "last_s": self.ended_at_s, "output_len": 0, "error": self.error}
        first, last, number = self.answers_at_s[0], self.answers_at_s[-1], len(self.answers_at_s)
        return {
            **common,
            "first_s": first,
            "last_s": last,
            "output_len": number,
            "ttft_ms": 1000 * (first - self.asked.at_s),
            "itl_ms": 1000 * (last - first) / (number - 1) if number > 1 else float("nan"),
            "latency_ms": 1000 * (last - self.asked.at_s),
            "error": "",
        }
