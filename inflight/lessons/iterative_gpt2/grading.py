"""Lab 08: new tokens behind known ones, many readers for few slots, and blocks in place of the slots.

A learner's model is played in a process of its own, as Triton would play it, on hidden prompts: what goes through its
network is counted, and its answers are set beside those of the plain way without a cache.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.lessons.iterative_gpt2 import simulate_gpt2
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Compared, Finding, Measured, Wrong
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.notebook.checks.simulate_triton import SimulatedStream

TRIAL_S = 90  # longest time for a learner's model; it takes a tenth of that
SLOTS, IN_BATCH = 4, 8
MOST_BY_ORDER = 12  # passes more, where those who wait get slots in another order: up to 8 by six orders
NO_CACHE = "without a cache"  # each text alone, and whole at every step
MOST_GROWN = 100  # items and bytes: those of a text or two, which may be forgotten when the next one comes
BEGINNINGS = ("a cat", "the river", "one king", "our train", "my book", "Once upon a time", "Programming", "The city")
REST = ("is like", "and then", "was never", "in the night", "can be", "because of", "with a friend", "wants to")


# 8.1 ------------------------------------------------------------------------------------------------------------------


class _Projection:
    """Turns tokens into vectors, and counts them: one by one, or many in one call."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.tokens, self.calls = matrix, 0, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        self.tokens += 1 if x.ndim == 1 else len(x)
        self.calls += 1
        return x @ self.matrix


@grades("8.1", "Keys and values never change again, so a text may be computed in parts of any size.")
def _new_behind_known(next_part: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    numbers = np.random.default_rng(choose.randrange(2**32))
    query, key, value = projections = [_Projection(matrix) for matrix in numbers.normal(size=(3, 6, 4))]
    texts = [numbers.normal(size=(length, 6)) for length in (12, 8, 20, 5)]
    caches: list[dict] = [{} for _ in texts]
    # The ends of each text's parts; some have one token.
    ends = [(*sorted(choose.sample(range(2, 6), 2)), 6, 8), (3, 4, 8), (choose.randrange(1, 19), 19, 20), (1, 2, 5)]
    result: Finding = RIGHT
    for nth in range(4):
        for text, cache, until in zip(texts, caches, ends):
            if nth >= len(until):
                continue
            start, end = until[nth - 1] if nth else 0, until[nth]
            got = next_part(text[start:end].copy(), query, key, value, cache)
            if got is None:
                return NOT_YET
            past = text[:end]
            scores = (text[start:end] @ query.matrix) @ (past @ key.matrix).T / 2  # 2: root of the key's 4 numbers
            weights = np.exp(np.where(np.tri(end - start, end, start, dtype=bool), scores, -np.inf))
            right = weights / weights.sum(1, keepdims=True) @ (past @ value.matrix)
            if result == RIGHT and not _alike(got, right):
                result = Wrong(
                    f"Tokens {start + 1} to {end} of a text: the result, [new, size], is not that of the whole text."
                )
    wanted = 3 * sum(until[-1] for until in ends)
    projected = Measured(
        "tokens projected",
        sum(projection.tokens for projection in projections),
        exactly=wanted,
        course=wanted,
        nothing=3 * sum(map(sum, ends)),
        nothing_is=NO_CACHE,
        advice="Each token goes once through query, key and value; keep what came out.",
    )
    calls = 3 * sum(map(len, ends))
    called = Measured(
        "calls of query, key and value",
        sum(projection.calls for projection in projections),
        exactly=calls,
        course=calls,
        advice="All new tokens of a part go in together: one product with each matrix, as an engine has it.",
    )
    return {"one projection each": [projected, called], "the result": result}


def _alike(got: object, right: np.ndarray) -> bool:
    try:
        array = np.asarray(got, float)
    except (TypeError, ValueError):  # rows of several lengths, or what is no number
        return False
    return array.shape == right.shape and np.allclose(array, right)


# 8.2 and 8.3 ----------------------------------------------------------------------------------------------------------

HINTS = {
    "texts": "Has each text positions of its own, as long as it is computed?",
    "together": f"There are {SLOTS} slots: who finds none waits.",
    "computed": "A newcomer's prompt goes into the network, then one token a pass: keep its room until it is over.",
    "passes": "All texts that have room share one pass, and room that is given back is taken in the next.",
    "idle": "In a call, texts that wait take every slot that is free.",
    "grown": "Forget a text that is over, and give its room back: a server runs for weeks.",
}
IN_BLOCKS = HINTS | {
    "together": "A quarter of a slot holds eight short texts: each needs as many blocks as its tokens fill.",
    "overtaken": "Who finds no room makes all that came later wait.",
    "kept": "The memory is that of 16 blocks of 16 tokens: free ones are taken again.",
}


@grades(
    "8.2",
    "A cache makes memory the scarce thing, so the work is who has a slot, and when it is free again.",
    keeps="iterative_gpt2",
    within_s=TRIAL_S,
)
def _few_slots_many_readers(path: str, choose: random.Random) -> list[Measured]:
    beside, differ = _beside(path, "iterative_gpt2", _streams(choose), HINTS)
    own, course = (sum(texts < SLOTS for texts in each.served) for each in (beside.own, beside.course))
    return [
        Measured("answers that differ", differ, exactly=0, advice=HINTS["texts"]),
        _of_two(beside, "together", "texts in the fullest pass", at_most=SLOTS),
        beside.measured("computed", "tokens computed", at_most=beside.course.computed),
        Measured(
            "calls in which a text waited while a slot was free",
            own,
            exactly=0,
            course=course,
            advice=HINTS["idle"],
        ),
        beside.measured("passes", "forward passes", at_most=beside.course.passes + MOST_BY_ORDER),
        _of_two(beside, "grown", "items and bytes more after the same texts once more", at_most=MOST_GROWN),
    ]


@grades(
    "8.3",
    "A block table lets a text lie anywhere, so memory is taken as it is needed, and not for the longest text.",
    keeps="paged_gpt2",
    within_s=TRIAL_S,
)
def _blocks_in_place_of_slots(path: str, choose: random.Random) -> list[Measured]:
    beside, differ = _beside(path, "paged_gpt2", _streams_for_blocks(choose), IN_BLOCKS)
    return [
        Measured("answers that differ", differ, exactly=0, advice=IN_BLOCKS["texts"]),
        _of_two(beside, "together", "texts in the fullest pass", at_least=beside.course.together),
        _of_two(beside, "kept", "items and bytes kept", at_most=beside.course.kept * 33 // 32),  # half a block more
        beside.measured("computed", "tokens computed", at_most=beside.course.computed),
        _of_two(beside, "overtaken", "calls in which a text had overtaken one that waits", exactly=0),
        beside.measured("passes", "forward passes", at_most=beside.course.passes + 4),
        _of_two(beside, "grown", "items and bytes more after the same texts once more", at_most=MOST_GROWN),
    ]


def _beside(path: str, part: str, streams: list[SimulatedStream], hints: dict[str, str]) -> tuple[Compared, int]:
    """The counts of a model, of the course's and of the plain way; and how many of its answers are not those."""
    plain = simulate_gpt2.without_a_cache(streams)
    own = simulate_gpt2.with_model(path, streams, IN_BATCH, again=True)
    course = simulate_gpt2.with_model(COURSES_OWN[part], streams, IN_BATCH)
    differ = sum(got[: len(right)] != right for got, right in zip(own.texts, plain.texts, strict=True))
    return Compared(own, course, plain, hints, nothing_is=NO_CACHE), differ


def _of_two(beside: Compared, count: str, what: str, **budget: float) -> Measured:
    """A figure that the way without a cache does not have."""
    return replace(beside.measured(count, what, **budget), nothing=None)


def _streams(choose: random.Random) -> list[SimulatedStream]:
    """Prompts of many lengths. Five clients leave early, one more than there are slots, and one while it waits."""
    streams = []
    # The fifth comes in the third call, when the four before it have the slots.
    for number, leaves_after in enumerate([*choose.choices((3, 4, 5), k=4), 0] + [None] * 6):
        words = [choose.choice(BEGINNINGS), *choose.choices(REST, k=choose.randint(0, 4))]
        streams.append(_stream(number, leaves_after, " ".join(words), choose.randint(6, 14), arrives=1 + number // 2))
    return streams


def _streams_for_blocks(choose: random.Random) -> list[SimulatedStream]:
    """Five texts of a block each, whose clients leave, five of three, and at last another of one.

    Eight fit at first. The last one comes when two blocks are free and the one before it waits for a third, and its
    slot of the batch is before that one's.
    """
    tokenizer, streams = load_tokenizer(simulate_gpt2.CHECKPOINT), []
    for number, leaves_after in enumerate([4, 3, 5, 4, 5] + [None] * 6):
        words = [choose.choice(BEGINNINGS)]
        while 5 <= number < 10 and len(tokenizer.encode(" ".join(words))) < 28:
            words.append(choose.choice(REST))
        streams.append(_stream(number, leaves_after, " ".join(words), choose.randint(6, 8), arrives=1 + number // 4))
    return streams


def _stream(number: int, leaves_after: int | None, prompt: str, max_tokens: int, arrives: int) -> SimulatedStream:
    return SimulatedStream(
        prompt,
        max_tokens,
        arrives=arrives,
        leaves_after=leaves_after,
        is_late=number in (0, 2),
        parameters={"max_tokens": max_tokens, "ignore_eos": True},
    )
