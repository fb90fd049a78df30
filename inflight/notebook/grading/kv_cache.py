"""Lab 05: the blocks of a request, the price of a policy, and the smallest cache that is enough."""

import random
from collections.abc import Callable

import pandas as pd

from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding


def _full_blocks(tokens: int, tokens_per_block: int) -> int:
    return -(-tokens // tokens_per_block)


@grades("5.1", "A request wastes less than one block, however long it is: that is what pages buy.")
def _blocks(blocks: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"the prompt": None, "prompt and answer": None}
    for prompt, answer, size in ((100, 220, 32), (33, 31, 32), (32, 32, 32), (1, 1, 32), (500, 12, 64), (130, 1, 128)):
        got = blocks(prompt, answer, size)
        if got is None:
            return NOT_YET
        right = _full_blocks(prompt, size), _full_blocks(prompt + answer, size)
        for part, number, wanted in zip(findings, got, right, strict=True):
            if number != wanted:
                findings[part] = (
                    f"A prompt of {prompt} and an answer of {answer} tokens, in blocks of {size}: your function says "
                    f"{tuple(got)}. Round up, and round the sum only once."
                )
    return findings


@grades("5.2", "Waiting beside an empty slot costs time, computing twice costs work: a policy chooses between them.")
def _price(price: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    choose, findings = random.Random(5), dict[str, Finding]()
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
            said = (
                f"With this log, {name} is not {got.get(name)}: {log.to_dict('list')}, prompts {prompt_tokens} tokens."
            )
            missing = f"The key {name!r} is missing."
            found = missing if name not in got else said if got[name] != value else None
            findings[name] = findings.get(name) or found
    return findings


@grades(
    "5.3",
    "A promise is worth its blocks where answers come as long as they may; where they end early, it is mostly air.",
)
def _cache_and_advice(
    answer: tuple[Callable, dict], _choose: random.Random
) -> dict[str, Finding | Callable[[], Finding]]:
    smallest_cache, advice = answer
    return {
        "smallest_cache": lambda: _smallest_cache(smallest_cache),
        "captions": _advice(advice, "captions", "guaranteed_no_evict"),
        "labels": _advice(advice, "labels", "max_utilization"),
    }


def _advice(advice: dict, service: str, right: str) -> Finding:
    given = advice.get(service)
    if given is None:
        return NOT_YET
    return None if given == right else f"Think again about {service!r}: will a promise for the whole answer come true?"


def _smallest_cache(smallest_cache: Callable) -> Finding:
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
    return None
