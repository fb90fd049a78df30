"""A run without a model and without waiting: the engine's own scheduler and KV cache, and a clock that adds up prices.

    rows = play(asked, build_config, executor_config, Prices(15.0, 1.2, 0.9))
    rows["ttft_ms"]

Who is admitted, computed and paused, and which blocks are found again, is decided by the same code as in the engine.
Only the time is not measured: an iteration takes what its answers and its prompt tokens cost. So the result depends on
the settings, the requests and the prices alone. It leaves out the text models, the messages, the client on the same
cores, and whatever else the machine does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass

import pandas as pd

from inflight.bench.load import COLUMNS
from inflight.engine.kv_cache import BlockManager
from inflight.engine.messages import Chunk, Request
from inflight.engine.own.scheduler import accepted
from inflight.engine.scheduler import Now, built_in
from inflight.engine.sequences import Sequence, Sequences
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import simulate


@dataclass(frozen=True)
class Prices:
    """Milliseconds: of an iteration, of each answer in it, and of each token of a prompt in it."""

    iteration_ms: float
    answer_ms: float
    prompt_token_ms: float

    def of(self, chunks: Several[Chunk]) -> float:
        """Return the milliseconds of an iteration with these chunks."""
        prompts = sum(len(chunk.token_ids) for chunk in chunks if chunk.is_context)
        return self.of_counts(1, sum(not chunk.is_context for chunk in chunks), prompts)

    def of_counts(self, iterations: int, answers: int, prompt_tokens: int) -> float:
        """Return the milliseconds of so many iterations, with so many answers and tokens of prompts in all of them."""
        return iterations * self.iteration_ms + answers * self.answer_ms + prompt_tokens * self.prompt_token_ms

    def times(self, factor: float) -> Prices:
        """The prices of a machine that is so many times slower."""
        return Prices(self.iteration_ms * factor, self.answer_ms * factor, self.prompt_token_ms * factor)


@dataclass(frozen=True)
class TokenRequest:
    """One request: token ids of its prompt, tokens of its answer, and when it comes, in seconds."""

    input_ids: list[int]
    max_tokens: int
    at_s: float


def play(
    asked: Several[TokenRequest],
    build: BuildConfig,
    config: ExecutorConfig,
    prices: Prices,
    allotted_ms: float = 0,
    let_in: Callable[[Now], bool] | None = None,
) -> pd.DataFrame:
    """Play a run to its end.

    Parameters
    ----------
    allotted_ms : float
        A request that takes longer, its wait included, ends with an error; 0: none does.
    let_in : callable, optional
        Asked when a request has come, which is the last of `now.waiting`; where it says no, the request is refused.

    Returns
    -------
    DataFrame
        A row for each request: the columns of `load.Run.requests`. One that found the queue
        full has that as its error.

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
    coming = deque(sorted(range(len(asked)), key=lambda number: asked[number].at_s))
    tokens_at_s: list[list[float]] = [[] for _ in asked]  # of each request, when its tokens came
    failed: dict[int, tuple[str, float]] = {}
    now_s = 0.0

    def come_and_go() -> None:
        """Requests that are due by now wait, or find the queue full; those whose time is over leave."""
        while coming and asked[coming[0]].at_s <= now_s:
            number = coming.popleft()
            if config.max_queue_size and len(sequences.waiting) >= config.max_queue_size:
                failed[number] = "The queue is full.", now_s
                continue
            sequence = Sequence(number, Request(asked[number].input_ids, asked[number].max_tokens))
            sequences.add(sequence)
            if let_in and not let_in(sequences.now()):
                sequences.remove(sequence)
                failed[number] = "It was refused.", now_s
        for sequence in list(sequences) if allotted_ms else []:
            if 1000 * (now_s - asked[sequence.id].at_s) > allotted_ms:
                sequences.remove(sequence)
                failed[sequence.id] = "Its time is over.", now_s

    while coming:
        now_s = max(now_s, asked[coming[0]].at_s)  # until then the engine is idle
        come_and_go()
        for iteration in simulate(scheduler, sequences):
            if iteration.chunks:
                now_s += prices.of(list(iteration.chunks.values())) / 1000
            elif coming:  # the scheduler waits for more
                now_s = max(now_s, asked[coming[0]].at_s)
            for sequence in iteration.chunks:
                if len(sequence.answer) > len(tokens_at_s[sequence.id]):
                    tokens_at_s[sequence.id].append(now_s)
            come_and_go()
    rows = [_row(number, request, tokens_at_s[number], failed.get(number)) for number, request in enumerate(asked)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(number: int, asked: TokenRequest, tokens_at_s: list[float], failed: tuple[str, float] | None) -> dict:
    row: dict = {"request": number, "due_s": asked.at_s, "sent_s": asked.at_s, "input_len": len(asked.input_ids)}
    row |= {"max_tokens": asked.max_tokens, "output_len": 0, "error": ""}
    if failed:
        error, ended_s = failed
        return row | {"error": error, "last_s": ended_s}
    first_s, last_s, gaps = tokens_at_s[0], tokens_at_s[-1], len(tokens_at_s) - 1
    return row | {
        "first_s": first_s,
        "last_s": last_s,
        "output_len": len(tokens_at_s),
        "ttft_ms": 1000 * (first_s - asked.at_s),
        "tpot_ms": 1000 * (last_s - first_s) / gaps if gaps else float("nan"),
        "latency_ms": 1000 * (last_s - asked.at_s),
    }
