"""Shows tqdm's bar for long steps in a notebook, with seconds that go on while one step lasts.

    with progress.wait("Starting the server"):                                 # "Starting the server … 4 s"
        server.start()
    for size in progress.over((1536, 2560), "Cache", "{:,} tokens".format):    # "Cache: 50% … 1/2, 2,560 tokens"
        measure(size)

A bar appears when a second has passed, and is gone when its block ends. A run that nobody watches (COURSE_STRICT=1, as
notebooks are built and tested) shows none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TypeVar

from IPython import get_ipython
from tqdm.notebook import tqdm

TICK_S = 1.0
# JupyterLab shows this output as nothing. In a notebook that is opened again, the view of a bar that is gone would read
# "model not found".
NOTHING = {"application/vnd.jupyter.widget-view+json": {"model_id": ""}, "text/plain": ""}

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


_open: list[tqdm] = []  # the bars of the blocks that run, the innermost last


@contextlib.contextmanager
def wait(what: str, total: int | None = None) -> Iterator[tqdm]:
    """Show a bar while the block runs.

    Parameters
    ----------
    what : str
        A few words, such as "Building four engines".
    total : int, optional
        How many steps there are. Without it the bar shows no more than the seconds.

    Yields
    ------
    tqdm
        `update()` counts a step, `set_postfix_str(name)` names the one that runs.
    """
    shell = get_ipython()
    is_watched = shell is not None and os.environ.get("COURSE_STRICT") != "1"
    form = None if total else "{desc}{postfix} … {elapsed_s:.0f} s"
    bar = tqdm(desc=what, total=total, bar_format=form, leave=False, display=False, disable=not is_watched)
    if not is_watched:
        yield bar
        return
    publish = shell.display_pub.publish  # taken before the block, which may capture what it displays
    display_id = {"display_id": bar.container.model_id}

    def tick(seconds: float) -> None:
        if seconds >= TICK_S and not bar.displayed:
            bar.displayed = True
            publish(bar.container._repr_mimebundle_(), transient=display_id)
        bar.refresh()

    _open.append(bar)
    try:
        with ticking(tick):
            yield bar
    finally:
        _open.remove(bar)
        bar.close()
        bar.container.close()  # tqdm itself keeps, in red, one that ended early
        if bar.displayed:
            publish(NOTHING, transient=display_id, update=True)


def say(step: str) -> None:
    """Name the step that begins in the innermost bar, if there is one: for code that somebody else waits for."""
    if _open:
        _open[-1].set_postfix_str(step)


def over(items: Iterable[Item], what: str, name: Callable[[Item], str] = str) -> Iterator[Item]:
    """Go over `items`, with a bar that names the one whose turn it is.

    Parameters
    ----------
    items : iterable
        Taken as a list first, to know how many there are.
    what : str
        The step that each item takes, such as "Run".
    name : callable, optional
        The name of an item.
    """
    items = list(items)
    with wait(what, len(items)) as bar:
        for item in items:
            bar.set_postfix_str(name(item))
            yield item
            bar.update()
