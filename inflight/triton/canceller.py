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


class EngineCanceller:
    """Cancels requests of the engine by the numbers that it has given them, in a thread of its own."""

    def __init__(self):
        self._ids: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="canceller", daemon=True)
        self._thread.start()

    def cancel(self, cancellation_id: int) -> None:
        """Have a request cancelled; returns at once. One that has ended meanwhile is left alone."""
        self._ids.put(cancellation_id)

    def close(self) -> None:
        """End the thread, when what it was told is done."""
        self._ids.put(None)
        self._thread.join()

    def _work(self) -> None:
        for cancellation_id in iter(self._ids.get, None):
            for response in _stop_request(cancellation_id).exec(decoupled=True):
                if response.has_error():  # the engine is about to be loaded anew, and its requests end with it
                    pb_utils.Logger.log_warn(f"A request could not be cancelled: {response.error().message()}")


def _stop_request(cancellation_id: int) -> pb_utils.InferenceRequest:
    """What is required, with any content, and `stop` with the number."""
    zero = np.zeros((1, 1), np.int32)
    inputs = {
        "input_ids": zero,
        "input_lengths": zero,
        "request_output_len": zero,
        "stop": np.array([[True]]),
        "cancellation_id": np.array([[cancellation_id]], np.int64),
    }
    return pb_utils.InferenceRequest(
        model_name=ENGINE,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=["sequence_length"],
    )
