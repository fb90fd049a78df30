"""Several streams at once from a GPT-2 model, one request each: every token with the time of its arrival.

    tokens = []
    for arrived in race("127.0.0.1:8001", "iterative-gpt2", ["Programming in", "Once upon"], max_tokens=32):
        tokens += arrived
    standings(table(tokens))

Leave the loop early, or close the generator, and every request ends at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

import pandas as pd

from inflight.triton.client.connection import text
from inflight.triton.client.streams import follow

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


class Token(NamedTuple):
    """A token that arrived: of which stream, its number there (both from 1), seconds since the race began, its text."""

    stream: int
    token: int
    time_s: float
    text: str


def race(
    url: str, model: str, prompts: Sequence[str], max_tokens: int, offset_s: float = 0, apart: int = 0
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
    apart : int
        Each prompt waits until the first stream has so many tokens more than at the one before.

    Yields
    ------
    list of Token
        What has arrived since the last time; it may be empty. All connections are made before the race begins.

    Raises
    ------
    CourseError
        The server does not answer, refused a request, or died.
    """

    def is_due(stream: int, num_tokens: Counter[int], elapsed_s: float) -> bool:
        return elapsed_s >= (stream - 1) * offset_s and num_tokens[1] >= (stream - 1) * apart

    requests, num_tokens = [{"text_input": text(prompt)} for prompt in prompts], Counter[int]()
    parameters = {"max_tokens": max_tokens, "ignore_eos": True}
    with closing(follow(url, model, requests, is_due, parameters=parameters)) as replies:
        for reply in replies:
            if reply is not None and reply.error is not None:
                raise reply.error
            if reply is None or reply.is_empty:
                yield []
                continue
            num_tokens[reply.number] += 1
            piece = reply.result.as_numpy("text_output").item().decode("utf-8")
            yield [Token(reply.number, num_tokens[reply.number], reply.arrived_s, piece)]


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
