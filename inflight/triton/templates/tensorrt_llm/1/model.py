"""Between Triton's requests and the engine, token ids in and out; the scheduling: inflight/engine/scheduler.py."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.engine.executor import Executor
from inflight.engine.messages import Response
from inflight.engine.own import part
from inflight.engine.settings import ExecutorConfig
from inflight.errors import CourseError
from inflight.triton.model import python_model
from inflight.triton.model.engine_model import EngineModel
from inflight.triton.repository.request import engine_request

NO_TOKEN = (-1, 2**32 - 1)  # as end_id: answers end by their length alone; UINT32 has no -1
STDERR = 2
NUM_PRECEDING = 8  # tokens given before, for whoever turns the next ones into text


class TritonPythonModel(EngineModel):
    """Inputs and outputs as in config.pbtxt, with a batch dimension in front: a request's prompts, 1 in a response."""

    place = "tensorrt_llm"

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        # identity_test.py of TensorRT-LLM 0.5 warms up with the ids of one prompt and the length of another.
        self.takes_ids_as_they_come = python_model.input_types(args)["request_output_len"] == "TYPE_UINT32"
        settings = {
            name: self.parameters[name] for name in ExecutorConfig.__dataclass_fields__ if name in self.parameters
        }
        part.end_late_calls(report_to=STDERR)  # which goes into the server's log
        executor = Executor.load(self.parameters["gpt_model_path"], ExecutorConfig(**settings))
        periods = ("allotted_time_ms", "cancellation_check_period_ms", "stats_check_period_ms")
        self.start(args, executor, python_model.is_decoupled(args), **{name: self.parameters[name] for name in periods})

    def prompts(self, request, running):
        number = len(python_model.required(request, "input_ids"))
        if number > 1 and not self.decoupled:
            raise CourseError(
                f"Expected batch dimension to be 1 for each request, got {number}: several prompts get several "
                "answers, which needs decoupled mode. Set decoupled_mode to true, or send one prompt a request."
            )
        return [self._prompt(request, running, row) for row in range(number)]

    def _prompt(self, request, running, row):
        asked = self.asked(request, row)
        ids, length = asked["input_ids"], asked.pop("input_lengths")
        if self.takes_ids_as_they_come:
            length = min(length, len(ids))
        if not 0 <= length <= len(ids):
            raise CourseError(f"input_lengths is {length}, but input_ids has {len(ids)} tokens.")
        asked["input_ids"] = ids[:length]
        if asked.get("end_id") in NO_TOKEN:
            del asked["end_id"]
        excludes = asked.pop("exclude_input_in_output", self.parameters["exclude_input_in_output"])
        wanted = engine_request(asked)
        prefix = [] if excludes or wanted.streaming else wanted.input_ids
        return wanted, Answer(row, prefix, set(request.requested_output_names()), running.stop_id)

    def stopped(self, request):
        nothing = Answer(0, [], set(request.requested_output_names()), "")
        return nothing(Response(0, [], True))


@dataclass
class Answer:
    """The answer to prompt `index` of a request; makes a message for Triton of each of the engine's responses to it."""

    index: int
    prefix: list[int]
    outputs: set[str]
    stop_id: str
    preceding: list[int] = field(default_factory=list)
    numbers: itertools.count = field(default_factory=itertools.count)

    def __call__(self, response):
        ids, before = self.prefix + response.token_ids, self.preceding
        self.preceding = [*before, *response.token_ids][-NUM_PRECEDING:]
        values = {
            "output_ids": lambda: np.array([[ids]], np.int32),
            "sequence_length": lambda: np.array([[len(ids)]], np.int32),
            "cum_log_probs": lambda: np.array([[response.cum_log_prob]], np.float32),
            "output_log_probs": lambda: np.array([[response.log_probs]], np.float32),
            "batch_index": lambda: np.array([[self.index]], np.int32),
            "sequence_index": lambda: np.zeros((1, 1), np.int32),
            "preceding_ids": lambda: np.array([[-1] * (NUM_PRECEDING - len(before)) + before], np.int32),
            "is_final": lambda: np.array([[response.is_final]]),
        }
        # With every second response: to ask Triton whether the client is there takes a tenth of a millisecond.
        if not response.is_final and next(self.numbers) % 2 == 0:
            values["stop_id"] = lambda: np.array([[self.stop_id.encode()]], np.object_)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, value()) for name, value in values.items() if name in self.outputs]
        )
