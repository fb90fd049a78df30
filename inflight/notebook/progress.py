"""A line that says what a long cell is doing, how far it is, and for how many seconds.

    with progress.wait("Starting the server"):                         # "Starting the server … 4 s"
        server.start()
    for size in progress.over((1536, 2560), "Cache", "{:,} tokens".format):    # "Cache: 2 of 2, 2,560 tokens … 11 s"
        measure(size)

A cell that is interrupted says so in a sentence.

It is text, which changes in its place: a bar made of widgets stands still while a step lasts, and is broken on a page
that is opened again after its kernel. It bears a mark, KEY, by which it is kept out of stored notebooks and pages.
"""

from __future__ import annotations

import contextlib
import html
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TypeVar

from IPython import get_ipython

KEY = "inflight_progress"  # in the metadata of an output
TICK_S = 1.0

Item = TypeVar("Item")


@contextlib.contextmanager
def ticking(tell: Callable[[float], None]) -> Iterator[None]:
    """Call `tell` with the seconds since the start: at once, and again and again until the block ends."""
    started, ended = monotonic(), threading.Event()

    def tick() -> None:
        while not ended.wait(TICK_S):
            tell(monotonic() - started)

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

    def __init__(self, what: str, total: int | None):
        self._what, self._total, self._done, self._step = what, total, 0, ""
        shell = get_ipython()
        # Taken now: while what runs inside of a wait is captured, the wait itself still shows.
        self._publish = None if shell is None else shell.display_pub.publish
        self._shown_as, self._is_there = {"display_id": secrets.token_hex(8)}, False

    def __call__(self, step: str, number: int | None = None, total: int | None = None) -> None:
        """The next step begins. It fits where the package's benchmarks take a `progress`.

        Parameters
        ----------
        step : str
            What it is, in a few words.
        number, total : int, optional
            How many of how many parts are done; without them the calls are counted.
        """
        self._done, self._total = self._done + 1 if number is None else number, total or self._total
        self._step = step

    def tick(self, seconds: float) -> None:
        """Say what is done for so long; nothing of what ends within a second."""
        if seconds >= TICK_S:
            of = f"{self._done} of {self._total}" if self._total else f"step {self._done}"
            self._put(f"{self._what}: {of}, {self._step}" if self._step else self._what, f" … {seconds:.0f} s")

    def end(self, how: str, seconds: float) -> None:
        """Say that it has ended, how, and after how long."""
        if self._is_there:
            self._put(self._what, f" · {how} after {seconds:.0f} s")

    def _put(self, *parts: str) -> None:
        if self._publish is not None:
            line = "".join(parts)
            bundle = {"text/plain": line, "text/html": f"<div role='status'>{html.escape(line)}</div>"}
            self._publish(bundle, {KEY: True}, transient=self._shown_as, update=self._is_there)
            self._is_there = True


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
def wait(what: str, total: int | None = None) -> Iterator[Wait]:
    """Say on the page, while the block runs, what it does and for how long; how far it is where its steps are told.

    Parameters
    ----------
    what : str
        A few words, such as "Building four engines".
    total : int, optional
        How many steps there are.

    Yields
    ------
    Wait
        To be called with the name of each step as it begins.
    """
    line, started, how = Wait(what, total), monotonic(), "ended early"
    _open.append(line)
    try:
        with ticking(line.tick):
            yield line
        how = "done"
    finally:
        _open.remove(line)
        line.end(how, monotonic() - started)


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


def _say_interrupted(shell, kind, interrupt, where, tb_offset=None) -> None:
    """What stands below a cell that the toolbar's square ended: not where in the course's code that was."""
    interrupt._render_traceback_ = lambda: ["Interrupted. Run this cell again."]
    shell.showtraceback((kind, interrupt, where))


if _shell := get_ipython():
    _shell.set_custom_exc((KeyboardInterrupt,), _say_interrupted)
