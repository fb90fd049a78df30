"""Housekeeping of an iterative model: keeps its sequences, ends each, and forgets those whose clients have gone.

Triton calls a model whose sequences are iterative again and again with the same requests, and the model computes. Every
such model must end each request once and in order, forget clients that have gone, and survive the faults of Triton
2.51. This module does that:

    self.house = Housekeeping(args, self.begin, self.forget)          # in initialize

    with self.house.execution(requests) as execution:                 # in execute
        for member in execution.members:
            ...                                                       # compute
        self.house.send(execution.members, response)
        for member in execution.members:
            self.house.end(member) if member.state.is_finished else self.house.again(member)
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.triton.model import python_model

QUIET_S = 0.1  # more than Triton takes to release a request, or to come back with one, after an execution
NUM_SENDERS = 4  # responses that leave at the same time
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RELEASE_ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE


@dataclass(eq=False)
class Member:
    """A sequence that takes part in one execution.

    Attributes
    ----------
    number : int
        Its correlation id.
    is_new : bool
        Whether it is there for the first time.
    state : object
        What the model's `begin` gave.
    """

    number: int
    is_new: bool
    state: Any
    request: Any
    sender: Any
    is_decided: bool = False  # `again` or `end` was called for it


@dataclass
class Execution:
    """One call of `execute`.

    Attributes
    ----------
    members : list of Member
        The sequences that have something to compute.
    empty_slots : int
        Slots of the batch that have no request now.
    timestamp, start_s : float
        When it began: seconds since 1970, and of the monotonic clock.
    """

    members: list[Member]
    empty_slots: int
    timestamp: float
    start_s: float


@dataclass
class _Kept:
    """A sequence's data, kept from one execution to the next."""

    state: Any
    sender: Any  # sends its responses; Triton gives a new one in each execution
    last_seen_s: float


class Housekeeping:
    """The sequences of an iterative model that are under way.

    Parameters
    ----------
    begin : callable
        Takes the request of a new sequence and gives the model's state of it; what it raises is the request's error.
    forget : callable
        Takes such a state when its sequence is over, however it ended, and gives back what it holds.
    on_change : callable, optional
        Called after each execution, and after sequences were forgotten between two.
    """

    def __init__(
        self,
        args: dict[str, Any],
        begin: Callable[[Any], Any],
        forget: Callable[[Any], None],
        on_change: Callable[[], None] = lambda: None,
    ):
        batching = json.loads(args["model_config"])["sequence_batching"]
        self._idle_s = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self._begin, self._forget_state, self._on_change = begin, forget, on_change
        self._kept: dict[int, _Kept] = {}  # by correlation id, in the order of their start
        # Sender, and error if there is one, of sequences whose requests Triton is about to release.
        self._endings: list[tuple[Any, Exception | None]] = []
        self._executed_s = 0.0
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._pool = ThreadPoolExecutor(NUM_SENDERS)
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def states(self) -> list[Any]:
        """List the states of all sequences under way, in the order of their start, whether in this execution or not."""
        return [kept.state for kept in self._kept.values()]

    @contextlib.contextmanager
    def execution(self, requests: Sequence[Any]) -> Iterator[Execution]:
        """Take up the requests of one call of `execute`, and bring the call to its end.

        What is raised meanwhile is the error of every member that is not decided yet: nobody is left without an end.
        """
        with self._lock:
            self._send_endings()
            timestamp, start_s = time.time(), time.monotonic()
            # Where a slot of the batch has no request now, one that is not ready keeps it.
            ready = [request for request in requests if _control(request, "ready")]
            members = [member for member in (self._take_up(request, start_s) for request in ready) if member]
            self._forget_lost(start_s)
            try:
                yield Execution(members, len(requests) - len(ready), timestamp, start_s)
            except Exception as error:
                for member in members:
                    if not member.is_decided:
                        self.end(member, error)
            self._mark_seen(start_s)
            self._on_change()
            self._executed_s = time.monotonic()

    def send(self, members: Sequence[Member], response: Callable[[Member], Any]) -> None:
        """Send each member its response, all at once: each is a message to the server and back.

        Returns when all have left, and raises what went wrong with one only then: none may be under way when requests
        are released.
        """

        def send_one(member: Member) -> None:
            member.sender.send(response(member))

        sending = [self._pool.submit(send_one, member) for member in members]
        wait(sending)
        for one in sending:
            one.result()

    def again(self, member: Member) -> None:
        """Have the member come again in a later execution."""
        member.is_decided = True
        member.request.set_release_flags(RESCHEDULE)

    def end(self, member: Member, error: Exception | None = None) -> None:
        """Have the member's request released; the final response, which is empty or the error, leaves after that.

        Triton keeps the place of a request that is cancelled by the time of its release, and clients do cancel as soon
        as they have the final response. The place of a cancelled request is freed when it is to be scheduled again;
        then Triton answers it itself.
        """
        member.is_decided = True
        self._forget(member.number)
        if member.request.is_cancelled():
            member.request.set_release_flags(RESCHEDULE)
        else:
            member.request.set_release_flags(RELEASE_ALL)
            self._endings.append((member.sender, error))

    def close(self) -> None:
        """Send what is left, and end the threads."""
        with self._lock:
            self._send_endings()
        self._closing.set()
        self._watcher.join()
        self._pool.shutdown()

    def _take_up(self, request: Any, now_s: float) -> Member | None:
        """Return the member of a request; None when there is nothing to compute for it."""
        number, is_new = _control(request, "correlation_id"), bool(_control(request, "start"))
        member = Member(number, is_new, None, request, request.get_response_sender())
        try:
            if is_new:
                self._forget(number)
                if _control(request, "end"):  # Triton would lose it at its first rescheduling
                    raise CourseError("The request sets sequence_end: leave it out, since the model ends the sequence.")
                self._kept[number] = _Kept(self._begin(request), member.sender, now_s)
        except Exception as error:
            self.end(member, error)
            return None
        if number not in self._kept:  # it was given up, and has been told so
            return None
        kept = self._kept[number]
        kept.sender, kept.last_seen_s, member.state = member.sender, now_s, kept.state
        return member

    def _forget_lost(self, now_s: float, unseen_s: float = 0.0) -> None:
        """Forget sequences that have been unseen for so long that they will not come again.

        Triton drops a request whose client is gone while it is queued, and one that idles, without a word to the model.
        It looks for idle ones once in their time, so that after twice the time it has done so; their clients still
        wait.
        """
        for number, kept in list(self._kept.items()):
            unseen_now_s = now_s - kept.last_seen_s
            if unseen_now_s > 2 * self._idle_s:
                self._forget(number)
                error = CourseError(
                    f"The request was not computed for {self._idle_s * 1e6:,.0f} µs and was given up: send it "
                    "again, or set max_sequence_idle_microseconds higher."
                )
                kept.sender.send(python_model.error_response(error), flags=FINAL)
            # Nothing is kept of a sequence that had its final response, after which Triton crashes when it is asked.
            elif unseen_now_s > unseen_s and kept.sender.is_cancelled():
                self._forget(number)

    def _send_endings(self) -> None:
        """Send the final responses of the execution before, whose requests are released when another one begins."""
        for sender, error in self._endings:
            sender.send(error and python_model.error_response(error), flags=FINAL)
        self._endings = []

    def _watch(self) -> None:
        """Look for lost sequences and send endings when no execution comes that would do so.

        Triton does not tell when it has released a request.
        """
        while not self._closing.wait(QUIET_S):
            with self._lock:
                now_s = time.monotonic()
                if now_s - self._executed_s >= QUIET_S:
                    self._forget_lost(now_s, QUIET_S)
                    self._send_endings()
                    self._on_change()

    def _mark_seen(self, start_s: float) -> None:
        """Note that the sequences of this execution idle from now on, as Triton counts it: they are rescheduled now."""
        now_s = time.monotonic()
        for kept in self._kept.values():
            if kept.last_seen_s == start_s:
                kept.last_seen_s = now_s

    def _forget(self, number: int) -> None:
        if number in self._kept:
            self._forget_state(self._kept.pop(number).state)


def _control(request: Any, name: str) -> Any:
    return python_model.scalar(request, name)
