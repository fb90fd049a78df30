"""GPT-2, batch after batch: no KV cache, and nobody joins a batch that has begun."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight import gpt2, triton_model
from inflight.errors import CourseError

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Input, output and request parameters as in config.pbtxt; one response a token."""

    def initialize(self, args):
        parameters = triton_model.parameters(args)
        self.model = gpt2.load(parameters["checkpoint_dir"], kv_cache="tutorial")

    def execute(self, requests):
        running = self._begin(requests)
        while running:
            self.model.step([sequence for _, sequence, _ in running])
            for _, sequence, sender in running:
                sender.send(self._response(sequence), flags=FINAL if sequence.is_finished else 0)
            running = [row for row in running if not row[1].is_finished and not self._is_abandoned(*row)]

    def _begin(self, requests) -> list:
        """Request, sequence and response sender of each request that can be computed."""
        running = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                text = triton_model.array(request, "text_input").reshape(-1)
                if len(text) != 1:
                    raise CourseError(f"The request has {len(text)} texts: send one text a request.")
                running.append((request, self.model.sequence(text[0], json.loads(request.parameters() or "{}")), sender))
            except CourseError as error:
                sender.send(triton_model.error_response(error), flags=FINAL)
        return running

    def _is_abandoned(self, request, sequence, sender) -> bool:
        """Whether the client is gone; its request is ended then."""
        if not request.is_cancelled():
            return False
        sender.send(flags=FINAL)
        return True

    def _response(self, sequence):
        piece = np.array([[self.model.last_piece(sequence).encode("utf-8")]], np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", piece)])
