"""An iterative model of a GPT-2, played as Triton would, without a server: what comes out, and what it computed.

    plain, own = played(["model.py"], streams, places=8)

It runs `model.py` files that others write, changes the network to count what goes through it, and leaves a stand-in for
Triton's Python module behind: for a process of its own, as `checks` gives one to a grader.
"""

from __future__ import annotations

import functools
import json
import runpy
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.models import gpt2_network
from inflight.notebook.kept import kept
from inflight.paths import ASSETS

CHECKPOINT = ASSETS / "checkpoints" / "course-gpt2"
BACKEND = "triton_python_backend_utils"
FINAL, ALL, RESCHEDULE = 1, 1, 2  # Triton's flags
GRACE_S = 3.0  # for a last response that leaves a moment after its request was released
CORRELATION_ID = 40_000_000_000  # of the first sequence: Triton makes up large ones


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


@dataclass(eq=False)
class Stream:
    """A client and its sequence."""

    number: int
    prompt: str
    max_tokens: int
    arrives: int
    leaves_after: int | None
    is_late: bool = False  # when it leaves, its request is in the next call already
    pieces: list[str] = field(default_factory=list)
    has_begun = has_left = is_over = False  # over: its last response has come

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """What the model's response sender does."""
        if self.is_over:
            raise RuntimeError("a response was sent after the last one of its request")
        if response is not None and response.error is not None:
            raise RuntimeError(f"the model answered with an error: {response.error}")
        if response is not None:
            self.pieces.append(response.tensors["text_output"].as_numpy().item().decode("utf-8"))
        self.has_left = self.has_left or len(self.pieces) == self.leaves_after
        self.is_over = flags == FINAL

    def is_cancelled(self) -> bool:
        return self.has_left


class Request:
    """A stream's request in one execution; one that is not ready keeps the place of a stream that is not there."""

    def __init__(self, stream: Stream | None):
        self.stream, self.flags = stream, ALL
        self._inputs = {
            "text_input": np.array([[stream.prompt.encode("utf-8") if stream else b""]], object),
            "number": np.array([[CORRELATION_ID + stream.number if stream else 0]], np.uint64),
            "start": np.array([[float(stream is not None and not stream.has_begun)]], np.float32),
            "ready": np.array([[float(stream is not None)]], np.float32),
        }
        self._inputs["correlation_id"] = self._inputs["number"]

    def inputs(self) -> list[Tensor]:
        return [Tensor(name, array) for name, array in self._inputs.items()]

    def parameters(self) -> str:
        return json.dumps({"max_tokens": self.stream.max_tokens, "ignore_eos": True} if self.stream else {})

    def get_response_sender(self) -> Stream | None:
        return self.stream

    def set_release_flags(self, flags: int) -> None:
        self.flags = flags

    def is_cancelled(self) -> bool:
        return self.stream is not None and self.stream.has_left


def _input(request: Request, name: str) -> Tensor | None:
    return next((tensor for tensor in request.inputs() if tensor.name() == name), None)


def _backend() -> types.ModuleType:
    """A module with what a model imports from Triton."""
    module = types.ModuleType(BACKEND)
    module.Tensor, module.InferenceResponse, module.TritonError = Tensor, InferenceResponse, TritonError
    module.get_input_tensor_by_name = _input
    module.TRITONSERVER_RESPONSE_COMPLETE_FINAL = FINAL
    module.TRITONSERVER_REQUEST_RELEASE_ALL, module.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = ALL, RESCHEDULE
    return module


# A run ----------------------------------------------------------------------------------------------------------------


class Problem(Exception):
    """What a model did that Triton's clients would suffer from, in a sentence."""


def play(model, streams: list[Stream], places: int) -> None:
    """Call the model's `execute` until all streams are over, each in its place of the batch (Triton's `direct`).

    Raises
    ------
    Problem
        A request was released before its answer was complete, or nobody gets a token any more.
    """
    waiting, seats = list(streams), [None] * places
    execution = without_token = 0
    while waiting or any(seats):
        execution += 1
        for place, taken in enumerate(seats):
            if taken is None and waiting and waiting[0].arrives <= execution:
                seats[place] = waiting.pop(0)
        if not any(seats):
            continue
        used = max(place for place, stream in enumerate(seats) if stream) + 1
        requests, before = [Request(stream) for stream in seats[:used]], sum(len(each.pieces) for each in streams)
        model.execute(requests)
        for place, request in enumerate(requests):
            seats[place] = _after(request)
            if request.stream is not None and request.stream.leaves_after == 0:
                request.stream.has_left, seats[place] = True, None
        got = sum(len(each.pieces) for each in streams) - before
        without_token = 0 if got else without_token + 1
        if without_token == 5:
            raise Problem(f"{sum(map(bool, seats))} streams are in the batch, and none gets a token any more")
    _wait_for_ends(streams)


def _after(request: Request) -> Stream | None:
    """Who has the place of this request in the next execution."""
    stream = request.stream
    if stream is None:
        return None
    stream.has_begun = True
    if request.flags != RESCHEDULE:
        if not stream.has_left and len(stream.pieces) < stream.max_tokens:
            raise Problem(f"a request was released after {len(stream.pieces)} of its {stream.max_tokens} tokens")
        return None
    if stream.is_over:
        raise Problem("a request was rescheduled after its last response")
    if len(stream.pieces) > stream.max_tokens:
        raise Problem(f"a request got more than the {stream.max_tokens} tokens that it asked for")
    if stream.has_left and not stream.is_late:
        return None  # Triton ends it itself when it would come back
    stream.is_late = stream.is_late and not stream.has_left
    return stream


def _wait_for_ends(streams: list[Stream]) -> None:
    until = time.monotonic() + GRACE_S
    while not all(stream.is_over or stream.has_left for stream in streams):
        if time.monotonic() > until:
            raise Problem("a request was released and never got its last response, so its client waits for ever")
        time.sleep(0.01)


@dataclass
class Played:
    """What a model made of all streams.

    Attributes
    ----------
    texts : list of str
        The answer of each stream.
    computed : int
        Tokens that went through the network.
    passes, together : int
        Its forward passes, and the most texts in one of them.
    grown : int
        By how much what the model keeps grew while it served the same streams once more.
    """

    texts: list[str]
    computed: int = 0
    passes: int = 0
    together: int = 0
    grown: int = 0


def played(models: list[str | Path], streams: list[dict], places: int) -> list[Played]:
    """What becomes of the streams: the plain way without a cache, then with each of the models.

    Parameters
    ----------
    models : list of path
    streams : list of dict
        Of each: `prompt`, `max_tokens`, the execution in which it `arrives`, and after how many tokens it leaves
        (`leaves_after`, or None; with 0 after its first execution), and whether its request is in one more call then
        (`is_late`).
    places : int
        In Triton's batch.

    Raises
    ------
    Problem
        What a model did that its clients would suffer from. What it raises itself comes through.
    """
    import torch

    torch.set_num_threads(1)  # others may be at work here, and threads that wait for each other are slowest then
    sys.modules[BACKEND] = _backend()
    gpt2_network.load = functools.cache(gpt2_network.load)
    forward = gpt2_network.Network._forward
    return [_plain(streams), *(_of_model(path, streams, places, forward) for path in models)]


def _of_model(path: str | Path, streams: list[dict], places: int, forward: Callable) -> Played:
    clients = [Stream(number, **stream) for number, stream in enumerate(streams, 1)]
    result = Played([])

    @functools.wraps(forward)
    def counted(network, ids, positions, last, attend):
        result.computed += len(ids)
        result.passes += 1
        result.together = max(result.together, len(last))
        return forward(network, ids, positions, last, attend)

    module = runpy.run_path(str(path))
    model = module["TritonPythonModel"]()
    gpt2_network.Network._forward = counted
    parameters = {"checkpoint_dir": {"string_value": str(CHECKPOINT)}}
    model.initialize({"model_config": json.dumps({"parameters": parameters})})
    play(model, clients, places)
    result.texts = ["".join(client.pieces) for client in clients]
    gpt2_network.Network._forward = forward
    before = kept(model, module)
    play(model, [Stream(number, **stream) for number, stream in enumerate(streams, len(streams) + 1)], places)
    result.grown = kept(model, module) - before
    return result


def _plain(streams: list[dict]) -> Played:
    """The answers, each text alone and whole at every pass, and the tokens that this computes."""
    from torch.nn.functional import scaled_dot_product_attention

    def attend(_layer, projected):
        return scaled_dot_product_attention(*projected.permute(1, 2, 0, 3), is_causal=True).transpose(0, 1)

    network, tokenizer, result = gpt2_network.load(str(CHECKPOINT)), load_tokenizer(CHECKPOINT), Played([])
    for stream in streams:
        ids = tokenizer.encode(stream["prompt"])
        start = len(ids)
        leaves_after = stream["leaves_after"]
        for _ in range(stream["max_tokens"] if leaves_after is None else leaves_after):
            result.computed += len(ids)
            ids += network.next_tokens(ids, list(range(len(ids))), [len(ids) - 1], attend)
        result.texts.append("".join(tokenizer.decode([token], skip_special_tokens=False) for token in ids[start:]))
    return result
