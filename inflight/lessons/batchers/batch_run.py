"""Send requests to a model on a time line, and tell what became of each: which batch it was in, or why it was rejected.

    outcome = run(server, "batch-cost", at(workload.poisson(20, rate=200, seed=0)), log_path)
    outcome.executions["size"].tolist()                     # [1, 5, 6, 8]
    outcome.statistics.batches                              # the same, as Triton counts it

For models like batch-cost: one input, `work`, and an execution log.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from inflight import files
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client import Connection, NoAnswer, ServerGone
from inflight.triton.server import Server
from inflight.triton.telemetry import Statistics

SILENCE_S = 60  # longest wait for the next answer
# What Triton says of a request that a queue policy keeps from the model.
QUEUE_FULL, TIMED_OUT = "Exceeds maximum queue size", "Request timeout expired"
LINE = ("instance", "start_s", "end_s", "requests")
ANSWER = ["request", "answered_s", "answer_order", "outcome", "message"]
LOOK_EVERY_S = 0.25  # how often `follow` tells what has happened, at most
SHARE = 0.2  # of its time that it leaves to who makes a picture of that
LONGEST_LOOK_S = 1.0  # between two looks, so that a run can be stopped
BEHIND_S = 0.02  # so late a request is not sent because the machine is busy: no look is taken then
SWITCH_S = 0.0005  # after which who makes a picture of it lets go of the interpreter for who sends and receives


@dataclass(frozen=True)
class Arrival:
    """A request to be sent.

    Attributes
    ----------
    at_s : float
        When, in seconds from the start.
    work : int
        Units of work in it.
    priority : int
        Its level, of which 1 is served first; 0: it names none.
    timeout_us : int
        Its own time-out in microseconds; 0: it names none.
    """

    at_s: float
    work: int = 1
    priority: int = 0
    timeout_us: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of the requests. Times are in seconds since the first was sent, unless their name says otherwise.

    Attributes
    ----------
    requests : DataFrame
        One row a request, in the order of sending: `request` (from 1); `at_s`, `work`, `priority`, `timeout_us` of its
        `Arrival`; `sent_s`, `answered_s`, `latency_ms`; `answer_order`, 1 for the first that came back; `outcome`,
        "answered" or "rejected", and `message`, Triton's reason, blank without one; of an answered one `execution` (see
        below), `place` among its batch's requests (from 0) and `queue_ms`, from sending to the start of its execution.
    executions : DataFrame
        One row a batch, in the order in which they began: `execution` (from 1), `instance`, `start_s`, `end_s`, `size`
        (requests), `work` (units), `requests` (their numbers, in the order of the batch).
    statistics : telemetry.Statistics
        What Triton counts of this run. Requests that found the queue full are not in it, neither as succeeded nor as
        failed.
    """

    requests: pd.DataFrame
    executions: pd.DataFrame
    statistics: Statistics


def at(times: Sequence[float], **values) -> list[Arrival]:
    """Equal requests at `times`, as of `workload.poisson(100, rate=50, seed=0)`; `values` as in `Arrival`."""
    return [Arrival(at_s, **values) for at_s in times]


def run(
    server: Server, model: str, arrivals: Sequence[Arrival], log_path: str | Path, silence_s: float = SILENCE_S
) -> Outcome:
    """Send every request when it is due, and wait until each is answered or rejected.

    One thread sends all, over one connection, in the order of their times. Triton reads with several: requests that
    leave within a millisecond may reach its queue in another order.

    Parameters
    ----------
    arrivals : sequence of Arrival
    log_path : path
        The model's `execution_log_path`.
    silence_s : float
        Longest wait for the next answer.

    Raises
    ------
    CourseError
        There is no request, or no log; one was neither answered nor rejected, with the reason; nothing came back for
        `silence_s`.
    """
    return _Run(server, model, arrivals, log_path, silence_s).whole()


def follow(server: Server, model: str, arrivals: Sequence[Arrival], log_path: str | Path) -> Iterator[Outcome]:
    """As `run`, and tell meanwhile: yields what has happened so far; the last is whole.

    Until then a request that is under way has the `outcome` "waiting" and is `answered_s` now, one in a batch that has
    ended is answered with it, and `statistics` counts nothing. Making a picture takes time from the sending: the longer
    one took, the later the next is asked for. Still, what is measured belongs into `run`. Closed early, as when a loop
    over it is left, it sends no more, and waits for what it sent.
    """
    run, switch_s, pause_s = _Run(server, model, arrivals, log_path), sys.getswitchinterval(), LOOK_EVERY_S
    with ThreadPoolExecutor(1) as pool:
        running, looked_s = pool.submit(run.whole), time.perf_counter()
        sys.setswitchinterval(SWITCH_S)
        try:
            while not wait([running], timeout=pause_s).done:
                began = time.perf_counter()
                if run.sent and (not run.is_behind or began - looked_s > LONGEST_LOOK_S):
                    yield run.so_far()
                    looked_s = time.perf_counter()
                    took_s = looked_s - began
                    pause_s = min(max(LOOK_EVERY_S, took_s * (1 / SHARE - 1)), LONGEST_LOOK_S)
        finally:
            sys.setswitchinterval(switch_s)
            run.stopping.set()
    yield running.result()


class _Run:
    """One run: one thread makes it, and another may look at it meanwhile."""

    def __init__(
        self,
        server: Server,
        model: str,
        arrivals: Sequence[Arrival],
        log_path: str | Path,
        silence_s: float = SILENCE_S,
    ):
        if not arrivals:
            raise CourseError("There is no request to send: give at least one.")
        self._server, self._model, self._log_path, self._silence_s = server, model, log_path, silence_s
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)
        self._before = telemetry.statistics(server.http_url, model)
        self._log_start = files.size(log_path)
        if not Path(log_path).exists():  # the model makes it when it is loaded
            raise CourseError(f"There is no execution log {log_path}. Set the model's execution_log_path to it.")
        self.sent: list[dict] = []  # rows of the requests
        self._answers: list[tuple] = []  # in the order in which they came back
        self.stopping = threading.Event()
        self._clock = _Clock()

    def whole(self) -> Outcome:
        """Send all, and wait for all."""
        with Connection(self._server.grpc_url) as connection:
            connection.connect()  # making the connection is no part of the first request
            self._clock = _Clock()
            self._send(connection)
            self._receive(connection)
        requests = pd.DataFrame(self.sent).merge(pd.DataFrame(self._answers, columns=ANSWER), on="request")
        requests["latency_ms"] = (requests["answered_s"] - requests["sent_s"]) * 1000
        executions = self._executions()
        requests = _located(requests, executions)
        lost = requests["request"][(requests["outcome"] == "answered") & requests["execution"].isna()]
        if len(lost):
            raise CourseError(
                f"Request {lost.iloc[0]} was answered, but is not in the execution log {self._log_path}. Name the "
                "file that the model's execution_log_path names."
            )
        return Outcome(requests, executions, self._statistics(requests))

    def so_far(self) -> Outcome:
        """What has happened, as `follow` tells it."""
        now, executions = self._clock(), self._executions()
        answers = pd.DataFrame(self._answers[:], columns=ANSWER)
        requests = pd.DataFrame(self.sent[:]).merge(answers, on="request", how="left")
        requests = _located(requests, executions)
        ends = requests["execution"].map(executions.set_index("execution")["end_s"])
        requests["outcome"] = requests["outcome"].fillna(ends.notna().map({True: "answered", False: "waiting"}))
        requests["answered_s"] = requests["answered_s"].astype(float).fillna(ends.astype(float)).fillna(now)
        requests["latency_ms"] = (requests["answered_s"] - requests["sent_s"]) * 1000
        return Outcome(requests, executions, self._before - self._before)

    @property
    def is_behind(self) -> bool:
        """Whether the next request should have been sent by now."""
        following = self._arrivals[len(self.sent) : len(self.sent) + 1]
        return bool(following) and self._clock() - following[0].at_s > BEHIND_S

    def _send(self, connection: Connection) -> None:
        for number, arrival in enumerate(self._arrivals, 1):
            work = {"work": np.array([[arrival.work]], np.int32)}
            if self.stopping.wait(max(0.0, arrival.at_s - self._clock())):
                return
            self.sent.append({"request": number, **asdict(arrival), "sent_s": self._clock()})
            connection.send(
                number,
                self._model,
                work,
                request_id=str(number),
                priority=arrival.priority,
                timeout=arrival.timeout_us or None,
            )

    def _receive(self, connection: Connection) -> None:
        while len(self._answers) < len(self.sent):
            try:
                reply = connection.next_reply(self._silence_s)
            except NoAnswer:
                raise CourseError(
                    f"{len(self.sent) - len(self._answers)} of {len(self.sent)} requests to {self._model!r} had no "
                    f"answer; none came for {self._silence_s} s. See whether the model still works. Last lines of the "
                    f"server's log:\n{self._server.log_tail()}"
                ) from None
            message = str(reply.error or "")
            if isinstance(reply.error, ServerGone):
                raise CourseError(
                    "The server went away while requests were under way. Start it again. Last lines of its "
                    f"log:\n{self._server.log_tail()}"
                )
            if message not in ("", QUEUE_FULL, TIMED_OUT):
                raise CourseError(
                    f"Request {reply.number} to {self._model!r} was neither answered nor rejected: "
                    f"{message.rstrip('.')}. Correct the request, or look at the server's log."
                )
            outcome, order = "rejected" if message else "answered", len(self._answers) + 1
            self._answers.append((reply.number, self._clock.of(reply.arrived_s), order, outcome, message))

    def _executions(self) -> pd.DataFrame:
        """What was added to the log since the start, by start: its lines are in the order of their ends."""
        table = telemetry.read_log(self._log_path, "execution", LINE, self._log_start)
        table = table.sort_values("start_s", ignore_index=True)
        try:
            table["size"] = table["requests"].map(len)
            table["work"] = table["requests"].map(lambda requests: sum(work for _, work in requests))
            table["requests"] = table["requests"].map(lambda requests: [int(request) for request, _ in requests])
        except (ValueError, TypeError):
            raise CourseError(
                f"{self._log_path} is not an execution log of these requests alone. Name the file that "
                "execution_log_path names, and let nobody else send."
            ) from None
        table[["start_s", "end_s"]] -= self._clock.started_at
        table.insert(0, "execution", range(1, len(table) + 1))
        return table[["execution", "instance", "start_s", "end_s", "size", "work", "requests"]]

    def _statistics(self, requests: pd.DataFrame) -> Statistics:
        """What Triton counts of this run, as soon as it has counted it."""
        ended, computed = (requests["message"] != QUEUE_FULL).sum(), (requests["outcome"] == "answered").sum()

        def is_whole(now: Statistics) -> bool:  # a batch is counted after its requests
            done = now - self._before
            return done.succeeded + done.failed >= ended and done.inferences >= computed

        return telemetry.statistics_when(self._server.http_url, self._model, is_whole) - self._before


class _Clock:
    """Seconds since it was made: on this process's clock, and as the log counts them, since 1970."""

    def __init__(self):
        self.started_at, self._zero_s = time.time(), time.perf_counter()

    def __call__(self) -> float:
        return self.of(time.perf_counter())

    def of(self, moment_s: float) -> float:
        """A moment of `time.perf_counter`."""
        return moment_s - self._zero_s


def _located(requests: pd.DataFrame, executions: pd.DataFrame) -> pd.DataFrame:
    """`requests` with the batch that each was in."""
    places = executions.explode("requests").rename(columns={"requests": "request"})
    places["place"] = places.groupby("execution").cumcount()
    places = places[["request", "execution", "place", "start_s"]]
    places = places.astype({"request": int, "execution": "Int64", "place": "Int64", "start_s": float})
    requests = requests.merge(places, on="request", how="left")
    requests["queue_ms"] = (requests.pop("start_s") - requests["sent_s"]) * 1000
    return requests
