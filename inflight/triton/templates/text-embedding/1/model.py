"""Embeddings from the course's checkpoint: every text of every request in one forward pass."""

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from inflight.models import embedding
from inflight.triton.model import python_model


class TritonPythonModel:
    """Input and output as in config.pbtxt, each with a leading batch dimension; a request may have several texts."""

    def initialize(self, args):
        parameters = python_model.parameters(args)
        torch.set_num_threads(1)  # instance_group says how many cores work, and the others stay free for Triton
        self.model = embedding.Embedder(parameters["checkpoint_dir"], parameters["dtype"], python_model.device(args))

    def execute(self, requests):
        texts = [self._texts(request) for request in requests]
        good = [text for own in texts if not isinstance(own, Exception) for text in own]
        rows = iter(self.model(good) if good else [])
        return [
            python_model.error_response(own) if isinstance(own, Exception) else self._response(own, rows)
            for own in texts
        ]

    def _texts(self, request) -> list[list[int]] | Exception:
        """Token ids of a request's texts; or what is wrong with them, which is no other request's fault."""
        try:
            return [self.model.encode(text) for text in python_model.texts(request, "text_input", "text_input")]
        except Exception as error:
            return error

    def _response(self, texts, rows):
        own = np.stack([next(rows) for _ in texts])
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", own)])
