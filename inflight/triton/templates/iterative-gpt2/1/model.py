"""GPT-2, a token at a time: after each, Triton puts the batch together anew. Its KV cache: inflight/models/gpt2.py."""

import time
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.errors import CourseError
from inflight.models import gpt2
from inflight.triton.model import iterative, python_model

GAUGES = "inflight_gpt2_kv_cache_slots"  # slots in use, slots in all, and sequences under way


class TritonPythonModel:
    """Input, output and request parameters as in config.pbtxt; one response a token, one forward pass an execution.

    A request comes again and again, always with its text. The correlation id tells which sequence it is, `start` that
    it is there for the first time. At the end of each execution it is rescheduled, or released for good.
    """

    def initialize(self, args):
        parameters = python_model.parameters(args)
        self.refuses = parameters["when_full"] == "refuse"
        self.model = gpt2.load(
            parameters["checkpoint_dir"],
            parameters["kv_cache"],
            parameters["dtype"],
            parameters["kv_cache_slots"],
            python_model.device(args),
        )
        self.log, self.numbers = python_model.ExecutionLog(parameters["iteration_log_path"]), count(1)
        self.gauges, self.shown = python_model.Gauges(args, {GAUGES: ("KV cache of iterative-gpt2", "kind")}), None
        self.house = iterative.Housekeeping(args, self.begin, self.model.leave, self.show_state)
        self.show_state()

    def execute(self, requests):
        with self.house.execution(requests) as execution:
            members, num_waiting = self.with_room(execution.members)
            if members:
                self.step(members, num_waiting, execution)
            self.house.send(members, self.piece)
            for member in members:
                if member.state.is_finished:
                    self.house.end(member)
                else:
                    self.house.again(member)

    def finalize(self):
        self.house.close()

    def begin(self, request):
        """The sequence that is computed for a new request."""
        return self.model.sequence(python_model.prompt(request), python_model.request_parameters(request))

    def with_room(self, members):
        """The members that have room in the KV cache, and how many wait for it until the next execution."""
        # In the order of their start: who has waited longest is next, in this batch or not.
        joined = {sequence for sequence in self.house.states if self.model.join(sequence)}
        others = [member for member in members if member.state not in joined]
        for member in others:
            if self.refuses:
                full = f"All {self.model.num_slots} slots of the KV cache are taken: send the request again later, "
                self.house.end(member, CourseError(full + "or set kv_cache_slots higher."))
            else:
                self.house.again(member)
        return [member for member in members if member.state in joined], 0 if self.refuses else len(others)

    def step(self, members, num_waiting, execution):
        """A token for each. The log's line is written first, so that whoever has a response finds it there."""
        sequences = [member.state for member in members]
        computed = [len(sequence.token_ids) - sequence.num_cached for sequence in sequences]
        self.model.step(sequences)
        self.log.write(
            timestamp=execution.timestamp,
            iteration=next(self.numbers),
            iteration_ms=(time.monotonic() - execution.start_s) * 1000,
            sequences=[
                [member.number, member.is_new, member.state.slot, len(member.state.token_ids), tokens]
                for member, tokens in zip(members, computed)
            ],
            slots_used=self.model.num_used_slots,
            slots_max=self.model.num_slots,
            waiting=num_waiting,
            empty_slots=execution.empty_slots,
        )

    def piece(self, member):
        """The response with the text of the member's last token."""
        text = np.array([[self.model.last_piece(member.state).encode("utf-8")]], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])

    def show_state(self):
        """Slots and sequences, at Triton's /metrics; each figure that is sent takes a message to the server."""
        sequences = len(self.house.states)
        state = {"used": self.model.num_used_slots, "max": self.model.num_slots, "sequences": sequences}
        if state != self.shown:
            self.gauges.show(GAUGES, state)
            self.shown = state
