"""A model that remembers: the running sum of a sequence's values and the list of its texts."""

import time
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.triton import python_model

CONTROLS = ("START", "END", "READY")


@dataclass
class Memory:
    """What is known of one sequence."""

    sum: int = 0
    texts: list[str] = field(default_factory=list)


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, each with a leading batch dimension of 1.

    A memory is made at START and given up at END. A sequence that is given up for idleness has no END: its memory
    stays until another sequence begins under the same correlation id.
    """

    def initialize(self, args):
        parameters = python_model.parameters(args)
        self.log = python_model.ExecutionLog(parameters["execution_log_path"])
        self.numbers = count(1)
        self.memories: dict[int, Memory] = {}

    def execute(self, requests):
        start_s, number = time.time(), next(self.numbers)
        controls = [self._controls(request) for request in requests]
        responses = [
            self._step(request, corrid, said, number, place)
            for place, (request, (corrid, said)) in enumerate(zip(requests, controls))
        ]
        self.log.write(
            execution=number,
            start_s=start_s,
            end_s=time.time(),
            rows=[[corrid, *said.values(), place] for place, (corrid, said) in enumerate(controls)],
        )
        return responses

    def _controls(self, request) -> tuple[int, dict[str, bool]]:
        """The request's correlation id, and which of the other controls are true."""
        said = {name: bool(python_model.scalar(request, name)) for name in CONTROLS}
        return python_model.scalar(request, "CORRID"), said

    def _step(self, request, corrid, said, number, place):
        if not said["READY"]:  # a place in the batch that no request has come for
            return pb_utils.InferenceResponse([])
        if said["START"]:
            self.memories[corrid] = Memory()
        memory = self.memories[corrid]
        memory.sum += python_model.scalar(request, "value")
        memory.texts += filter(None, python_model.texts(request, "text", "text"))
        if said["END"]:
            del self.memories[corrid]
        return self._response(memory, " ".join(name for name in CONTROLS if said[name]), number, place)

    def _response(self, memory, controls, number, place):
        numbers = {"sum": memory.sum, "execution": number, "place": place}
        texts = {"memory": "\n".join(memory.texts), "controls": controls}
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array([[value]], np.int32)) for name, value in numbers.items()]
            + [pb_utils.Tensor(name, np.array([[text.encode("utf-8")]], np.object_)) for name, text in texts.items()]
        )
