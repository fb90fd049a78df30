"""Prompts that race for one GPT-2 model, when each of them starts, and how the race went."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import pandas as pd

from inflight.bench import gpt2_client
from inflight.errors import CourseError

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


def prompts(streams: int, given: Sequence[str] = PROMPTS) -> list[str]:
    """A prompt for each stream: those given, and again from the first if they are too few.

    Raises
    ------
    CourseError
        Fewer than 1 or more than `MAX_STREAMS` streams.
    """
    if not 1 <= streams <= MAX_STREAMS:
        raise CourseError(f"The number of streams is {streams}; it must be from 1 to {MAX_STREAMS}.")
    return list(islice(cycle(given), streams))


def offsets(streams: int, offset_s: float) -> list[float]:
    """Seconds at which each stream starts, `offset_s` after the one before."""
    return [number * offset_s for number in range(streams)]


def summary(tokens: pd.DataFrame) -> str:
    """First and last token of each stream, in a line."""
    parts = [
        f"stream {row.stream}: {row.tokens} tokens, the first after {row.first_s:.2f} s, the last after "
        f"{row.last_s:.2f} s"
        for row in gpt2_client.standings(tokens).itertuples()
    ]
    return "; ".join(parts) or "no token"
