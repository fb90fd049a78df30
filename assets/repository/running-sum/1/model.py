"""A model that remembers: the running sum of a sequence's values and the list of its texts."""

import time
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.triton import python_model

CONTROLS = ("START", "END", "READY")
INT32 = np.iinfo(np.int32)
MAX_MEMORY = 100_000  # characters of a sequence's texts, all of which are in every answer


@dataclass
class Memory:
    """What is known of one sequence."""

    sum: int = 0
    texts: list[str] = field(default_factory=list)

    def add(self, value: int, texts: list[str]) -> None:
        if not INT32.min <= self.sum + value <= INT32.max:
            raise CourseError(f"The sum would be {self.sum + value:,}, which is no 32-bit number: add less.")
        if sum(map(len, self.texts + texts)) > MAX_MEMORY:
            raise CourseError(f"The memory would have more than {MAX_MEMORY:,} characters: end the sequence.")
        self.sum += value
        self.texts += filter(None, texts)


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, each with a leading batch dimension of 1.

    A memory is made at START and given up at END. A sequence that is given up for idleness has no END: its memory
    stays until another sequence begins under the same correlation id.
    """

    def initialize(self, args):
        parameters = python_model.parameters(args)
        self.instance = int(args["model_instance_name"].rpartition("_")[2])
        self.log = python_model.ExecutionLog(parameters["execution_log_path"])
        self.numbers = count(1)
        self.memories: dict[int, Memory] = {}

    def execute(self, requests):
        start_s, number = time.time(), next(self.numbers)
        controls = [self._controls(request) for request in requests]
        responses = [
            python_model.answer(self._step, request, corrid, said, number, place)
            for place, (request, (corrid, said)) in enumerate(zip(requests, controls))
        ]
        self.log.write(
            instance=self.instance,
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
            return []
        if said["START"]:
            self.memories[corrid] = Memory()
        if corrid not in self.memories:
            raise CourseError(f"The model does not know the sequence {corrid}: begin it again with START.")
        memory = self.memories.pop(corrid) if said["END"] else self.memories[corrid]
        memory.add(python_model.scalar(request, "value"), python_model.texts(request, "text", "text"))
        return self._response(memory, " ".join(name for name in CONTROLS if said[name]), number, place)

    def _response(self, memory, controls, number, place):
        numbers = {"sum": memory.sum, "execution": number, "place": place}
        texts = {"memory": "\n".join(memory.texts), "controls": controls}
        return [pb_utils.Tensor(name, np.array([[value]], np.int32)) for name, value in numbers.items()] + [
            pb_utils.Tensor(name, np.array([[text.encode("utf-8")]], np.object_)) for name, text in texts.items()
        ]
