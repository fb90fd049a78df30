"""Lab 08: the tokens that a way computes, attention with a cache, and ten streams in four places."""

import random
from collections.abc import Callable

import numpy as np
import pandas as pd

from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding


@grades("8.1", "Without a cache the work grows with the square of an answer's length; with one, with the length.")
def _tokens_computed(
    answer: tuple[Callable, Callable, Callable], _choose: random.Random
) -> dict[str, Callable[[], Finding]]:
    padded, without, with_cache = answer
    return {
        "padded": lambda: _counts(padded, 0),
        "without a cache": lambda: _counts(without, 1),
        "with a cache": lambda: _counts(with_cache, 2),
    }


def _counts(function: Callable, way: int) -> Finding:
    choose = random.Random(7)
    for _ in range(20):
        prompts, length = choose.choices(range(1, 60), k=choose.randrange(1, 5)), choose.randrange(1, 40)
        right = (
            sum(len(prompts) * (max(prompts) + before) for before in range(length)),
            sum(prompt + before for prompt in prompts for before in range(length)),
            sum(prompt + length - 1 for prompt in prompts),
        )
        got = function(list(prompts), length)
        if got is None:
            return NOT_YET
        if got != right[way]:
            return (
                f"Prompts of {prompts} tokens and answers of {length}: your function says {got}. Write down for each "
                "pass which tokens go in. The last token of an answer goes into none."
            )
    return None


@grades("8.2", "A token's key and value never change again, so a cache trades memory for all that work.")
def _cached_attention(next_token: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    findings: dict[str, Finding] = {"one projection each": None, "the result": None}
    random_numbers, calls = np.random.default_rng(8), []
    matrices = random_numbers.normal(size=(3, 6, 4))
    query, key, value = (lambda x, matrix=matrix: calls.append(1) or x @ matrix for matrix in matrices)
    texts = [random_numbers.normal(size=(length, 6)) for length in (5, 3)]
    caches: list[dict] = [{}, {}]
    for place in range(5):
        for text, cache in zip(texts, caches):
            if place >= len(text):
                continue
            calls.clear()
            got = next_token(text[place], query, key, value, cache)
            if got is None:
                return NOT_YET
            if len(calls) > 3 and findings["one projection each"] is None:
                findings["one projection each"] = (
                    f"Token {place + 1} took {len(calls)} projections; one query, one key and one value are enough."
                )
            past = text[: place + 1]
            weights = np.exp((past @ matrices[1]) @ (text[place] @ matrices[0]) / 2)  # 2: root of the key's 4 numbers
            right = weights / weights.sum() @ (past @ matrices[2])
            alike = np.shape(got) == right.shape and np.allclose(got, right)
            if not alike and findings["the result"] is None:
                findings["the result"] = (
                    f"Token {place + 1} of a text of {len(text)}: the result is not that of the whole text. A token "
                    "attends to itself too, and each text to its own cache alone."
                )
    return findings


@grades("8.3", "Places in a batch, sequences begun, room in the cache: the smallest that is reached decides who waits.")
def _ten_streams_four_places(answer: tuple[dict, pd.DataFrame], _choose: random.Random) -> dict[str, Finding] | Finding:
    settings, passes = answer
    if not settings:
        return NOT_YET
    together = passes.groupby("iteration")["sequence"].nunique().max()
    spans = passes.groupby("sequence")["iteration"].agg(["min", "max"])
    if len(spans) != 10:
        return f"The log has {len(spans)} streams, not 10."
    few = f"The fullest forward pass had {together} streams in it; the goal is 4. Which field limits a batch?"
    late = (
        "A stream ended before another one had begun: that one waited in Triton, or for room in the KV cache. Which "
        "fields limit the streams that are begun?"
    )
    return {
        "four in a pass": None if together == 4 else few,
        "all ten begun": late if spans["min"].max() > spans["max"].min() else None,
    }
