"""A clock that only goes on when every thread of a load waits for it, and a server on it: no machine is too slow."""

from __future__ import annotations

import heapq
import itertools
import threading

from inflight.bench.load import Clock
from inflight.bench.senders import Timing
from inflight.bench.workload import TimedRequest


class VirtualClock(Clock):
    """A `load.Clock` for one load of `requests` requests by `workers` threads.

    When all threads wait, it is at once the earliest moment that one of them waits for, and that one alone goes on.
    """

    def __init__(self, requests: int, workers: int | None = None):
        workers = requests if workers is None else workers
        self._now_ns = 0
        self._awake = workers
        self._goes_on_for = requests - workers  # answers after which their thread takes another request
        self._waiting: list[tuple[int, int, threading.Event]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        return self._now_ns

    def wait_until(self, ns: int, ended: threading.Event) -> bool:
        self.sleep_until(ns)
        return ended.is_set()

    def sleep_until(self, ns: int) -> None:
        turn = threading.Event()
        with self._lock:
            if ns <= self._now_ns:
                return
            heapq.heappush(self._waiting, (ns, next(self._order), turn))
            self._rest()
        assert turn.wait(60), "the load's threads do not wait as the clock was told"

    def done(self) -> None:
        """A request is answered, and its thread ends when no other is left for it."""
        with self._lock:
            self._goes_on_for -= 1
            if self._goes_on_for < 0:
                self._rest()

    def _rest(self) -> None:
        self._awake -= 1
        if self._awake == 0 and self._waiting:
            self._now_ns, _, turn = heapq.heappop(self._waiting)
            self._awake = 1
            turn.set()


class OneServer:
    """Serves one request at a time, `service_ns` of its place each; sends the first token after half of it."""

    url = "nowhere"

    def __init__(self, clock: VirtualClock, service_ns):
        self._clock, self._service_ns = clock, service_ns
        self._free_ns, self._number = 0, itertools.count()

    def __call__(self, request: TimedRequest) -> Timing:
        sent, service_ns = self._clock.now_ns(), self._service_ns(next(self._number))
        start = max(sent, self._free_ns)
        self._free_ns = start + service_ns
        self._clock.sleep_until(start + service_ns // 2)
        first = self._clock.now_ns()
        self._clock.sleep_until(start + service_ns)
        self._clock.done()
        return Timing(sent, first, start + service_ns, request.max_tokens)

    def is_alive(self) -> bool:
        return True

    def abort(self) -> None:
        """Nothing to end."""
