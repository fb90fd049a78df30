"""Several streams at once from a GPT-2 model, one request each: every token with the time of its arrival.

    tokens = []
    for arrived in race("127.0.0.1:8001", "iterative-gpt2", ["Programming in", "Once upon"], max_tokens=32):
        tokens += arrived
    standings(table(tokens))

Leave the loop early, or close the generator, and every request ends at once.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import cycle, islice
from typing import NamedTuple

import pandas as pd

from inflight.errors import CourseError
from inflight.triton.client.connection import Connection, Reply, text

MAX_STREAMS = 64
PROMPTS = (
    "Programming in C++ is like",
    "Once upon a time there was",
    "The best way to learn a language is",
    "In the middle of the night",
    "A model repository is a folder",
    "My favourite food is",
    "To make a program faster,",
    "The weather in the mountains",
)
LOOK_EVERY_S = 0.1  # the longest that a race keeps quiet


class Token(NamedTuple):
    """A token that arrived: of which stream, its number there (both from 1), seconds since the race began, its text."""

    stream: int
    token: int
    time_s: float
    text: str


def prompts(streams: int, given: Sequence[str] = PROMPTS) -> list[str]:
    """Return a prompt for each stream: those given, and again from the first if they are too few.

    Raises
    ------
    CourseError
        Fewer than 1 or more than `MAX_STREAMS` streams.
    """
    if not 1 <= streams <= MAX_STREAMS:
        raise CourseError(f"The number of streams is {streams}; it must be from 1 to {MAX_STREAMS}.")
    return list(islice(cycle(given), streams))


def race(
    url: str,
    model: str,
    prompts: Sequence[str],
    max_tokens: int,
    offset_s: float = 0,
    timeout_s: float = 120,
    apart: int = 0,
) -> Generator[list[Token], None, None]:
    """Send each prompt on a connection of its own, and follow all answers.

    Parameters
    ----------
    url : str
        "host:port" for gRPC.
    model : str
        `simple-gpt2`, `iterative-gpt2` or another with their tensors and request parameters.
    max_tokens : int
        Tokens of each answer, which goes on after the model's end token.
    offset_s : float
        How long after the one before each prompt is sent, in seconds; by default all at once.
    timeout_s : float
        Longest time to wait for the next token of any stream.
    apart : int
        Each prompt waits until the first stream has so many tokens more than at the one before.

    Yields
    ------
    list of Token
        What has arrived since the last time; at the latest every `LOOK_EVERY_S`, so it may be empty. All connections
        are made before the race begins.

    Raises
    ------
    CourseError
        There is no prompt; a number is too small; the server does not answer, refused a request, or died.
    """
    _check(prompts, max_tokens, offset_s)
    parameters = {"max_tokens": max_tokens, "ignore_eos": True}
    arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(Connection(url, arrived)) for _ in prompts]
        for number, stream in enumerate(streams, 1):
            stream.connect()
            stream.open_stream(number)
        started = heard = time.perf_counter()
        waiting = deque((n * offset_s, n * apart, *row) for n, row in enumerate(zip(streams, prompts)))
        num_running = len(streams)
        num_tokens: Counter[int] = Counter()  # of each stream
        while num_running:
            now = time.perf_counter()
            while waiting and waiting[0][0] <= now - started and waiting[0][1] <= num_tokens[1]:
                _, _, stream, prompt = waiting.popleft()
                stream.send_on_stream(
                    model,
                    {"text_input": text(prompt)},
                    enable_empty_final_response=True,
                    parameters=parameters,
                )
                heard = now
            next_s = started + waiting[0][0] - now if waiting and not apart else LOOK_EVERY_S
            tokens = []
            for reply in _taken(arrived, min(next_s, LOOK_EVERY_S)):
                if reply.error is not None:
                    raise reply.error
                num_running -= reply.is_final
                if not reply.is_empty:
                    num_tokens[reply.number] += 1
                    piece = reply.result.as_numpy("text_output").item().decode("utf-8")
                    tokens.append(Token(reply.number, num_tokens[reply.number], reply.arrived_s - started, piece))
            if tokens:
                heard = time.perf_counter()
            elif (apart or not waiting) and now - heard > timeout_s:
                raise CourseError(
                    f"No token from {url} within {timeout_s:g} s. Wait longer with timeout_s, or look at "
                    "the server's log."
                )
            yield tokens
        for stream in streams:
            stream.finish_stream()


def run(url: str, model: str, prompts: Sequence[str], max_tokens: int, apart: int = 0) -> pd.DataFrame:
    """Run a `race` to its end; return its `table`."""
    whole = race(url, model, prompts, max_tokens, apart=apart)
    return table(token for arrived in whole for token in arrived)


def table(tokens: Iterable[Token]) -> pd.DataFrame:
    """Return one row a token in the order of arrival: `stream`, `token` (both from 1), `time_s`, `text`."""
    return pd.DataFrame(tokens, columns=Token._fields)


def standings(tokens: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each started stream: `stream`, `tokens`, `first_s` and `last_s` since the race began, `text`.

    Parameters
    ----------
    tokens : DataFrame
        From `table`.
    """
    groups = tokens.groupby("stream")
    return groups.agg(
        tokens=("token", "max"), first_s=("time_s", "min"), last_s=("time_s", "max"), text=("text", "".join)
    ).reset_index()


def summary(tokens: pd.DataFrame) -> str:
    """First and last token of each stream, in a line."""
    parts = [
        f"stream {row.stream}: {row.tokens} tokens, the first after {row.first_s:.2f} s, the last after "
        f"{row.last_s:.2f} s"
        for row in standings(tokens).itertuples()
    ]
    return "; ".join(parts) or "no token"


def _taken(arrived: queue.SimpleQueue[Reply], timeout_s: float) -> Iterator[Reply]:
    """Take everything in a queue, after waiting so long for the first."""
    with contextlib.suppress(queue.Empty):
        yield arrived.get(timeout=max(0.0, timeout_s))
        while True:
            yield arrived.get_nowait()


def _check(prompts: Sequence[str], max_tokens: int, offset_s: float) -> None:
    if not prompts:
        raise CourseError("There is no prompt to send: give at least one.")
    if max_tokens < 1:
        raise CourseError(f"The number of tokens is {max_tokens}; it must be at least 1.")
    if not offset_s >= 0:
        raise CourseError(f"The offset is {offset_s:g} s; it must be 0 s or more.")
