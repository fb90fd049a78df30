"""The lecture's four users at two other engines: continuous batching of `transformers`, and the course's own.

with rivals(checkpoint_dir, prompts, wanted=48, apart=4) as others:
    others["transformers"].run()                            # 60 or 61 passes
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple


class Rival(NamedTuple):
    """A server of the same users.

    Attributes
    ----------
    run : callable
        Forward passes that all answers took.
    page : int
        Positions of the smallest piece of its cache.
    """

    run: Callable[[], int]
    page: int


@contextmanager
def rivals(checkpoint_dir: str | Path, prompts: Sequence[str], wanted: int, apart: int) -> Iterator[dict[str, Rival]]:
    """Start both, and end them with the block.

    Parameters
    ----------
    checkpoint_dir : path
        Of the GPT-2 that `transformers` serves.
    prompts : sequence of str
        One a user.
    wanted : int
        Tokens of each answer.
    apart : int
        Each user sends when the first has so many tokens more than at the one before.
    """
    import transformers

    from inflight import engine
    from inflight.checkpoint import fetch, load_tokenizer
    from inflight.models import gpt2_network

    def follow(send: Callable[[int], object], receive: Callable[[], int]) -> None:
        num_tokens, num_sent = [0] * len(prompts), 0
        while min(num_tokens) < wanted:
            while num_sent < len(prompts) and num_tokens[0] >= num_sent * apart:
                send(num_sent)
                num_sent += 1
            num_tokens[receive()] += 1

    gpt2, tokenizer = gpt2_network.pretrained(checkpoint_dir, "float32", "cpu"), load_tokenizer(checkpoint_dir)
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    manager = gpt2.init_continuous_batching(
        transformers.GenerationConfig(max_new_tokens=wanted, eos_token_id=-1),
        transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=256),
    )
    with ExitStack() as ending:
        manager.start()
        ending.callback(manager.stop)

        def by_transformers() -> int:
            before = manager.current_batch
            follow(
                lambda user: manager.add_request(ids[user], str(user), streaming=True),
                lambda: int(manager.get_result(timeout=60).request_id),
            )
            return manager.current_batch - before

        engine_dir = engine.cached(fetch())
        executor, came = engine.Executor.load(engine_dir), queue.SimpleQueue[int]()
        ending.callback(executor.shutdown)
        llama_ids = [load_tokenizer(engine_dir).encode(prompt) for prompt in prompts]

        def by_engine() -> int:
            def send(user: int) -> None:
                request = engine.Request(llama_ids[user], wanted, streaming=True)
                executor.enqueue_request(request, lambda response: came.put(user))

            before = executor.snapshot().iteration
            follow(send, came.get)
            return executor.snapshot().iteration - before

        page = manager.continuous_batching_config.page_size
        block = engine.read(engine_dir).build_config.tokens_per_block
        yield {"transformers": Rival(by_transformers, page), "engine": Rival(by_engine, block)}
