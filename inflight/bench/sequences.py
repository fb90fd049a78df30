"""Talk to a model with a memory: requests that belong together carry the same correlation id.

    answers = send(server, [Step(1, value=3, start=True), Step(2, value=10, start=True),
                            Step(1, value=4, end=True)])
    answers[["sequence", "sum", "controls"]]                # 1: 3, 2: 10, 1: 7

Triton's sequence batcher keeps a place for a sequence from its START to its END, over any number of calls of `send`.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from inflight.errors import CourseError
from inflight.triton import repository
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


def send(server: Server, steps: Sequence[Step], model: str = repository.RUNNING_SUM) -> pd.DataFrame:
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
        There is no step; a value has more than 32 bits; nothing came back for SILENCE_S; the server went away.
    """
    if not steps:
        raise CourseError("There is no step to send: give at least one.")
    inputs = [_tensors(step) for step in steps]  # all are right before one is sent
    answers: queue.SimpleQueue = queue.SimpleQueue()
    with triton.InferenceServerClient(server.grpc_url) as connection:
        connection.start_stream(lambda result, error: answers.put((result, error)))
        for number, (step, tensors) in enumerate(zip(steps, inputs), 1):
            connection.async_stream_infer(
                model,
                tensors,
                request_id=str(number),
                sequence_id=step.sequence,
                sequence_start=step.start,
                sequence_end=step.end,
            )
        # A stream answers in the order of its requests; an error does not say of which it is.
        rows = [
            {"request": number, **asdict(step), **_outcome(server, answers)} for number, step in enumerate(steps, 1)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def executions(log_path: str | Path) -> pd.DataFrame:
    """Who was where in each batch, from a running-sum's execution log.

    Returns
    -------
    DataFrame
        One row a place of a batch: `execution`, `start_s`, `end_s` (seconds since 1970), `place`, `sequence` (its
        correlation id), `start`, `end`, `ready`. Where `ready` is false, no request had come for the place.

    Raises
    ------
    CourseError
        The log cannot be read.
    """
    try:
        lines = [json.loads(line) for line in Path(log_path).read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise CourseError(
            f"The execution log {log_path} cannot be read ({error}). Set execution_log_path and send a request first."
        ) from None
    rows = [
        (line["execution"], line["start_s"], line["end_s"], place, sequence, start, end, ready)
        for line in lines
        for sequence, start, end, ready, place in line["rows"]
    ]
    return pd.DataFrame(rows, columns=["execution", "start_s", "end_s", "place", "sequence", "start", "end", "ready"])


def _tensors(step: Step) -> list[triton.InferInput]:
    if abs(step.value) > np.iinfo(np.int32).max:
        raise CourseError(f"The value {step.value} of sequence {step.sequence} has more than 32 bits. Give less.")
    arrays = {"value": np.array([[step.value]], np.int32), "text": np.array([[step.text.encode("utf-8")]], np.object_)}
    return [
        triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


def _outcome(server: Server, answers: queue.SimpleQueue) -> dict:
    try:
        result, error = answers.get(timeout=SILENCE_S)
    except queue.Empty:
        raise CourseError(f"No answer from {server.grpc_url} within {SILENCE_S} s: look at the server's log.") from None
    if error is not None and error.status():  # of the stream; that of a request has none
        raise CourseError(
            f"The server at {server.grpc_url} went away before the last answer ({error.message()}). Start it again."
        ) from error
    if error is not None:
        return {"outcome": "refused", "message": error.message()}
    values = {name: result.as_numpy(name).item() for name in OUTPUTS}
    texts = {name: value.decode("utf-8") for name, value in values.items() if isinstance(value, bytes)}
    return {"outcome": "answered", "message": "", **values, **texts}
