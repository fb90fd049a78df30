"""Workloads: lists of requests, each with its prompt, the length of its answer and the time at which it is sent.

    requests = trace("mild", tokenizer)                                         # a named set, in one burst
    requests = from_dataset(read_dataset(), tokenizer)                          # articles to be summarized
    requests = with_times(requests, poisson(len(requests), rate=4.0, seed=0))

`named` makes of it what the options of `inflight bench load` and `inflight bench compare` ask for.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from inflight.bench.dataset import MINI_CNN_EVAL, Record, read_dataset
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.paths import ASSETS

# Name of a trace: how many requests it has, and what the length of each answer is drawn from, in tokens.
TRACES = {
    "mild": (32, (8, 16, 16, 24, 32, 32, 64, 128)),
    "skewed": (48, (8, 8, 8, 8, 8, 8, 16, 16, 256)),
}
TOPICS = ("rivers", "bridges", "clouds", "chess", "bread", "maps", "bees", "trains")
TRACE_GAP_S = 0.005  # threads that all send at the same moment overtake each other
PASSAGE = (
    "The old train leaves the small station at seven in the morning and follows the river to the sea. On the way it "
    "stops at a market where people sell bread, apples and flowers. Children look out of the window and count the "
    "bridges, while their parents read a book or talk about the weather."
)

# Name of a dataset -> its file: the course's, then four whose answers repeat ever less of their prompts.
DATASETS = {"dataset": MINI_CNN_EVAL} | {
    name: ASSETS / "datasets" / f"{name}.json" for name in ("rewrite", "edit", "summary", "chat")
}


@dataclass(frozen=True)
class TimedRequest:
    """One request of a workload.

    Attributes
    ----------
    text : str
        What the user types.
    max_tokens : int
        Tokens of the answer.
    at_s : float
        When to send it, in seconds after the start of the run.
    input_len : int
        Tokens of the prompt as the engine gets it, chat template included.
    """

    text: str
    max_tokens: int
    at_s: float
    input_len: int


def from_dataset(
    records: list[Record], tokenizer: ChatTokenizer, max_input_len: float = math.inf
) -> list[TimedRequest]:
    """Make requests of the records whose prompts have at most `max_input_len` tokens for the engine, all at the start.

    Raises
    ------
    CourseError
        None is left.
    """
    requests = [
        TimedRequest(record.prompt, record.output_len, 0.0, input_len(record.prompt, tokenizer)) for record in records
    ]
    shortest = min(request.input_len for request in requests)
    if shortest > max_input_len:
        raise CourseError(
            f"Every prompt of the dataset is longer than max_input_len ({max_input_len} tokens); the "
            f"shortest has {shortest}. Allow longer ones, or take another dataset."
        )
    return [request for request in requests if request.input_len <= max_input_len]


def trace(name: str, tokenizer: ChatTokenizer, seed: int = 0, num_requests: int | None = None) -> list[TimedRequest]:
    """Make a named burst of requests: short prompts of about equal length, answers of very different lengths.

    Each comes TRACE_GAP_S after the one before, so that they reach the engine in their order. "mild" has 32 requests,
    "skewed" 48, where one answer in nine is 32 times as long as most; `num_requests` asks for more of the same, or
    fewer.

    Raises
    ------
    CourseError
        The name is not in TRACES.
    """
    if name not in TRACES:
        raise CourseError(f"There is no trace {name}: give {' or '.join(TRACES)}.")
    default_number, lengths = TRACES[name]
    number = default_number if num_requests is None else num_requests
    _check(number, 1.0)
    choose = random.Random(seed)
    prompts = [f"Tell me {index + 2} facts about {TOPICS[index % len(TOPICS)]}." for index in range(number)]
    return [
        TimedRequest(prompt, choose.choice(lengths), index * TRACE_GAP_S, input_len(prompt, tokenizer))
        for index, prompt in enumerate(prompts)
    ]


# Texts ----------------------------------------------------------------------------------------------------------------


def input_len(text: str, tokenizer: ChatTokenizer) -> int:
    """Count the tokens of a prompt as the engine gets it, chat template included."""
    return len(tokenizer.encode_chat(text))


def count_tokens(text: str, tokenizer: ChatTokenizer) -> int:
    """Tokens into which the tokenizer cuts a text, without any that it would put before or after it."""
    return len(tokenizer.encode(text, add_special_tokens=False))


def prompts_of(input_lens: Sequence[int], tokenizer: ChatTokenizer) -> list[str]:
    """Prompts in plain words, each different, of exactly the given numbers of tokens as the engine gets them.

    Raises
    ------
    CourseError
        A length is less than the chat template and one word take.
    """
    return [_prompt_of(length, f"Story {number}:", tokenizer) for number, length in enumerate(input_lens, start=1)]


def _prompt_of(length: int, opening: str, tokenizer: ChatTokenizer) -> str:
    shortest = input_len("a", tokenizer)
    if length < shortest:
        raise CourseError(f"A prompt of {length} tokens cannot be made: with the chat template a word has {shortest}.")
    # A word is a token or more, so `length` words are enough; the most that fit are found by halving.
    passage = PASSAGE.split()
    words = [*opening.split(), *passage * (length // len(passage) + 1)]
    beyond = bisect_right(range(length), length, key=lambda number: input_len(" ".join(words[:number]), tokenizer))
    words = words[: max(0, beyond - 1)]
    # The next word may have had several tokens; single letters fill the rest, one token each.
    words += ["a"] * (length - input_len(" ".join(words), tokenizer))
    if input_len(" ".join(words), tokenizer) != length:
        raise CourseError(f"No prompt of exactly {length} tokens could be made with this tokenizer: try one more.")
    return " ".join(words)


# Arrivals: seconds after the start of the run, the first at 0 ---------------------------------------------------------


def poisson(number: int, rate: float, seed: int) -> list[float]:
    """`rate` requests a second on average, independent of one another: exponential gaps."""
    return gamma(number, rate, 1.0, seed)


def gamma(number: int, rate: float, cv: float, seed: int = 0) -> list[float]:
    """`rate` requests a second on average, in bursts or more evenly: gaps from a gamma distribution.

    Parameters
    ----------
    cv : float
        Coefficient of variation of the gaps, their standard deviation over their mean: 1 is a Poisson process, above 1
        requests come in bursts with long pauses between, below 1 they come more evenly.
    """
    _check(number, rate)
    if not 0.1 <= cv <= 20:
        raise CourseError(
            f"The coefficient of variation is {cv:g}; it must be from 0.1 (nearly even) to 20, where 1 is a Poisson "
            "process."
        )
    shape, draw = cv**-2, random.Random(seed)
    gaps = (draw.gammavariate(shape, 1 / (shape * rate)) for _ in range(number - 1))
    return list(accumulate(gaps, initial=0.0))


def with_times(requests: Sequence[TimedRequest], times: Sequence[float]) -> list[TimedRequest]:
    """Return the same requests, sent at `times`, in seconds after the start of the run."""
    return [replace(request, at_s=at_s) for request, at_s in zip(requests, times, strict=True)]


def _check(number: int, rate: float) -> None:
    if number < 1:
        raise CourseError(f"The number of requests is {number}; it must be at least 1.")
    if not (math.isfinite(rate) and rate > 0):
        raise CourseError(f"The rate is {rate} requests per second; it must be above 0.")


# What the command line names ------------------------------------------------------------------------------------------


def named(
    dataset: str,
    tokenizer: ChatTokenizer,
    build: BuildConfig,
    tell: Callable[[str], None],
    number: int | None = None,
    rate: float | None = None,
    seed: int = 0,
) -> list[TimedRequest]:
    """Return the first `number` requests, or all, of what `inflight bench load` and `compare` call `--dataset`.

    Parameters
    ----------
    dataset : str
        A name of `TRACES` or `DATASETS`, or the path of a file in MLPerf's layout.
    tell : callable
        Called with a sentence, where prompts are left out because they are longer than the engine takes.
    rate : float, optional
        Requests a second on average; by default all at once, or as the trace has them.
    seed : int
        Of all that is drawn.

    Raises
    ------
    CourseError
        A value is out of its range, a file is not right or has fewer requests, or one does not fit into the engine.
    """
    if dataset in TRACES:
        found = trace(dataset, tokenizer, seed, number)
    else:
        path = DATASETS.get(dataset) or Path(dataset)
        records = read_dataset(path)
        found = from_dataset(records, tokenizer, build.max_input_len)
        if len(found) < len(records):
            tell(f"{len(records) - len(found)} prompts of {path} are longer than the engine takes and left out.")
    if number is not None and not 1 <= number <= len(found):
        raise CourseError(f"There are {len(found)} requests: ask for 1 to {len(found)} with --requests.")
    requests = found[:number]
    for index, request in enumerate(requests):
        if request.input_len > build.max_input_len or request.input_len + request.max_tokens > build.max_seq_len:
            raise CourseError(
                f"Request {index} has {request.input_len} tokens and asks for {request.max_tokens} more, but the "
                f"engine's max_input_len is {build.max_input_len} and its max_seq_len {build.max_seq_len}: ask for "
                "less, or build an engine with larger ones."
            )
    return requests if rate is None else with_times(requests, poisson(len(requests), rate, seed))
