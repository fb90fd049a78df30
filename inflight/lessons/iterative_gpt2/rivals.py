"""The lecture's four users at two other engines: continuous batching of `transformers`, and the course's own.

with rivals(checkpoint_dir, prompts, wanted=48, apart=4) as others:
    passes, at_s = others["transformers"].run()             # 60 or 61, and when the first user had each token
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple


class Rival(NamedTuple):
    """A server of the same users.

    Attributes
    ----------
    run : callable
        Forward passes that all answers took, and seconds at which the first user had each token.
    page : int
        Positions of the smallest piece of its cache.
    millions : float
        Parameters of its model.
    """

    run: Callable[[], tuple[int, list[float]]]
    page: int
    millions: float


@contextmanager
def rivals(checkpoint_dir: str | Path, prompts: Sequence[str], wanted: int, apart: int) -> Iterator[dict[str, Rival]]:
    """Start both, and end them with the block: `transformers` computes with one thread, the engine with all cores.

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
    import torch
    import transformers

    from inflight import engine
    from inflight.checkpoint import GgufFile, fetch, load_tokenizer
    from inflight.models import gpt2_network

    def of_first(send: Callable[[int], object], receive: Callable[[], int]) -> list[float]:
        at_s: list[list[float]] = [[] for _ in prompts]
        num_sent = 0
        while min(map(len, at_s)) < wanted:
            while num_sent < len(prompts) and len(at_s[0]) >= num_sent * apart:
                send(num_sent)
                num_sent += 1
            at_s[receive()].append(time.perf_counter())
        return at_s[0]

    torch.set_num_threads(1)
    gpt2, tokenizer = gpt2_network.pretrained(checkpoint_dir, "float32", "cpu"), load_tokenizer(checkpoint_dir)
    ids = [tokenizer.encode(prompt) for prompt in prompts]
    manager = gpt2.init_continuous_batching(
        transformers.GenerationConfig(max_new_tokens=wanted, eos_token_id=-1),
        transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=256),
    )
    with ExitStack() as ending:
        manager.start()
        ending.callback(manager.stop)

        def by_transformers() -> tuple[int, list[float]]:
            before = manager.current_batch
            at_s = of_first(
                lambda user: manager.add_request(ids[user], str(user), streaming=True),
                lambda: int(manager.get_result(timeout=60).request_id),
            )
            return manager.current_batch - before, at_s

        checkpoint = fetch()
        engine_dir = engine.cached(checkpoint)
        executor, came = engine.Executor.load(engine_dir), queue.SimpleQueue[int]()
        ending.callback(executor.shutdown)
        llama_ids = [load_tokenizer(engine_dir).encode(prompt) for prompt in prompts]

        def by_engine() -> tuple[int, list[float]]:
            def send(user: int) -> None:
                request = engine.Request(llama_ids[user], wanted, streaming=True)
                executor.enqueue_request(request, lambda response: came.put(user))

            before = executor.snapshot().iteration
            at_s = of_first(send, came.get)
            return executor.snapshot().iteration - before, at_s

        page = manager.continuous_batching_config.page_size
        block = engine.read(engine_dir).build_config.tokens_per_block
        numbers = sum(tensor["parameters"] for tensor in GgufFile(checkpoint.path).tensor_table())
        yield {
            "transformers": Rival(by_transformers, page, gpt2.num_parameters() / 1e6),
            "engine": Rival(by_engine, block, numbers / 1e6),
        }
