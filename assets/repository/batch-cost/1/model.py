"""A model whose cost is known, so that what is left to see is how Triton forms its batches."""

import time
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.triton import python_model


class TritonPythonModel:
    """Input and outputs as in config.pbtxt, each with a leading batch dimension; a request may have several items."""

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.instance = int(args["model_instance_name"].rpartition("_")[2])
        self.numbers = count(1)
        self.log = python_model.ExecutionLog(self.parameters["execution_log_path"])

    def execute(self, requests):
        start_s, number = time.time(), next(self.numbers)
        works = [python_model.array(request, "work") for request in requests]
        time.sleep(self._cost_ms(sum(map(self._units, works))) / 1000)
        self.log.write(
            instance=self.instance,
            execution=number,
            start_s=start_s,
            end_s=time.time(),
            requests=[[request.request_id(), int(work.sum())] for request, work in zip(requests, works)],
        )
        ends = np.cumsum([len(work) for work in works])
        return [self._response(number, end - len(work), work) for end, work in zip(ends, works)]

    def _units(self, work) -> int:
        return int(work.clip(min=0).sum())

    def _cost_ms(self, units: int) -> float:
        return self.parameters["fixed_ms"] + self.parameters["item_ms"] * units

    def _response(self, number, place, work):
        if work.min() < 0:
            return python_model.error_response(CourseError(f"work is {work.min()}; it must be at least 0."))
        places = np.arange(place, place + len(work))
        columns = {
            "instance": np.full_like(places, self.instance),
            "execution": np.full_like(places, number),
            "place": places,
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, column.astype(np.int32).reshape(-1, 1)) for name, column in columns.items()]
        )
