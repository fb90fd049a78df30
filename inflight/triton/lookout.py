"""Tells a client that waits for an answer that the model is gone, long before its time is up.

Triton answers the requests of a model no more whose process has ended, and keeps their connections open. But a server
of the course unloads such a model for a moment (`watch`), and whoever looks meanwhile sees that it is not ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 0.7  # less than `watch.SHOWN_S`


class Lookout:
    """Looks while a request waits, from a thread of its own. A context manager, for the time of the request.

    Parameters
    ----------
    is_gone : callable
        Whether the model is gone.
    on_gone : callable
        Called once if it is.
    """

    def __init__(self, is_gone: Callable[[], bool], on_gone: Callable[[], None]):
        self._is_gone = is_gone
        self._on_gone = on_gone
        self._has_come = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)

    def has_come(self) -> None:
        """Note that a piece of the answer has come: no need to look for a while."""
        self._has_come = True

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            if self._has_come:
                self._has_come = False
            elif self._is_gone() and not self._is_over.is_set():
                self._on_gone()
                return

    def __enter__(self) -> Lookout:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()


class SharedLook:
    """The latest answer to a question that many ask, asked again when it is older than half of LOOK_S."""

    def __init__(self, question: Callable[[], bool]):
        self._question = question
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._answer = False

    def __call__(self) -> bool:
        with self._lock:
            if time.monotonic() - self._asked_at > LOOK_S / 2:
                self._answer = self._question()
                self._asked_at = time.monotonic()
            return self._answer
