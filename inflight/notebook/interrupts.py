"""The toolbar's ■ while no cell runs: it ends what a widget's button has begun.

An interrupt reaches the kernel's main thread alone, and between two cells ipykernel ignores it. So for the time of a
run a handler of ours stands there. Only the main thread can set it; and while it handles a message, ipykernel has a
handler of its own, after which it puts back the one before. Hence ours is set, and taken away again, by the kernel's
event loop between two messages. A cell that runs is interrupted as ever.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from IPython import get_ipython

LOOK_EVERY_S = 0.2

_stops: list[Callable[[], None]] = []  # of the runs that are under way
_is_looking = False


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """For the time of the block, which may run in any thread, an interrupt of the idle kernel calls `stop`.

    Without a kernel nothing happens: there an interrupt is Python's own.

    Parameters
    ----------
    stop : callable
        Called by the main thread; it must return at once.
    """
    _stops.append(stop)
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is not None:
        kernel.io_loop.add_callback(_begin_to_look, kernel.io_loop)
    try:
        yield
    finally:
        _stops.remove(stop)


def _begin_to_look(loop) -> None:
    global _is_looking
    if not _is_looking:
        _is_looking = True
        _look(loop)


def _look(loop) -> None:
    """Set our handler while something runs and the kernel is idle; take it away after that."""
    global _is_looking
    handler = signal.getsignal(signal.SIGINT)
    if _stops and handler is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupted)
    elif not _stops and handler is _interrupted:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _stops or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a message is handled: ours may come back
        loop.call_later(LOOK_EVERY_S, _look, loop)
    else:
        _is_looking = False


def _interrupted(number: int, frame) -> None:
    for stop in list(_stops):
        stop()
