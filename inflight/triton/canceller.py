"""How a step of an ensemble tells the engine, inside Triton, that nobody waits for an answer any more.

Imported by `model.py` files, which run in a process that Triton starts; `triton_python_backend_utils` exists only
there.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

ENGINE = "tensorrt_llm"
MOST_KNOWN = 10_000  # after so many, those that were told are forgotten: to be told again does no harm


class EngineCanceller:
    """Cancels requests of the engine by the numbers that it has given them, in a thread of its own.

    Each is told once, and all that have come meanwhile together: hundreds may vanish at once, and their tokens that
    are on their way all say so.
    """

    def __init__(self) -> None:
        self._ids: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._known: set[int] = set()
        self._thread = threading.Thread(target=self._work, name="canceller", daemon=True)
        self._thread.start()

    def cancel(self, cancellation_id: int) -> None:
        """Have a request cancelled; returns at once. One that has ended meanwhile is left alone."""
        if cancellation_id not in self._known:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            self._known.add(cancellation_id)
            self._ids.put(cancellation_id)

    def close(self) -> None:
        """End the thread, when what it is about to tell is told."""
        self._ids.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (number := self._ids.get()) is not None:
            _tell([number, *self._come_meanwhile()])

    def _come_meanwhile(self) -> list[int]:
        numbers = []
        while not self._ids.empty():
            number = self._ids.get()
            if number is None:
                self._ids.put(None)  # for the loop, which ends with it
                break
            numbers.append(number)
        return numbers


def _tell(cancellation_ids: list[int]) -> None:
    """Ask the engine to stop them: what each of its requests must have, with any content, `stop` and the numbers."""
    zero = np.zeros((1, 1), np.int32)
    inputs = {
        "input_ids": zero,
        "input_lengths": zero,
        "request_output_len": zero,
        "stop": np.array([[True]]),
        "cancellation_id": np.array([cancellation_ids], np.int64),
    }
    request = pb_utils.InferenceRequest(
        model_name=ENGINE,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=["sequence_length"],
    )
    for response in request.exec(decoupled=True):
        if response.has_error():  # the engine is about to be loaded anew, and its requests end with it
            pb_utils.Logger.log_warn(f"Requests could not be cancelled: {response.error().message()}")
