"""Token ids to text, behind the engine."""

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton.model import engine_model, python_model
from inflight.triton.model.detokenizer import Detokenizer


class TritonPythonModel:
    """Inputs as in config.pbtxt, each with a leading batch dimension of 1; OUTPUT has none, as in TensorRT-LLM.

    A streamed response brings a token or two, and a character may be spread over several. PRECEDING_IDS tell what came
    before, so that spaces are kept and a character is given when its last byte is there.

    This is also where it shows that the client of an ensemble has gone: Triton tells so to the steps that begin
    afterwards, and the engine's began before. It is told to stop, by STOP_ID.
    """

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.tokenizer = load_tokenizer(self.parameters["tokenizer_dir"])

    def execute(self, requests):
        return [python_model.answer(self._text, request) for request in requests]

    def _text(self, request):
        [stop_id] = python_model.texts(request, "STOP_ID", "STOP_ID") or [""]
        if stop_id and request.is_cancelled():
            engine_model.stop(stop_id, self.parameters["contract"])
            return [pb_utils.Tensor("OUTPUT", np.array([b""], np.object_))]
        beams, lengths = self._answers(request)
        preceding = [
            token for token in python_model.array(request, "PRECEDING_IDS", []).reshape(-1).tolist() if token >= 0
        ]
        is_final = python_model.scalar(request, "IS_FINAL", True)
        texts = [self._after(preceding).add(ids[:length].tolist(), is_final) for ids, length in zip(beams, lengths)]
        return [pb_utils.Tensor("OUTPUT", np.array([text.encode("utf-8") for text in texts], dtype=np.object_))]

    def _after(self, preceding):
        skip = self.parameters["skip_special_tokens"]
        return Detokenizer(self.tokenizer, skip_special_tokens=skip, ids=list(preceding))

    def _answers(self, request):
        """Token ids of each beam, [beams, length], and how many of them are its answer."""
        batch = python_model.required(request, "TOKENS_BATCH")
        beams = batch[0]
        lengths = python_model.array(request, "SEQUENCE_LENGTH", [beams.shape[1]] * len(beams)).reshape(-1)
        if len(batch) != 1 or len(lengths) != len(beams):
            raise CourseError(
                f"TOKENS_BATCH has the shape {list(batch.shape)} and SEQUENCE_LENGTH {len(lengths)} lengths: send one "
                "request of [1, beams, tokens], with a length for each beam."
            )
        if not all(0 <= length <= beams.shape[1] for length in lengths):
            raise CourseError(f"SEQUENCE_LENGTH is {lengths.tolist()}, but TOKENS_BATCH has {beams.shape[1]} tokens.")
        if beams.size and beams.min() < 0:
            raise CourseError(f"TOKENS_BATCH has the token id {beams.min()}, which no tokenizer has.")
        return beams, lengths
