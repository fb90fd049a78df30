"""Lab 08: the tokens that a way computes, attention with a cache, ten streams in four places, and a model with a cache.

A learner's model is played in a process of its own, as Triton would play it, on hidden prompts: what goes through its
network is counted, and its answers are set beside those of the plain way without a cache.
"""

import random
from collections.abc import Callable

import numpy as np
import pandas as pd

from inflight.lessons.iterative_gpt2 import iterative_trial
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades
from inflight.notebook.mine import COURSES_OWN, PARTS

TRIAL_S = 90  # longest time for a learner's model; it takes a tenth of that
SLOTS, PLACES = 4, 8
MOST_GROWN = 100  # items and bytes: those of a text or two, which may be forgotten when the next one comes
BEGINNINGS = ("a cat", "the river", "one king", "our train", "my book", "Once upon a time", "Programming", "The city")
REST = ("is like", "and then", "was never", "in the night", "can be", "because of", "with a friend", "wants to")


# 8.1 ------------------------------------------------------------------------------------------------------------------


@grades("8.1", "Without a cache the work grows with the square of an answer's length; with one, with the length.")
def _tokens_computed(
    answer: tuple[Callable, Callable, Callable], choose: random.Random
) -> dict[str, Callable[[], Finding]]:
    padded, without, with_cache = answer
    cases = [(choose.choices(range(1, 60), k=choose.randrange(1, 5)), choose.randrange(1, 40)) for _ in range(20)]
    return {
        "padded": lambda: _counts(padded, 0, cases),
        "without a cache": lambda: _counts(without, 1, cases),
        "with a cache": lambda: _counts(with_cache, 2, cases),
    }


def _counts(function: Callable, way: int, cases: list[tuple[list[int], int]]) -> Finding:
    for prompts, length in cases:
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


# 8.2 ------------------------------------------------------------------------------------------------------------------


class _Projection:
    """Turns tokens into vectors, and counts them: one by one, or many in one call."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.tokens = matrix, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        self.tokens += 1 if x.ndim == 1 else len(x)
        return x @ self.matrix


@grades("8.2", "A token's key and value never change again, so a cache trades memory for all that work.")
def _cached_attention(next_token: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    numbers = np.random.default_rng(choose.randrange(2**32))
    query, key, value = projections = [_Projection(matrix) for matrix in numbers.normal(size=(3, 6, 4))]
    texts = [numbers.normal(size=(choose.randint(*most), 6)) for most in ((5, 8), (3, 4))]
    caches: list[dict] = [{}, {}]
    result: Finding = None
    for place in range(max(map(len, texts))):
        for text, cache in zip(texts, caches):
            if place >= len(text):
                continue
            got = next_token(text[place].copy(), query, key, value, cache)
            if got is None:
                return NOT_YET
            past = text[: place + 1]
            weights = np.exp((past @ key.matrix) @ (text[place] @ query.matrix) / 2)  # 2: root of the key's 4 numbers
            right = weights / weights.sum() @ (past @ value.matrix)
            alike = np.shape(got) == right.shape and np.allclose(got, right)
            if not alike and result is None:
                result = (
                    f"Token {place + 1} of a text of {len(text)}: the result is not that of the whole text. A token "
                    "attends to itself too, and each text to its own cache alone."
                )
    wanted = 3 * sum(map(len, texts))
    projected = Measured(
        "tokens projected",
        sum(projection.tokens for projection in projections),
        exactly=wanted,
        course=wanted,
        nothing=sum(len(text) + len(text) * (len(text) + 1) for text in texts),
        advice="Each token goes once through query, key and value; keep what came out.",
    )
    return {"one projection each": projected, "the result": result}


# 8.3 ------------------------------------------------------------------------------------------------------------------


@grades("8.3", "Places in a batch, sequences begun, room in the cache: the smallest that is reached decides who waits.")
def _ten_streams_four_places(answer: tuple[dict, pd.DataFrame], _choose: random.Random) -> dict[str, Finding] | Finding:
    settings, passes = answer
    if not settings:
        return NOT_YET
    together = passes.groupby("iteration")["sequence"].nunique().max()
    of_each = passes.groupby("sequence")["iteration"].agg(["min", "max", "count"])
    if len(of_each) != 10:
        return f"The log has {len(of_each)} streams, not 10."
    if of_each["count"].nunique() > 1 or of_each["count"].min() < 24:
        return "Not every stream got its 24 tokens: run the cell with the ten prompts as it was given."
    few = f"The fullest forward pass had {together} streams in it; the goal is 4. Which field limits a batch?"
    late = (
        "A stream ended before another one had begun: that one waited in Triton, or for room in the KV cache. Which "
        "fields limit the streams that are begun?"
    )
    later = passes[passes.groupby("sequence").cumcount() > 0]
    twice = Measured(
        "tokens computed twice",
        int((later["computed"] - 1).sum()),
        exactly=0,
        course=0,
        nothing=10 * (23 * 24 // 2),
        advice="Ten streams have begun because nobody needs a slot: leave kv_cache on, and give all ten room in it.",
    )
    return {
        "four in a pass": None if together == 4 else few,
        "all ten begun": late if of_each["min"].max() > of_each["max"].min() else None,
        "nothing twice": twice,
    }


# 8.4 ------------------------------------------------------------------------------------------------------------------


@grades(
    "8.4",
    "A cache changes what is computed and never what comes out; the rest of the work is who may have a slot, and when.",
    keeps="iterative_gpt2",
    within_s=TRIAL_S,
)
def _model_with_cache(path: str, choose: random.Random) -> Finding:
    models = [COURSES_OWN / PARTS["iterative_gpt2"], path]
    try:
        plain, course, own = iterative_trial.played(models, _streams(choose), PLACES)
    except iterative_trial.Problem as problem:
        return f"{problem}."
    if own.together > SLOTS and own.computed == plain.computed:
        return NOT_YET  # as it was given
    differ = sum(got != right for got, right in zip(own.texts, plain.texts, strict=True))
    rates = [sum(map(len, each.texts)) / each.seconds for each in (own, course)]
    return [
        Measured(
            "answers that differ",
            differ,
            exactly=0,
            course=0,
            nothing=0,
            advice="Whose keys does a token look at, and which positions did they get?",
        ),
        Measured(
            "tokens computed",
            own.computed,
            exactly=course.computed,
            course=course.computed,
            nothing=plain.computed,
            advice="Only what has no key yet goes into the network: a newcomer's prompt, then one token a pass.",
        ),
        Measured(
            "texts in the fullest pass",
            own.together,
            at_most=SLOTS,
            course=course.together,
            nothing=PLACES,
            advice=f"There are {SLOTS} slots: who finds none waits.",
        ),
        Measured(
            "forward passes",
            own.passes,
            at_most=course.passes + 2,
            course=course.passes,
            advice="All texts that have a slot share one pass, and a slot that is given back is taken in the next.",
        ),
        Measured(
            "more kept after the same texts once more",
            max(0, own.grown),
            at_most=MOST_GROWN,
            course=max(0, course.grown),
            nothing=0,
            advice="Forget a text that is over, and give its slot back: a server runs for weeks.",
        ),
        Measured("tokens/s over the course's", rates[0] / rates[1]),
    ]


def _streams(choose: random.Random) -> list[dict]:
    """Prompts of many lengths; five clients leave early, one more than there are slots, and six stay."""
    leave = [True] * 5 + [False] * 6
    streams = []
    for number, leaves in enumerate(leave):
        words = [choose.choice(BEGINNINGS), *choose.choices(REST, k=choose.randint(0, 4))]
        streams.append(
            {
                "prompt": " ".join(words),
                "max_tokens": choose.randint(6, 14),
                "arrives": 1 + number // 2,
                "leaves_after": choose.randint(1, 3) if leaves else None,
            }
        )
    return streams
