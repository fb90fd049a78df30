"""Talk to a model with a memory: requests that belong together carry the same correlation id.

    answers = send(server, [Step(1, value=3, start=True), Step(2, value=10, start=True),
                            Step(1, value=4, end=True)])
    answers[["sequence", "sum", "controls"]]                # 1: 3, 2: 10, 1: 7

Triton's sequence batcher keeps a place for a sequence from its START to its END, over any number of calls of `send`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from inflight.errors import CourseError
from inflight.triton import client, repository, telemetry
from inflight.triton.client import Connection, Reply
from inflight.triton.server import Server

SILENCE_S = 60  # longest wait for the next answer
OUTPUTS = ("sum", "memory", "controls", "execution", "place")
COLUMNS = ["request", "sequence", "value", "text", "start", "end", "outcome", "message", *OUTPUTS]


@dataclass(frozen=True)
class Step:
    """A request of a sequence.

    Attributes
    ----------
    sequence : int
        The correlation id, at least 1.
    value : int
        What is added to the sequence's sum; 32 bits.
    text : str
        What its memory keeps; nothing when blank.
    start, end : bool
        Whether it is the first request of its sequence, and the last.
    """

    sequence: int
    value: int = 0
    text: str = ""
    start: bool = False
    end: bool = False


def send(
    server: Server, steps: Sequence[Step], model: str = repository.RUNNING_SUM, timeout_s: float = SILENCE_S
) -> pd.DataFrame:
    """Send requests one right after the other, and wait for all the answers.

    All go over one stream, so that they reach the server in their order: with one call a request, a later one may
    overtake an earlier one of its sequence.

    Returns
    -------
    DataFrame
        One row a step, in the order of sending: `request` (from 1); `sequence`, `value`, `text`, `start`, `end` as in
        its `Step`; `outcome`, "answered" or "refused", and `message`, Triton's reason. Of one that was answered, `sum`
        and `memory` of its sequence, `controls`, what Triton told the model, such as "START READY"; `execution`, the
        batch it was in (from 1), and its `place` there (from 0).

    Raises
    ------
    CourseError
        Nothing came back for `timeout_s`; the server went away.
    """
    inputs = [_arrays(step) for step in steps]
    with Connection(server.grpc_url) as connection:
        connection.open_stream()
        for number, (step, arrays) in enumerate(zip(steps, inputs), 1):
            connection.send_on_stream(
                model,
                arrays,
                str(number),
                sequence_id=step.sequence,
                sequence_start=step.start,
                sequence_end=step.end,
            )
        # A stream answers in the order of its requests; an error does not say of which it is.
        rows = [
            {"request": number, **asdict(step), **_outcome(server, connection.next_reply(timeout_s))}
            for number, step in enumerate(steps, 1)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def executions(log_path: str | Path, start: int = 0) -> pd.DataFrame:
    """Who was where in each batch, from a running-sum's execution log.

    Parameters
    ----------
    log_path : path
    start : int
        Bytes of the log that are passed over: what it had when this run began.

    Returns
    -------
    DataFrame
        One row a place of a batch: `instance`, which copy of the model computed it; `execution`, its number there;
        `start_s`, `end_s` (seconds since 1970); `place`, `sequence` (its correlation id), `start`, `end`, `ready`.
        Where `ready` is false, no request had come for the place.

    Raises
    ------
    CourseError
        The log cannot be read.
    """
    log = telemetry.read_log(log_path, "execution", ("instance", "execution", "start_s", "end_s", "rows"), start)
    rows = [
        (line.instance, line.execution, line.start_s, line.end_s, place, sequence, start, end, ready)
        for line in log.itertuples()
        for sequence, start, end, ready, place in line.rows
    ]
    return pd.DataFrame(
        rows, columns=["instance", "execution", "start_s", "end_s", "place", "sequence", "start", "end", "ready"]
    )


def _arrays(step: Step) -> dict[str, np.ndarray]:
    return {"value": np.array([[step.value]], np.int32), "text": client.text(step.text)}


def _outcome(server: Server, reply: Reply) -> dict:
    if isinstance(reply.error, client.Refused):
        return {"outcome": "refused", "message": str(reply.error)}
    if reply.error is not None:
        raise CourseError(
            f"The server at {server.grpc_url} went away before the last answer. Start it again."
        ) from reply.error
    values = {name: reply.result.as_numpy(name).item() for name in OUTPUTS}
    texts = {name: value.decode("utf-8") for name, value in values.items() if isinstance(value, bytes)}
    return {"outcome": "answered", "message": "", **values, **texts}
