"""Send requests to a model on a time line, and tell what became of each: which batch it was in, or why it was rejected.

    outcome = run(server, "batch-cost", at(workload.poisson(20, rate=200, seed=0)), log_path)
    outcome.executions["size"].tolist()                     # [1, 5, 6, 8]
    outcome.statistics.batches                              # the same, as Triton counts it

For models like batch-cost: one input, `work`, and an execution log. The first execution after a load is some 30 ms
slower than the others: send one request before what is to be measured.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from inflight import files
from inflight.errors import QUEUE_FULL, TIMED_OUT, CourseError, reason
from inflight.triton import telemetry
from inflight.triton.client.connection import Connection, NoAnswer, ServerGone
from inflight.triton.serving.server import Server
from inflight.triton.telemetry import Statistics

SILENCE_S = 8  # longest wait for the next answer
LINE = ("instance", "start_s", "end_s", "requests")


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
    """

    at_s: float
    work: int = 1
    priority: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of requests. Times are in seconds since the first was sent, unless their name says otherwise.

    Attributes
    ----------
    requests : DataFrame
        One row a request, in the order of sending: `request` (from 1); `at_s`, `work`, `priority` of its `Arrival`;
        `sent_s`, `answered_s`, `latency_ms`; `answer_order`, 1 for the first that came back; `outcome`, "answered" or
        "rejected", and `code`, "queue_full" or "timed_out", blank without one; of an answered one `execution` (see
        below).
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
    server: Server,
    model: str,
    arrivals: Sequence[Arrival],
    log_path: str | Path,
    callers: int | None = None,
) -> Outcome:
    """Send every request when it is due, and wait until each is answered or rejected.

    One thread sends all, over one connection, in the order of their times. Triton reads with several: requests that
    leave within a millisecond may reach its queue in another order.

    Parameters
    ----------
    arrivals : sequence of Arrival
    log_path : path
        The model's `execution_log_path`.
    callers : int, optional
        Closed loop: at most so many requests are under way, and a request that is due waits for a caller who has an
        answer. By default an open loop, in which none waits for another.

    Raises
    ------
    CourseError
        There is no log; a request was neither answered nor rejected, with the reason; nothing came back for
        `SILENCE_S`; the server went away.
    """
    before, log_start = telemetry.statistics(server.http_url, model), files.size(log_path)
    if not Path(log_path).exists():  # the model makes it when it is loaded
        raise CourseError(f"There is no execution log {log_path}. Set the model's execution_log_path to it.")
    sent: list[dict] = []
    answers: list[tuple] = []
    with Connection(server.grpc_url) as connection:
        connection.connect()  # making the connection is no part of the first request
        started_at, zero_s = time.time(), time.perf_counter()
        for number, arrival in enumerate(sorted(arrivals, key=lambda arrival: arrival.at_s), 1):
            while callers is not None and number - len(answers) > callers:
                answers.append(_answer(connection, server, model, len(sent) - len(answers)))
            time.sleep(max(0.0, arrival.at_s - (time.perf_counter() - zero_s)))
            sent.append({"request": number, **asdict(arrival), "sent_s": time.perf_counter() - zero_s})
            work = {"work": np.array([[arrival.work]], np.int32)}
            connection.send(number, model, work, request_id=str(number), priority=arrival.priority)
        while len(answers) < len(sent):
            answers.append(_answer(connection, server, model, len(sent) - len(answers)))
    answered = pd.DataFrame(answers, columns=["request", "answered_s", "code"])
    answered["answered_s"] -= zero_s
    answered["answer_order"] = range(1, len(answered) + 1)
    answered["outcome"] = answered["code"].map(lambda code: "rejected" if code else "answered")
    requests = pd.DataFrame(sent).merge(answered, on="request")
    requests["latency_ms"] = (requests["answered_s"] - requests["sent_s"]) * 1000
    executions = _executions(log_path, log_start, started_at)
    homes = {request: batch.execution for batch in executions.itertuples() for request in batch.requests}
    requests["execution"] = requests["request"].map(homes).astype("Int64")
    computed, ended = len(homes), (requests["code"] != QUEUE_FULL).sum()

    def is_whole(now: Statistics) -> bool:  # a batch is counted after its requests
        done = now - before
        return done.succeeded + done.failed >= ended and done.inferences >= computed

    after = telemetry.wait_for(
        lambda: telemetry.statistics(server.http_url, model),
        is_whole,
        f"Triton does not count all requests to {model!r}, even {telemetry.METRICS_LAG_S} s later. Do not load the "
        "model while requests are under way, and run it again.",
    )
    return Outcome(requests, executions, after - before)


def _answer(connection: Connection, server: Server, model: str, left: int) -> tuple[int, float, str]:
    """The next reply: whose it is, when it came, and the code of a rejection, blank without one."""
    try:
        reply = connection.next_reply(SILENCE_S)
        if isinstance(reply.error, ServerGone):
            raise reply.error
    except (NoAnswer, ServerGone) as error:
        why = "the server went away" if isinstance(error, ServerGone) else f"none came for {SILENCE_S} s"
        what = f"{left} requests to {model!r} had no answer: {why}."
        raise type(error)(what, "Correct the model, and start the server again.", log=server.log_tail()) from None
    if reply.error is not None and reply.error.code not in (QUEUE_FULL, TIMED_OUT):
        raise CourseError(
            f"Request {reply.number} to {model!r} was neither answered nor rejected: {reason(reply.error)}.",
            "Correct the request, or look at the server's log.",
        )
    return reply.number, reply.arrived_s, reply.error.code if reply.error else ""


def _executions(log_path: str | Path, start: int, started_at: float) -> pd.DataFrame:
    """Return the log's new executions by start: its lines come in the order of their ends, its times since 1970."""
    table = telemetry.read_log(log_path, "execution", LINE, start).sort_values("start_s", ignore_index=True)
    table["size"] = table["requests"].map(len)
    table["work"] = table["requests"].map(lambda requests: sum(work for _, work in requests))
    table["requests"] = table["requests"].map(lambda requests: [int(request) for request, _ in requests])
    table[["start_s", "end_s"]] -= started_at
    table.insert(0, "execution", range(1, len(table) + 1))
    return table[["execution", "instance", "start_s", "end_s", "size", "work", "requests"]]
