"""A load of requests: each is sent when it is due, and becomes one row.

    with Sender("127.0.0.1:8001") as send:
        run = send_all(send, requests)                  # requests from inflight.bench.workload
    run.requests["latency_ms"].mean()

Times depend on the machine; nothing here judges them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from inflight.bench.senders import Sends
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError

MOST_UNDER_WAY = 512  # threads of an open loop
ENDING_S = 0.5  # that requests under way have to end when the run is over early

COLUMNS = [
    "request",
    "due_s",
    "sent_s",
    "first_s",
    "last_s",
    "input_len",
    "output_len",
    "max_tokens",
    "ttft_ms",
    "tpot_ms",
    "latency_ms",
    "request_id",
    "error",
]


def send_all(
    send: Sends,
    requests: list[TimedRequest],
    concurrency: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Clock | None = None,
) -> Run:
    """Send every request when it is due, and wait for all answers.

    Latency and TTFT count from the moment a request was due, not from when it could be sent at last: a server that
    stalls, or a client that cannot keep up, makes later requests wait, and their users with them. (To count from the
    sending leaves those waits out, just where they are longest: "coordinated omission".)

    This is an open loop: a request is due at its time, whatever has become of others; one that finds `MOST_UNDER_WAY`
    others under way is sent late. With a `concurrency` the loop is closed: there are so many users, and a request is
    due as soon as one of them has the answer to the one before.

    Parameters
    ----------
    send : Sends
        A `Sender`, or another.
    requests : list of TimedRequest
    concurrency : int, optional
        Users of a closed loop, in which no request waits for its `at_s`.
    progress : callable, optional
        Called with the number of requests that are done, and of all, whenever one is.
    clock : Clock, optional
        That of the times that `send` gives; by default the machine's own.

    Returns
    -------
    Run
        Every request has its row: a failed one with its error and no tokens. When the server goes away, at Ctrl-C or
        SIGTERM, the run ends at once; it says so in `stopped`, and keeps what came until then. What the server has not
        ended half a second later is left to itself.

    Raises
    ------
    CourseError
        There is no request, or `concurrency` is below 1.
    """
    if not requests:
        raise CourseError("There is no request to send: give at least one.")
    if concurrency is not None and concurrency < 1:
        raise CourseError(f"The concurrency is {concurrency}; it must be at least 1.")
    run = _Load(send, requests, progress, concurrency is not None, clock or Clock())
    number = min(len(requests), concurrency or MOST_UNDER_WAY)
    users = [threading.Thread(target=run.work, name=f"load {user}", daemon=True) for user in range(number)]
    interrupt = None
    try:
        for user in users:
            user.start()
        for user in users:
            user.join()
    except (KeyboardInterrupt, SystemExit) as error:  # Ctrl-C, or SIGTERM to a command
        interrupt = error
        run.stop("The benchmark was interrupted")
        until = time.monotonic() + ENDING_S
        for user in users:
            if user.ident is not None:
                user.join(max(0.0, until - time.monotonic()))
    return run.result(interrupt)


def warm_up(send: Sends, requests: list[TimedRequest], number: int) -> None:
    """Send the first `number` of `requests` at once, and drop their results.

    What an engine does once, at its first requests, is not part of a measurement then. Raises as `Run.whole`.
    """
    send_all(send, [replace(request, at_s=0.0) for request in requests[:number]]).whole()


@dataclass(frozen=True)
class Run:
    """The outcome of a load.

    Attributes
    ----------
    requests : DataFrame
        One row a request, in the order of the list that was sent: `request` (its number in that list, from 0);
        `due_s`, `sent_s`, `first_s`, `last_s` (seconds since the run's start: when it was to be sent, and when it was);
        `input_len`, `output_len`, `max_tokens` (tokens); `ttft_ms`, `tpot_ms`, `latency_ms` (milliseconds, TTFT and
        latency since it was due); `request_id`, as in `Timing`; `error` (why there is no answer; blank if there is
        one). What is not known is NaN: TTFT and TPOT of a whole answer, TPOT of a single token, times of a request
        that was not sent.
    started_at : float
        The run's start in seconds since 1970, as the timestamps of the iteration log.
    stopped : str
        Why the run ended before its last request, as a sentence; blank if it did not.
    interrupt : KeyboardInterrupt, SystemExit or None
        What ended it, where that was Ctrl-C or SIGTERM.
    """

    requests: pd.DataFrame
    started_at: float
    stopped: str = ""
    interrupt: BaseException | None = None

    @property
    def answered(self) -> pd.DataFrame:
        """The rows without an error."""
        return self.requests[self.requests["error"] == ""]

    @property
    def trouble(self) -> str:
        """Say in a sentence why not every request was answered; blank if every one was."""
        if self.stopped:
            return self.stopped
        failed = self.requests[self.requests["error"] != ""].sort_values("last_s")  # the first is why the others did
        if failed.empty:
            return ""
        return f"{len(failed)} of {len(self.requests)} requests failed, the first with: {failed['error'].iloc[0]}"

    def whole(self) -> Run:
        """Return the run itself, if every request was answered.

        Raises
        ------
        CourseError
            One was not, with the first reason (`trouble`).
        KeyboardInterrupt, SystemExit
            The run was interrupted.
        """
        if self.interrupt is not None:
            raise self.interrupt
        if self.trouble:
            raise CourseError(self.trouble)
        return self


NO_RUN = Run(pd.DataFrame(columns=COLUMNS), 0.0)  # before anything is sent


class Clock:
    """The machine's monotonic clock, from which a load takes its times."""

    def now_ns(self) -> int:
        """Nanoseconds since a fixed moment."""
        return time.perf_counter_ns()

    def wait_until(self, ns: int, ended: threading.Event) -> bool:
        """Wait until that moment, or until `ended` is set; return whether it is."""
        return ended.wait(max(0.0, (ns - self.now_ns()) / 1e9))


class _Load:
    """State that the threads of a load share: each takes the next request, waits until it is due, and sends it."""

    def __init__(
        self,
        send: Sends,
        requests: list[TimedRequest],
        progress: Callable[[int, int], None],
        closed: bool,
        clock: Clock,
    ):
        self._send, self._requests, self._progress, self._clock = send, requests, progress, clock
        self._closed = closed
        self._next = iter(range(len(requests)) if closed else _by_time(requests))
        self._rows: dict[int, dict] = {}
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._stopping = threading.Event()
        self._reason = ""
        self._trouble: BaseException | None = None
        self._started_at, self._zero_ns = time.time(), clock.now_ns()

    def work(self) -> None:
        """Take requests until none is left."""
        try:
            for index in self._next:
                at_ns = self._zero_ns + round(self._requests[index].at_s * 1e9)
                due_ns = self._clock.now_ns() if self._closed else at_ns
                if self._clock.wait_until(due_ns, self._stopping):
                    return
                row = self._row(index, due_ns)
                with self._lock:
                    self._rows[index] = row
                    self._progress(len(self._rows), len(self._requests))
        except BaseException as error:  # of `send` or `progress`: told where the load was called
            self._trouble = error
            self.stop("The benchmark failed")

    def stop(self, reason: str) -> None:
        """Send nothing more, and end what is under way."""
        with self._lock:
            if self._stopping.is_set():
                return
            self._reason = reason
            self._stopping.set()
        self._send.abort()

    def result(self, interrupt: BaseException | None) -> Run:
        """Return the rows of all requests, also of those that were not sent or not answered in time."""
        if self._trouble is not None:
            raise self._trouble
        with self._lock:
            rows = dict(self._rows)
        for index, request in enumerate(self._requests):
            if index not in rows:
                due = {} if self._closed else {"due_s": request.at_s}
                rows[index] = self._facts(index) | due | {"error": f"No answer: {self._reason}."}
        table = pd.DataFrame([rows[index] for index in sorted(rows)], columns=COLUMNS)
        answered = (table["error"] == "").sum()
        stopped = f"{self._reason} after {answered} of {len(table)} answers." if self._reason else ""
        return Run(table, self._started_at, stopped, interrupt)

    def _row(self, index: int, due_ns: int) -> dict:
        """Send a request, and make its row."""
        row, sent_ns = self._facts(index) | {"due_s": self._seconds(due_ns)}, self._clock.now_ns()
        try:
            timing = self._send(self._requests[index])
        except CourseError as error:
            row |= {"sent_s": self._seconds(sent_ns), "last_s": self._seconds(self._clock.now_ns())}
            self._stop_if_gone()
            return row | {"error": str(error)}
        row |= {
            "sent_s": self._seconds(timing.sent_ns),
            "last_s": self._seconds(timing.last_ns),
            "latency_ms": (timing.last_ns - due_ns) / 1e6,
            "output_len": timing.output_len,
            "request_id": timing.request_id,
        }
        if timing.first_ns is not None:
            row |= {"first_s": self._seconds(timing.first_ns), "ttft_ms": (timing.first_ns - due_ns) / 1e6}
            if timing.output_len > 1:
                row["tpot_ms"] = (timing.last_ns - timing.first_ns) / 1e6 / (timing.output_len - 1)
        return row

    def _facts(self, index: int) -> dict:
        """Return the facts about a request that are known before it is sent; a column without a value becomes NaN."""
        request = self._requests[index]
        lengths = {"input_len": request.input_len, "output_len": 0, "max_tokens": request.max_tokens}
        return {"request": index, **lengths, "request_id": "", "error": ""}

    def _stop_if_gone(self) -> None:
        """End the run if the server is gone; one thread looks at a time."""
        with self._looking:
            if not self._stopping.is_set() and not self._send.is_alive():
                self.stop(f"The server at {self._send.url} went away")

    def _seconds(self, ns: int) -> float:
        return (ns - self._zero_ns) / 1e9


def _by_time(requests: list[TimedRequest]) -> list[int]:
    return sorted(range(len(requests)), key=lambda index: requests[index].at_s)
