"""Prompts that race for one GPT-2 model, shown in a terminal while they do.

tokens, interrupted = with_bars("127.0.0.1:8001", "iterative-gpt2", prompts(2), max_tokens=64, offset_s=0.1)
print(summary(tokens))
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import cycle, islice

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

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


def with_bars(
    url: str, model: str, prompts: Sequence[str], max_tokens: int, offset_s: float
) -> tuple[pd.DataFrame, bool]:
    """A race with a progress bar for each stream, on stderr if that is a terminal.

    Returns
    -------
    DataFrame
        See `gpt2_client.table`.
    bool
        Whether an interrupt (Ctrl-C) ended it early; all requests are ended then.

    Raises
    ------
    CourseError
        See `gpt2_client.race`.
    """
    tokens: list[gpt2_client.Token] = []
    racing = gpt2_client.race(url, model, prompts, max_tokens, offsets(len(prompts), offset_s))
    with contextlib.closing(racing), _progress() as progress:
        bars = [
            progress.add_task(f"{model}, stream {number}", total=max_tokens, time="")
            for number in range(1, len(prompts) + 1)
        ]
        try:
            for arrived in racing:
                tokens += arrived
                for token in arrived:
                    progress.update(bars[token.stream - 1], completed=token.token, time=f", {token.time_s:.2f} s")
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or SIGTERM to a command
            return gpt2_client.table(tokens), True
    return gpt2_client.table(tokens), False


def summary(tokens: pd.DataFrame) -> str:
    """First and last token of each stream, in a line."""
    parts = [
        f"stream {row.stream}: {row.tokens} tokens, the first after {row.first_s:.2f} s, the last after "
        f"{row.last_s:.2f} s"
        for row in gpt2_client.standings(tokens).itertuples()
    ]
    return "; ".join(parts) or "no token"


def _progress() -> Progress:
    """A line a task on stderr: what it is, a bar as wide as there is room, and how far it has come."""
    terminal = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", style="none", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.completed:>4}/{task.total} tokens{task.fields[time]}", style="none", markup=False),
        console=terminal,
        disable=not terminal.is_terminal,
        expand=True,
    )
