"""A line that says what a long cell is doing and how far it is.

    with progress.wait("Starting the server"):                      # "Starting the server · 4 s"
        server.start()
    for size in progress.over((1536, 2560), "cache of {:,} tokens"):   # "2 of 2: cache of 2,560 tokens · 11 s"
        measure(size)

In JupyterLab it is one line, which changes in its place. Where nobody looks (papermill, nbval) each step is a line of
its own, which papermill writes to its log (`--log-output`). What is shown bears a mark, KEY, by which it is kept out
of stored notebooks and pages.
"""

from __future__ import annotations

import contextlib
import html
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from IPython import get_ipython

KEY = "inflight_progress"  # in the metadata of an output
TICK_S = 1.0
PLAIN_EVERY_S = 10.0
WAITS = "⏳"

Item = TypeVar("Item")


@contextlib.contextmanager
def ticking(tell: Callable[[float], None], every_s: float = TICK_S) -> Iterator[None]:
    """Call `tell` with the seconds since the start: at once, and again and again until the block ends."""
    started, ended = time.monotonic(), threading.Event()

    def tick() -> None:
        while not ended.wait(every_s):
            tell(time.monotonic() - started)

    tell(0.0)
    ticker = threading.Thread(target=tick, name="progress", daemon=True)
    ticker.start()
    try:
        yield
    finally:
        ended.set()
        ticker.join()


class Wait:
    """What `wait` gives: call it with the name of each step as it begins."""

    def __init__(self, what: str, total: int | None, after_s: float = 0.0):
        self._what, self._total, self._done, self._step = what, total, 0, ""
        self._after_s, self._is_due, self._show = after_s, not after_s, _shower()

    def __call__(self, step: str, number: int | None = None, total: int | None = None) -> None:
        """The next step begins. It fits where the package's benchmarks take a `progress`.

        Parameters
        ----------
        step : str
            What it is, in a few words.
        number, total : int, optional
            How many of how many parts are done; without them the calls are counted.
        """
        is_new = step != self._step or number is None
        self._done, self._total = self._done + 1 if number is None else number, total or self._total
        self._step = step
        if self._is_due:
            self._show(f"{WAITS} {self._line()}", is_new)

    def tick(self, seconds: float) -> None:
        """Say how long it has taken so far."""
        self._is_due = seconds >= self._after_s
        if self._is_due:
            self._show(f"{WAITS} {self._line()} · {seconds:.0f} s", seconds == 0)

    def end(self, how: str, seconds: float) -> None:
        """Say that it has ended, how, and after how long."""
        if self._is_due:
            self._show(f"{self._what} · {how} after {seconds:.0f} s", True)

    def _line(self) -> str:
        if not self._step:
            return self._what
        of = f"{self._done} of {self._total}" if self._total else f"step {self._done}"
        return f"{self._what}: {of}, {self._step}"


_open: list[Wait] = []  # the innermost last


def say(step: str) -> None:
    """Tell the innermost wait, if there is one, that its next step begins: for what is called within somebody's wait.

    Parameters
    ----------
    step : str
        What it is, in a few words.
    """
    if _open:
        _open[-1](step)


@contextlib.contextmanager
def wait(what: str, total: int | None = None, after_s: float = 0.0) -> Iterator[Wait]:
    """Say on the page, while the block runs, what it does and for how long; how far it is where its steps are told.

    Parameters
    ----------
    what : str
        A few words, such as "Building four engines".
    total : int, optional
        How many steps there are.
    after_s : float
        Nothing is shown of what ends within so many seconds.

    Yields
    ------
    Wait
        To be called with the name of each step as it begins.
    """
    line, started, how = Wait(what, total, after_s), time.monotonic(), "ended early"
    _open.append(line)
    try:
        with ticking(line.tick):
            yield line
        how = "done"
    finally:
        _open.remove(line)
        line.end(how, time.monotonic() - started)


def over(items: Iterable[Item], what: str, name: Callable[[Item], str] = str) -> Iterator[Item]:
    """The same for a loop: go over `items` and say which of them it is.

    Parameters
    ----------
    items : iterable
        Taken as a list first, to know how many there are.
    what : str
        What is done to each, such as "Run".
    name : callable, optional
        The name of an item.
    """
    items = list(items)
    with wait(what, len(items)) as line:
        for item in items:
            line(name(item))
            yield item


def is_progress(output: dict) -> bool:
    """Whether an output of a notebook is such a line."""
    return bool(output.get("metadata", {}).get(KEY))


def _shower() -> Callable[[str, bool], None]:
    """How a line is shown here: called with it, and with whether it is a new step."""
    shell = get_ipython()
    if shell is None:
        return _Plain(lambda line: print(line, file=sys.stderr))
    # Taken now: while what runs inside of a wait is captured, as in `catch_up`, the wait itself still shows.
    publish = shell.display_pub.publish
    if "JPY_SESSION_NAME" not in os.environ:  # what a Jupyter server tells the kernel of an open notebook
        return _Plain(lambda line: publish(_bundle(line), {KEY: True}))
    return _InPlace(publish)


class _Plain:
    """A line for each step; while one takes long, another from time to time."""

    def __init__(self, put: Callable[[str], None]):
        self._put, self._at = put, float("-inf")

    def __call__(self, line: str, is_step: bool) -> None:
        if is_step or time.monotonic() - self._at >= PLAIN_EVERY_S:
            self._at = time.monotonic()
            self._put(line)


class _InPlace:
    """One line, which changes."""

    def __init__(self, publish: Callable[..., None]):
        self._publish, self._shown_as, self._is_there = publish, {"display_id": secrets.token_hex(8)}, False

    def __call__(self, line: str, is_step: bool) -> None:
        self._publish(_bundle(line), {KEY: True}, transient=self._shown_as, update=self._is_there)
        self._is_there = True


def _bundle(line: str) -> dict[str, str]:
    return {"text/plain": line, "text/html": f"<div role='status'>{html.escape(line)}</div>"}
