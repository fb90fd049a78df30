"""Lab 05: the blocks of a request, the price of a policy, and the smallest cache that is enough."""

import random
from collections.abc import Callable

import pandas as pd

from inflight.notebook.grading.checker import NOT_YET, grades


def _full_blocks(tokens: int, tokens_per_block: int) -> int:
    return -(-tokens // tokens_per_block)


@grades("5.1")
def _blocks(blocks: Callable) -> str | None:
    for prompt, answer, size in ((100, 220, 32), (33, 31, 32), (32, 32, 32), (1, 1, 32), (500, 12, 64), (130, 1, 128)):
        got = blocks(prompt, answer, size)
        if got is None:
            return NOT_YET
        right = _full_blocks(prompt, size), _full_blocks(prompt + answer, size)
        if tuple(got) != right:
            return (f"A prompt of {prompt} and an answer of {answer} tokens, in blocks of {size}: your function says "
                    f"{tuple(got)}. Round up, and round the sum only once.")  # fmt: skip
    return None


@grades("5.2")
def _price(price: Callable) -> str | None:
    choose = random.Random(5)
    for _ in range(20):
        columns = ("context_tokens", "waiting", "paused", "empty_seats")
        log = pd.DataFrame({column: choose.choices((0, 0, 1, 2, 40), k=12) for column in columns})
        prompt_tokens = int(log["context_tokens"].sum()) - choose.randrange(30)
        got = price(log.copy(), prompt_tokens)
        if got is None:
            return NOT_YET
        right = {
            "twice": int(log["context_tokens"].sum()) - prompt_tokens,
            "most_paused": int(log["paused"].max()),
            "held_back": int(((log["waiting"] > 0) & (log["empty_seats"] > 0)).sum()),
        }
        for name, value in right.items():
            if name not in got:
                return f"The key {name!r} is missing."
            if got[name] != value:
                return (
                    f"With this log, {name} is not {got[name]}: {log.to_dict('list')}, prompts {prompt_tokens} tokens."
                )
    return None


@grades("5.3")
def _smallest_cache(answer: tuple[Callable, dict]) -> str | None:
    smallest_cache, advice = answer
    choose = random.Random(6)
    for slots in (1, 2, 4, 8, 8, 8):
        lengths = [(choose.randrange(20, 400), choose.randrange(5, 300)) for _ in range(choose.randrange(1, 14))]
        got = smallest_cache(list(lengths), slots, 32, 1024)
        if got is None:
            return NOT_YET
        meals = sorted((_full_blocks(prompt + answer, 32) for prompt, answer in lengths), reverse=True)
        right = max(sum(meals[:slots]), _full_blocks(1024, 32)) * 32
        if got < right:
            return (
                f"{slots} slots, max_seq_len 1024 and {lengths}: in {got} tokens of cache a request may have to wait "
                "beside an empty slot, or the engine refuses to load."
            )
        if got > right:
            return f"{slots} slots, max_seq_len 1024 and {lengths}: less than {got} tokens of cache is enough."
    right_advice = {"captions": "guaranteed_no_evict", "labels": "max_utilization"}
    for service, policy in right_advice.items():
        if advice.get(service) != policy:
            return (
                f"smallest_cache is right. Think again about {service!r}: will a "
                "promise for the whole answer come true?"
            )
    return None
