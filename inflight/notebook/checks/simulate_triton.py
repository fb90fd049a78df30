"""Plays an iterative model as Triton would, without a server, and records what clients get and what the model keeps.

    triton = Triton("model.py", Names("text", "ID", "START", "READY", "word"), slots=4)
    played = triton.run([SimulatedStream("a b c", wanted=3), SimulatedStream("one two", wanted=2, leaves_after=1)])
    played.calls, played.streams[0].pieces                  # 3, ["a", "b", "c"]

It runs a `model.py` that others write, and leaves a stand-in for Triton's Python module behind: for a process of its
own, as `checks` gives one to a grader. Here the test decides whether a client leaves during a call or in the queue; on
a server that is chance.
"""

from __future__ import annotations

import itertools
import json
import runpy
import sys
import types
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from inflight.errors import CourseError

BACKEND = "triton_python_backend_utils"
FINAL, ALL, RESCHEDULE = 1, 1, 2  # Triton's flags
CORRELATION_ID = 40_000_000_000  # of the first sequence: Triton makes up large ones
MOST_SILENT = 5  # calls in a row in which nobody gets anything


# What stands for Triton -----------------------------------------------------------------------------------------------


class Tensor:
    def __init__(self, name: str, array: np.ndarray):
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.tensors, self.error = {tensor.name(): tensor for tensor in output_tensors}, error


class TritonError(Exception):
    INTERNAL, INVALID_ARG = 1, 3

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)


@dataclass(frozen=True)
class Names:
    """The names of tensors in a model's config, and the lesson's word for a response."""

    text: str
    number: str
    start: str
    ready: str
    output: str
    piece: str = "word"


@dataclass(eq=False)
class SimulatedStream:
    """A client and its sequence."""

    text: str
    wanted: int  # responses of the whole answer
    arrives: int = 1  # the first call that it may be in
    leaves_after: int | None = None  # responses after which the client has gone; with 0 after its first call
    is_late: bool = False  # when it leaves, its request is in one more call; else Triton drops it, and tells no model
    parameters: dict = field(default_factory=dict)  # of its request
    number: int = field(default=0, init=False)
    output: str = field(default="", init=False)
    pieces: list[str] = field(default_factory=list, init=False)  # what it was sent
    num_for_nobody: int = field(default=0, init=False)  # how many of these when it had gone
    num_calls: int = field(default=0, init=False)  # that its request was in
    has_begun = has_left = is_over = False  # over: its last response has come

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response, as Triton's response sender does."""
        if self.is_over:
            raise RuntimeError("a response was sent after the last one of its request")
        if response is not None and response.error is not None:
            raise RuntimeError(f"the model answered with an error: {response.error}")
        if response is not None:
            if self.output not in response.tensors:
                raise RuntimeError(f"a response has no output {self.output!r}")
            value = response.tensors[self.output].as_numpy().item()
            self.pieces.append(value if isinstance(value, str) else value.decode("utf-8"))
            self.num_for_nobody += self.has_left
        self.is_over = flags == FINAL


@dataclass(frozen=True)
class Sender:
    """The response sender of a stream's request in one call; only that of the latest call learns that a client left."""

    stream: SimulatedStream
    call: int

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self.stream.send(response, flags)

    def is_cancelled(self) -> bool:
        """Say whether the client has gone, while the stream goes on."""
        if self.stream.is_over:
            raise RuntimeError("a sender was asked after its FINAL, which brings Triton down")
        return self.call == self.stream.num_calls and self.stream.has_left


class Request:
    """A stream's request in one call; one that is not ready keeps the slot of a stream that is not there."""

    def __init__(self, stream: SimulatedStream | None, names: Names):
        self.stream, self.flags = stream, ALL
        self._inputs = {
            names.text: np.array([[stream.text.encode("utf-8") if stream else b""]], object),
            names.number: np.array([[stream.number if stream else 0]], np.uint64),
            names.start: np.array([[stream is not None and not stream.has_begun]], np.int32),
            names.ready: np.array([[stream is not None]], np.int32),
        }
        if stream:
            self.had_left, self.num_before = stream.has_left, len(stream.pieces)
            stream.num_calls += 1

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._inputs.items()]

    def parameters(self) -> str:
        return json.dumps(self.stream.parameters if self.stream else {})

    def get_response_sender(self) -> Sender | None:
        return Sender(self.stream, self.stream.num_calls) if self.stream else None

    def set_release_flags(self, flags: int) -> None:
        self.flags = flags

    def is_cancelled(self) -> bool:
        return self.stream is not None and self.stream.has_left


def _input(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def backend() -> types.ModuleType:
    """Make a module with what a model imports from Triton."""
    module = types.ModuleType(BACKEND)
    vars(module).update(
        Tensor=Tensor,
        InferenceResponse=InferenceResponse,
        TritonError=TritonError,
        get_input_tensor_by_name=_input,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
        TRITONSERVER_REQUEST_RELEASE_ALL=ALL,
        TRITONSERVER_REQUEST_RELEASE_RESCHEDULE=RESCHEDULE,
    )
    return module


# A run ----------------------------------------------------------------------------------------------------------------


@dataclass
class SimulatedRun:
    """The outcome of some streams."""

    streams: list[SimulatedStream]  # with what they were sent
    calls: int = 0  # of `execute`
    num_without: int = 0  # ready requests that got nothing in a call although their clients were there
    num_together: int = 0  # responses that came in one call with another of their stream
    num_released: int = 0  # requests whose clients had gone, and that were not rescheduled: Triton keeps their slots
    growth: int = 0  # see `Triton.growth`, where that was counted

    @property
    def num_for_nobody(self) -> int:
        return sum(stream.num_for_nobody for stream in self.streams)


class Triton:
    """Loads a decoupled model and plays it as the sequence batcher does, each sequence in its slot (`direct`).

    Parameters
    ----------
    path : path
        The `model.py`.
    names : Names
    slots : int
        In the batch.
    parameters : str
        Those of the model's config.

    Raises
    ------
    CourseError
        There is no model in the file. What the file raises itself comes through, here and in a run.
    """

    def __init__(self, path: str | Path, names: Names, slots: int, **parameters: str):
        sys.modules[BACKEND] = backend()
        module = runpy.run_path(str(path))
        if "TritonPythonModel" not in module:
            raise CourseError("Triton cannot load it: there is no class TritonPythonModel in the file.")
        self._model, self._names, self._slots = module["TritonPythonModel"](), names, slots
        self._numbers = itertools.count(CORRELATION_ID)
        values = {name: {"string_value": value} for name, value in parameters.items()}
        self._model.initialize({"model_config": json.dumps({"parameters": values})})

    def run(self, streams: Sequence[SimulatedStream]) -> SimulatedRun:
        """Call the model's `execute` until all streams are over; the same may be played again.

        Raises
        ------
        CourseError
            A request was released before its answer was complete, or nobody gets anything any more.
        """
        played = SimulatedRun([replace(stream) for stream in streams])
        for stream in played.streams:
            stream.number, stream.output = next(self._numbers), self._names.output
        waiting: list[SimulatedStream] = list(played.streams)
        batch: list[SimulatedStream | None] = [None] * self._slots
        moment = num_silent = 0
        while waiting or any(batch):
            moment += 1
            for slot, taken in enumerate(batch):
                if taken is None and waiting and waiting[0].arrives <= moment:
                    batch[slot] = waiting.pop(0)
            if not any(batch):
                continue
            used = max(slot for slot, stream in enumerate(batch) if stream) + 1
            requests = [Request(stream, self._names) for stream in batch[:used]]
            if self._model.execute(requests) is not None:
                raise CourseError(
                    "execute returned something: a decoupled model returns None, and answers by its senders."
                )
            played.calls += 1
            for slot, request in enumerate(requests):
                batch[slot] = self._after(request, played)
            is_news = any(one.is_over or len(one.pieces) > each.num_before for each in requests if (one := each.stream))
            num_silent = 0 if is_news else num_silent + 1
            if num_silent == MOST_SILENT:
                number, piece = sum(map(bool, batch)), self._names.piece
                raise CourseError(f"{number} streams are in the batch, and none gets a {piece} any more.")
        return played

    def _after(self, request: Request, played: SimulatedRun) -> SimulatedStream | None:
        """Return the stream that has this request's slot in the next call."""
        stream = request.stream
        if stream is None:
            return None
        stream.has_begun = True
        number, asked = len(stream.pieces), f"{stream.wanted} {self._names.piece}s"
        if number == request.num_before and stream.wanted and not request.had_left:
            played.num_without += 1
        played.num_together += max(0, number - request.num_before - 1)
        if request.flags != RESCHEDULE:
            played.num_released += request.had_left
            if not stream.has_left and not stream.is_over:
                raise CourseError(
                    f"Somebody waits in vain: a request was released after {number} of its {asked} and without FINAL, "
                    "which ends its answer. Reschedule it until then."
                )
            return None
        if stream.is_over:
            raise CourseError("A request was rescheduled after FINAL, its last response, which brings Triton down.")
        if number > max(1, stream.wanted):
            raise CourseError(f"A request got more than the {asked} that it asked for.")
        # Between two calls, so that no sender knows of it in the call of the last word.
        stream.has_left |= stream.leaves_after is not None and number >= stream.leaves_after
        if stream.has_left and not stream.is_late:
            return None  # Triton ends it itself when it would come back
        stream.is_late = stream.is_late and not stream.has_left
        return stream

    def growth(self, streams: Sequence[SimulatedStream]) -> int:
        """Measure how much the model's kept data grows while it serves these streams once more; see `_kept`."""
        before = self.kept
        self.run(streams)
        return max(0, self.kept - before)

    @property
    def kept(self) -> int:
        """How much the model keeps now; see `_kept`."""
        return _kept(self._model)


def _kept(model: Any) -> int:
    """Count what hangs on `model`, its class and its module: items of containers, attributes, bytes of tensors.

    What belongs to other packages, such as a network or a sender of responses, counts as one.
    """
    own = {kind.__module__ for kind in type(model).__mro__} - {"builtins"}
    seen: set[int] = set()

    def inside(value: Any) -> int:
        if id(value) in seen or isinstance(value, type | types.ModuleType):
            return 0
        seen.add(id(value))
        if isinstance(value, dict):
            parts = [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            parts = list(value)
        elif hasattr(value, "untyped_storage"):  # a tensor, or a view of one, which keeps the whole
            return value.untyped_storage().size()
        elif hasattr(value, "nbytes"):
            return value.nbytes
        elif type(value).__module__ in own:
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            parts = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
        else:
            return 0
        return len(parts) + sum(map(inside, parts))

    classes = [vars(kind) for kind in type(model).__mro__ if kind.__module__ in own]
    modules = [made.__globals__ for names in classes for made in names.values() if hasattr(made, "__globals__")]
    roots = [value for names in classes + modules for name, value in names.items() if not name.startswith("__")]
    return inside(model) + sum(map(inside, roots))
