"""Text to token ids, in front of the engine."""

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.triton.model import python_model


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, each with a leading batch dimension: the prompts of a request."""

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.output_types = python_model.output_types(args)
        self.tokenizer = load_tokenizer(self.parameters["tokenizer_dir"])
        if self.parameters["apply_chat_template"]:
            self.tokenizer.chat("Hello")  # a template that cannot be used is found now

    def execute(self, requests):
        return [python_model.answer(self._tokenize, request) for request in requests]

    def _tokenize(self, request):
        python_model.refuse_foreign(request, "preprocessing")
        prompts = [self._ids(text) for text in python_model.prompts(request, "QUERY")]
        rows = len(prompts)
        pad_id = python_model.array(request, "PAD_ID", [[self.tokenizer.pad_id]] * rows)
        tensors = {
            "INPUT_ID": _rows(prompts, pad_id.reshape(-1).tolist()),
            "REQUEST_INPUT_LEN": [[len(ids)] for ids in prompts],
            "REQUEST_OUTPUT_LEN": python_model.required(request, "REQUEST_OUTPUT_LEN"),
            "BAD_WORDS_IDS": self._words(request, "BAD_WORDS_DICT", "bad_words", rows),
            "STOP_WORDS_IDS": self._words(request, "STOP_WORDS_DICT", "stop_words", rows),
            "OUT_END_ID": python_model.array(request, "END_ID", [[self.tokenizer.end_id]] * rows),
            "OUT_PAD_ID": pad_id,
            "DECODER_INPUT_ID": pad_id,
            "REQUEST_DECODER_INPUT_LEN": [[1]] * rows,
        }
        return [pb_utils.Tensor(name, np.asarray(value, self.output_types[name])) for name, value in tensors.items()]

    def _ids(self, text: str) -> list[int]:
        encode = self.tokenizer.encode_chat if self.parameters["apply_chat_template"] else self.tokenizer.encode
        return encode(text, self.parameters["add_special_tokens"])

    def _words(self, request, name, called, rows) -> np.ndarray:
        """[rows, 2, n]: of each prompt token ids of all words in a row; below, the end of each word, then -1."""
        ids, ends = zip(*(self._packed(python_model.texts(request, name, called, row)) for row in range(rows)))
        return np.stack([_rows(ids, [0] * rows), _rows(ends, [-1] * rows)], axis=1)

    def _packed(self, texts: list[str]) -> tuple[list[int], list[int]]:
        """Token ids of all words in a row, and as many numbers: the end of each word, then -1."""
        words = [ids for text in texts if (ids := self.tokenizer.encode(text, add_special_tokens=False))]
        ids = sum(words, [])
        ends = np.cumsum([len(word) for word in words], dtype=int).tolist()
        return (ids, ends + [-1] * (len(ids) - len(ends))) if ids else ([0], [-1])


def _rows(lists, padding) -> np.ndarray:
    """Lists of numbers as rows of the same length: each is filled up with its own padding."""
    length = max(map(len, lists))
    return np.array([list(numbers) + [fill] * (length - len(numbers)) for numbers, fill in zip(lists, padding)])
