"""Lab 08: the tokens that a way computes, a prompt in parts, ten streams in four places, many readers for few rows.

A learner's model is played in a process of its own, as Triton would play it, on hidden prompts: what goes through its
network is counted, and its answers are set beside those of the plain way without a cache.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from inflight.errors import CourseError
from inflight.lessons.iterative_gpt2 import gpt2_client, simulate_gpt2
from inflight.lessons.iterative_gpt2.log import executions, passes
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Case, Compared, Finding, Measured, Wrong, asked
from inflight.notebook.checks.parts import COURSES_OWN
from inflight.notebook.checks.simulate_triton import SimulatedStream
from inflight.triton import repository
from inflight.triton.serving.server import Server

MODEL = "iterative-gpt2"
READERS, THEIR_TOKENS = ("A cat is", "A river is", "A book is", "A train is", "A king is") * 2, 24
TRIAL_S = 90  # longest time for a learner's model; it takes a tenth of that
ROWS, PLACES = 4, 8
MOST_GROWN = 100  # items and bytes: those of a text or two, which may be forgotten when the next one comes
BEGINNINGS = ("a cat", "the river", "one king", "our train", "my book", "Once upon a time", "Programming", "The city")
REST = ("is like", "and then", "was never", "in the night", "can be", "because of", "with a friend", "wants to")


# 8.1 ------------------------------------------------------------------------------------------------------------------


@grades("8.1", "Without a cache the work grows with the square of an answer's length; with one, with the length.")
def _tokens_computed(
    answer: tuple[Callable, Callable, Callable], choose: random.Random
) -> dict[str, Callable[[], Finding]]:
    given = [(choose.choices(range(1, 60), k=choose.randrange(1, 5)), choose.randrange(1, 40)) for _ in range(20)]
    right = {
        "padded": lambda prompts, length: sum(len(prompts) * (max(prompts) + before) for before in range(length)),
        "without a cache": lambda prompts, length: sum(
            prompt + before for prompt in prompts for before in range(length)
        ),
        "with a cache": lambda prompts, length: sum(prompt + length - 1 for prompt in prompts),
    }
    hint = (
        "These are tokens of the prompts, and of each answer. Write down for each pass which tokens go in. The last "
        "token of an answer goes into none."
    )
    return {
        part: partial(asked, function, [Case(each, of_part(*each), hint) for each in given])
        for (part, of_part), function in zip(right.items(), answer, strict=True)
    }


# 8.2 ------------------------------------------------------------------------------------------------------------------


class _Projection:
    """Turns tokens into vectors, and counts them: one by one, or many in one call."""

    def __init__(self, matrix: np.ndarray):
        self.matrix, self.tokens = matrix, 0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        x = np.asarray(x)
        self.tokens += 1 if x.ndim == 1 else len(x)
        return x @ self.matrix


@grades("8.2", "Keys and values never change again, so a text may be computed in parts of any size.")
def _prompt_in_parts(next_part: Callable, choose: random.Random) -> dict[str, Finding] | Finding:
    numbers = np.random.default_rng(choose.randrange(2**32))
    query, key, value = projections = [_Projection(matrix) for matrix in numbers.normal(size=(3, 6, 4))]
    texts = [numbers.normal(size=(length, 6)) for length in (12, 8)]
    caches: list[dict] = [{}, {}]
    ends = [(*sorted(choose.sample(range(2, 6), 2)), 6, 8), (3, 4, 8)]  # of each part; some have one token
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
            alike = np.shape(got) == right.shape and np.allclose(got, right)
            if not alike and result == RIGHT:
                result = Wrong(
                    f"Tokens {start + 1} to {end} of a text: the result is not that of the whole text. A token attends "
                    "to itself and to all before it in its own cache, and to none after it."
                )
    wanted = 3 * sum(until[-1] for until in ends)
    projected = Measured(
        "tokens projected",
        sum(projection.tokens for projection in projections),
        exactly=wanted,
        course=wanted,
        nothing=3 * sum(map(sum, ends)),
        advice="Each token goes once through query, key and value; keep what came out.",
    )
    return {"one projection each": projected, "the result": result}


# 8.3 ------------------------------------------------------------------------------------------------------------------

WHAT_LIMITS_A_BATCH = "Which field limits a batch?"
THEY_WAITED = "They waited, in Triton or for a row of the KV cache: which fields limit who has begun?"
NOBODY_WAITS = "Nobody waits for a row where there is no cache: leave kv_cache on, and give all ten room in it."


def passes_with(server: Server, settings: dict) -> pd.DataFrame:
    """Load the model with these settings, let the ten stream, and read from its log who was in which forward pass."""
    config = repository.read_config(server.repo / MODEL / repository.CONFIG)
    log_path = Path(repository.get_value(config, "iteration_log_path"))
    server.load(MODEL, **settings)
    start = log_path.stat().st_size
    gpt2_client.run(server.grpc_url, MODEL, READERS, THEIR_TOKENS)
    return passes(executions(log_path, start))


@grades("8.3", "Places in a batch, sequences begun, room in the cache: the smallest that is reached decides who waits.")
def _ten_streams_four_places(answer: tuple[dict, Server]) -> dict[str, Finding] | Finding:
    settings, server = answer
    if not settings:
        return NOT_YET
    try:
        found = passes_with(server, settings)
    except CourseError as error:
        return Wrong(error.sentence)
    of_each = found.groupby("sequence")["iteration"].agg(["min", "max"])
    later = found[found.groupby("sequence").cumcount() > 0]
    in_fullest = int(found.groupby("iteration")["sequence"].nunique().max())
    late = int((of_each["min"] > of_each["max"].min()).sum())
    twice = int((later["computed"] - 1).sum())
    return {
        "four in a pass": Measured("streams in the fullest pass", in_fullest, exactly=4, advice=WHAT_LIMITS_A_BATCH),
        "all ten begun": Measured("streams that began after another had ended", late, exactly=0, advice=THEY_WAITED),
        "nothing twice": Measured("tokens computed twice", twice, exactly=0, advice=NOBODY_WAITS),
    }


# 8.4 ------------------------------------------------------------------------------------------------------------------

FEW_ROWS = {
    "texts": "Does each text have a row of its own, as long as it is computed?",
    "together": f"There are {ROWS} rows: who finds none waits.",
    "computed": "A newcomer's prompt goes into the network, then one token a pass: keep its row until it is over.",
    "passes": "All texts with a row share one pass, and a row that is given back is taken in the next.",
    "grown": "Forget a text that is over, and give its row back: a server runs for weeks.",
}


@grades(
    "8.4",
    "A cache makes memory the scarce thing, so the work is who has a row, and when it is free again.",
    keeps="iterative_gpt2",
    within_s=TRIAL_S,
)
def _few_rows_many_readers(path: str, choose: random.Random) -> list[Measured]:
    streams = _streams(choose)
    plain = simulate_gpt2.without_a_cache(streams)
    own, course = (simulate_gpt2.with_model(each, streams, PLACES) for each in (path, COURSES_OWN["iterative_gpt2"]))
    beside = Compared(own, course, plain, FEW_ROWS)
    differ = sum(got[: len(right)] != right for got, right in zip(own.texts, plain.texts, strict=True))
    return [
        Measured("answers that differ", differ, exactly=0, advice=FEW_ROWS["texts"]),
        beside.measured("together", "texts in the fullest pass", at_most=ROWS),
        beside.measured("computed", "tokens computed", at_most=course.computed),
        beside.measured("passes", "forward passes", at_most=course.passes + 2),
        beside.measured("grown", "more kept after the same texts once more", at_most=MOST_GROWN),
    ]


def _streams(choose: random.Random) -> list[SimulatedStream]:
    """Prompts of many lengths. Five clients leave early, one more than there are rows, and one while it waits."""
    streams = []
    for number, leaves in enumerate([True] * 5 + [False] * 6):
        words = [choose.choice(BEGINNINGS), *choose.choices(REST, k=choose.randint(0, 4))]
        max_tokens = choose.randint(6, 14)
        streams.append(
            SimulatedStream(
                " ".join(words),
                max_tokens,
                arrives=1 + number // 2,
                leaves_after=choose.randint(3, 5) if leaves else None,
                is_late=number in (0, 2),
                parameters={"max_tokens": max_tokens, "ignore_eos": True},
            )
        )
    streams[4].leaves_after = 0  # it comes in the third call, when the four before it have the rows
    return streams
