"""Text to text with the Hugging Face pipeline: what serving looks like before there is an engine."""

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.triton import python_model


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, each with a leading batch dimension of 1.

    A request is computed to its end before the next one is begun: no batch, no stream, always the likeliest token. It
    ends early when Triton knows that its client has gone, which over HTTP it learns only when it writes to it.
    """

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.pipeline = huggingface.pipeline(
            self.parameters["checkpoint_dir"],
            self.parameters["tokenizer_dir"],
            self.parameters["dtype"],
            python_model.device(args),
        )
        # Its chat template runs where it can take no more than its share of time and memory, not in the pipeline.
        self.tokenizer = load_tokenizer(self.parameters["tokenizer_dir"] or self.parameters["checkpoint_dir"])
        self.is_chat = self.parameters["apply_chat_template"] and self.tokenizer.has_template
        if self.is_chat:
            self.tokenizer.chat("Hello")  # one that cannot be used is found now

    def execute(self, requests):
        return [python_model.answer(self._generate, request) for request in requests]

    def _generate(self, request):
        prompt = python_model.prompt(request)
        if self.is_chat:
            prompt = self.tokenizer.chat(prompt)
        room = self._room(prompt)
        max_tokens = python_model.required(request, "max_tokens").item()
        min_length = python_model.scalar(request, "min_length", 0)
        if max_tokens < 1:
            raise CourseError(f"max_tokens is {max_tokens}; it must be at least 1.")
        if min_length < 0:
            raise CourseError(f"min_length is {min_length}; give a value of at least 0.")
        length = min(max_tokens, room)
        [answer] = self.pipeline(
            prompt,
            do_sample=False,
            max_new_tokens=length,
            min_new_tokens=min(min_length, length),
            return_full_text=False,
            add_special_tokens=not self.is_chat,  # a template writes its own
            clean_up_tokenization_spaces=False,
            stopping_criteria=huggingface.stop_when(request.is_cancelled),
        )
        text = answer["generated_text"].encode("utf-8")
        return [pb_utils.Tensor("text_output", np.array([[text]], dtype=np.object_))]

    def _room(self, prompt: str) -> int:
        """Tokens that an answer to `prompt` may have: the model knows no more than so many positions."""
        positions = self.pipeline.model.config.max_position_embeddings
        length = len(self.pipeline.tokenizer(prompt, add_special_tokens=not self.is_chat)["input_ids"])
        if length >= positions:
            raise CourseError(
                f"Prompt length ({length}) leaves no room for an answer in the model's {positions} "
                "positions: shorten the text."
            )
        return positions - length
