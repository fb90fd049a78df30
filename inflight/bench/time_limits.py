"""Ends requests that take too long, from one thread for all of them.

    limits = TimeLimits()
    with limits.within(300, wire.cut):
        ...                             # after 300 s `wire.cut` is called

A thread for each request would have to run before the request can be sent: on a busy machine that takes as long as the
machine lets it wait, and it would be counted as the server's time.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

LINGER_S = 10.0  # that the thread stays when nothing is to be watched, for the next request


class TimeLimits:
    """What is under way, and until when. May be used from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[object, tuple[float, Callable[[], None]]] = {}
        self._looks_at = math.inf
        self._is_watched = False

    @contextlib.contextmanager
    def within(self, limit_s: float, cut: Callable[[], None]) -> Iterator[None]:
        """Call `cut` from another thread if the block takes longer than `limit_s`; never after its end."""
        key, until = object(), time.monotonic() + limit_s
        with self._changed:
            self._under_way[key] = until, cut
            if not self._is_watched:
                self._is_watched, self._looks_at = True, until
                threading.Thread(target=self._watch, name="time limits", daemon=True).start()
            elif until < self._looks_at:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._under_way.pop(key, None)

    def _watch(self) -> None:
        with self._changed:
            while self._under_way or self._lingers():
                now = time.monotonic()
                for key, (until, cut) in list(self._under_way.items()):
                    if until <= now:
                        del self._under_way[key]
                        cut()
                if self._under_way:
                    self._looks_at = min(until for until, _ in self._under_way.values())
                    self._changed.wait(self._looks_at - time.monotonic())
            self._is_watched = False

    def _lingers(self) -> bool:
        """Wait for more to watch; whether there is."""
        self._looks_at = math.inf
        self._changed.wait(LINGER_S)
        return bool(self._under_way)
