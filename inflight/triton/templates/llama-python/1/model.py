"""Text to text with Hugging Face transformers: what serving looks like before there is an engine."""

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.triton.model import python_model
from inflight.triton.model.detokenizer import Detokenizer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    """Inputs as in config.pbtxt, with or without a batch dimension of 1; text_output has none.

    A request is computed to its end before the next one is begun: no batch, always the likeliest token. It ends early
    when Triton knows that its client has gone, which over HTTP it learns only when it writes to it: of a stream with
    its next piece, of a whole answer never.
    """

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.decoupled = python_model.is_decoupled(args)
        folder = self.parameters["checkpoint_dir"]
        self.tokenizer = load_tokenizer(self.parameters["tokenizer_dir"] or folder)
        self.model = huggingface.load(folder, self.parameters["dtype"], python_model.device(args))
        self.is_chat = self.parameters["apply_chat_template"] and self.tokenizer.has_template
        if self.is_chat:
            self.tokenizer.chat("Hello")  # one that cannot be used is found now

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._answer(request, sender)
            except Exception as error:
                sender.send(python_model.error_response(error), flags=FINAL)
        return None

    def _answer(self, request, sender):
        python_model.refuse_foreign(request, "llama-python")
        asked = python_model.prompt(request)
        ids = self.tokenizer.encode_chat(asked) if self.is_chat else self.tokenizer.encode(asked)
        if python_model.wants_stream(request, "stream", self.decoupled):
            text = Detokenizer(self.tokenizer)

            def send(token: int) -> None:
                if piece := text.add([token], is_final=False):
                    sender.send(_response(piece))

            self._generate(request, sender, ids, send)
            sender.send(_response(text.add([], is_final=True)), flags=FINAL)
            return
        text = self.tokenizer.decode(self._generate(request, sender, ids))
        if not python_model.scalar(request, "exclude_input_in_output", self.parameters["exclude_input_in_output"]):
            text = asked + text
        sender.send(_response(text), flags=FINAL)

    def _generate(self, request, sender, ids: list[int], send=None) -> list[int]:
        positions = self.model.config.max_position_embeddings  # the model knows no more of them
        if len(ids) >= positions:
            raise CourseError(
                f"Prompt length ({len(ids)}) leaves no room for an answer in the model's {positions} "
                "positions: shorten the text."
            )
        max_tokens = python_model.required(request, "max_tokens").item()
        min_length = python_model.scalar(request, "min_length", 0)
        if max_tokens < 1:
            raise CourseError(f"max_tokens is {max_tokens}; it must be at least 1.")
        if min_length < 0:
            raise CourseError(f"min_length is {min_length}; give a value of at least 0.")
        length = min(max_tokens, positions - len(ids))

        def is_over(tokens) -> bool:
            if send:
                send(tokens[0, -1].item())
            return sender.is_cancelled()

        return huggingface.generate(
            self.model,
            ids,
            is_over,
            do_sample=False,
            max_new_tokens=length,
            min_new_tokens=min(min_length, length),
        )


def _response(text: str):
    tensor = pb_utils.Tensor("text_output", np.array([text.encode("utf-8")], dtype=np.object_))
    return pb_utils.InferenceResponse([tensor])
