"""How a step of an ensemble tells the engine, inside Triton, that nobody waits for an answer any more.

Imported by `model.py` files, which run in a process that Triton starts; `triton_python_backend_utils` exists only
there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

ENGINE = "tensorrt_llm"
MOST_KNOWN = 10_000  # after so many, those that were told are forgotten: to be told again does no harm


class EngineCanceller:
    """Cancels requests of the engine by the numbers that it has given them, each once, in a thread of its own."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._thread = ThreadPoolExecutor(1, "canceller")

    def cancel(self, cancellation_id: int) -> None:
        """Have a request cancelled; returns at once. One that has ended meanwhile is left alone."""
        if cancellation_id not in self._known:  # its tokens that are on their way all say so
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            self._known.add(cancellation_id)
            self._thread.submit(_tell, cancellation_id)

    def close(self) -> None:
        """End the thread, when what it is about to tell is told."""
        self._thread.shutdown()


def _tell(cancellation_id: int) -> None:
    """Ask the engine to stop it: what each of its requests must have, with any content, `stop` and the number."""
    zero = np.zeros((1, 1), np.int32)
    inputs = {
        "input_ids": zero,
        "input_lengths": zero,
        "request_output_len": zero,
        "stop": np.array([[True]]),
        "cancellation_id": np.array([[cancellation_id]], np.int64),
    }
    request = pb_utils.InferenceRequest(
        model_name=ENGINE,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=["sequence_length"],
    )
    for response in request.exec(decoupled=True):
        if response.has_error():  # the engine is about to be loaded anew, and its requests end with it
            pb_utils.Logger.log_warn(f"A request could not be cancelled: {response.error().message()}")
