"""GPT-2, batch after batch: no KV cache, and nobody joins a batch that has begun."""

import time
from itertools import count

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.models import gpt2
from inflight.triton.model import python_model

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Input, output and request parameters as in config.pbtxt; one response a token."""

    def initialize(self, args):
        parameters = python_model.parameters(args)
        self.model = gpt2.TutorialGpt2(parameters["checkpoint_dir"], python_model.device(args))
        self.log = python_model.ExecutionLog(parameters["iteration_log_path"])
        self.iterations, self.numbers = count(1), count(1)

    def execute(self, requests):
        running = self._begin(requests)
        while running:
            try:
                self._step([(number, sequence) for _, number, sequence, _ in running])
            except Exception as error:  # nobody is left without an end
                for _, _, _, sender in running:
                    sender.send(python_model.error_response(error), flags=FINAL)
                return
            for _, _, sequence, sender in running:
                sender.send(self._response(sequence), flags=FINAL if sequence.is_finished else 0)
            running = [row for row in running if not row[2].is_finished and not self._is_abandoned(row[0], row[3])]

    def _begin(self, requests) -> list:
        """Request, number, sequence and response sender of each request that can be computed."""
        running = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                sequence = self.model.sequence(python_model.prompt(request), python_model.request_parameters(request))
                running.append((request, next(self.numbers), sequence, sender))
            except Exception as error:
                sender.send(python_model.error_response(error), flags=FINAL)
        return running

    def _step(self, sequences) -> None:
        """A token for each, and a line in the log of the same form as that of iterative-gpt2."""
        timestamp, start_s = time.time(), time.monotonic()
        before = [(sequence.num_generated == 0, len(sequence.token_ids)) for _, sequence in sequences]
        self.model.step([sequence for _, sequence in sequences])
        self.log.write(
            timestamp=timestamp,
            iteration=next(self.iterations),
            iteration_ms=(time.monotonic() - start_s) * 1000,
            sequences=[
                [number, is_new, None, len(sequence.token_ids), computed]
                for (number, sequence), (is_new, computed) in zip(sequences, before)
            ],
            slots_used=0,
            slots_max=0,
            waiting=0,
            empty_slots=0,
        )

    def _is_abandoned(self, request, sender) -> bool:
        """Whether the client is gone; its request is ended then."""
        if not request.is_cancelled():
            return False
        sender.send(flags=FINAL)
        return True

    def _response(self, sequence):
        piece = np.array([[self.model.last_piece(sequence).encode("utf-8")]], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)])
