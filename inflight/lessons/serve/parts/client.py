"""A client for Triton in plain tritonclient: pieces, their times, and an early end.

    stream = Stream("127.0.0.1:8001", "Name the planets.", max_tokens=64)
    for piece in stream:
        print(piece, end="")

`ask` reads a whole answer that way; `read_until` ends it at a word. Errors are
tritonclient's own.
"""

import queue
import time
from dataclasses import dataclass, field

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import triton_to_np_dtype

OPTIONS = {
    "end_id": "INT32",
    "random_seed": "UINT64",
    "temperature": "FP32",
    "top_k": "INT32",
}


@dataclass
class Answer:
    """Pieces as they arrived, and for each the seconds since the request was sent."""

    pieces: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    @property
    def text(self):
        return "".join(self.pieces)


def tensors(prompt, max_tokens, options):
    """What the ensemble is sent: each value as an input of shape [1, 1]."""
    values = {"text_input": ("BYTES", prompt), "max_tokens": ("INT32", max_tokens)}
    values["stream"] = ("BOOL", True)
    values |= {name: (OPTIONS[name], value) for name, value in options.items()}
    made = []
    for name, (datatype, value) in values.items():
        array = np.array([[value]], triton_to_np_dtype(datatype))
        made.append(triton.InferInput(name, array.shape, datatype))
        made[-1].set_data_from_numpy(array)
    return made


class Stream:
    """A streamed answer under way: iterate over its pieces, or `cancel` it."""

    def __init__(self, url, prompt, max_tokens=64, **options):
        self.answer = Answer()
        self._arrived = queue.Queue()
        self._connection = triton.InferenceServerClient(url)
        self._connection.start_stream(
            lambda result, error: self._arrived.put((self._now_s(), result, error)),
        )
        self._started = time.perf_counter()
        self._connection.async_stream_infer(
            "ensemble",
            tensors(prompt, max_tokens, options),
            enable_empty_final_response=True,
        )

    def _now_s(self):
        """Seconds since the request was sent."""
        return time.perf_counter() - self._started

    def __iter__(self):
        is_final = False
        while not is_final:
            after_s, result, error = self._arrived.get()
            if error is not None:
                raise error
            parameters = result.get_response().parameters
            is_final = parameters["triton_final_response"].bool_param
            text = result.as_numpy("text_output")
            if text is not None:
                self.answer.pieces.append(text[0].decode())
                self.answer.times_s.append(after_s)
                yield self.answer.pieces[-1]

    def cancel(self):
        """End the request if it still runs, and the connection. May be called twice."""
        self._connection.stop_stream(cancel_requests=True)
        self._connection.close()


def ask(url, prompt, max_tokens=64, **options):
    """The whole answer, and when each piece of it came."""
    stream = Stream(url, prompt, max_tokens, **options)
    try:
        for _ in stream:
            pass
    finally:
        stream.cancel()
    return stream.answer


def read_until(url, prompt, word, max_tokens=64, **options):
    """The text up to the piece that completes `word`; the request ends there."""
    stream = Stream(url, prompt, max_tokens, **options)
    try:
        for _ in stream:
            if word in stream.answer.text:
                break
    finally:
        stream.cancel()
    return stream.answer.text
