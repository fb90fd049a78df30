"""A model whose cost is known, so that what is left to see is how Triton forms its batches."""

import time
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.triton.model import python_model

MAX_COST_MS = 60_000  # of a request, for all others wait for it


class TritonPythonModel:
    """Input and outputs as in config.pbtxt, each with a leading batch dimension; a request may have several items."""

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.instance = int(args["model_instance_name"].rpartition("_")[2])
        self.numbers = count(1)
        self.log = python_model.ExecutionLog(self.parameters["execution_log_path"])

    def execute(self, requests):
        start_s, number = time.time(), next(self.numbers)
        works = [self._work(request) for request in requests]
        good = [work for work in works if not isinstance(work, Exception)]
        time.sleep(self._cost_ms(sum(int(work.sum()) for work in good)) / 1000)
        self.log.write(
            instance=self.instance,
            execution=number,
            start_s=start_s,
            end_s=time.time(),
            requests=[
                [request.request_id(), int(work.sum())]
                for request, work in zip(requests, works)
                if not isinstance(work, Exception)
            ],
        )
        places = iter(np.split(np.arange(sum(map(len, good))), np.cumsum([len(work) for work in good])))
        return [
            python_model.error_response(work) if isinstance(work, Exception) else self._response(number, next(places))
            for work in works
        ]

    def _work(self, request) -> np.ndarray | Exception:
        """Units of work of each item of a request; or what is wrong with them, which is no other request's fault."""
        try:
            work = python_model.array(request, "work")
            if work.min() < 0:
                raise CourseError(f"work is {work.min()}; it must be at least 0.")
            if self._cost_ms(int(work.sum())) > MAX_COST_MS:
                raise CourseError(
                    f"work is {work.sum():,}; that takes more than {MAX_COST_MS / 1000:g} s: ask for less."
                )
            return work
        except Exception as error:
            return error

    def _cost_ms(self, units: int) -> float:
        return self.parameters["fixed_ms"] + self.parameters["item_ms"] * units

    def _response(self, number, places):
        columns = {
            "instance": np.full_like(places, self.instance),
            "execution": np.full_like(places, number),
            "place": places,
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, column.astype(np.int32).reshape(-1, 1)) for name, column in columns.items()]
        )
