"""Text to token ids, in front of the engine."""

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.triton import python_model
from inflight.triton.repository import foreign


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, each with a leading batch dimension of 1."""

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.output_types = python_model.output_types(args)
        self.foreign = foreign.of("preprocessing")
        python_model.note_tokenizer_type(self.parameters)
        self.tokenizer = load_tokenizer(self.parameters["tokenizer_dir"])
        if self.parameters["apply_chat_template"]:
            self.tokenizer.chat("Hello")  # a template that cannot be used is found now, and its process is there

    def execute(self, requests):
        return [python_model.answer(self._tokenize, request) for request in requests]

    def _tokenize(self, request):
        python_model.refuse_foreign(request, self.foreign)
        text = python_model.prompt(request, "QUERY")
        if self.parameters["apply_chat_template"]:
            text = self.tokenizer.chat(text)
        ids = self.tokenizer.encode(text, self.parameters["add_special_tokens"])
        pad_id = python_model.array(request, "PAD_ID", [[self.tokenizer.pad_id]])
        tensors = {
            "INPUT_ID": np.array([ids]),
            "REQUEST_INPUT_LEN": np.array([[len(ids)]]),
            "REQUEST_OUTPUT_LEN": python_model.required(request, "REQUEST_OUTPUT_LEN"),
            "BAD_WORDS_IDS": self._words(request, "BAD_WORDS_DICT", "bad_words"),
            "STOP_WORDS_IDS": self._words(request, "STOP_WORDS_DICT", "stop_words"),
            "OUT_END_ID": python_model.array(request, "END_ID", [[self.tokenizer.end_id]]),
            "OUT_PAD_ID": pad_id,
            "DECODER_INPUT_ID": pad_id,
            "REQUEST_DECODER_INPUT_LEN": [[1]],
        }
        return [pb_utils.Tensor(name, np.asarray(value, self.output_types[name])) for name, value in tensors.items()]

    def _words(self, request, name, called) -> np.ndarray:
        """[1, 2, n]: token ids of all words in a row; below, the end of each word, then -1."""
        texts = python_model.texts(request, name, called)
        words = [ids for text in texts if (ids := self.tokenizer.encode(text, add_special_tokens=False))]
        ids = sum(words, [])
        ends = np.cumsum([len(word) for word in words]).tolist()
        if not ids:
            return np.array([[[0], [-1]]])
        return np.array([[ids, ends + [-1] * (len(ids) - len(ends))]])
