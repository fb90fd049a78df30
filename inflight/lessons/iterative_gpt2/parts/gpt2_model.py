"""GPT-2 as an iterative model: few rows in its KV cache, and many readers."""

import json
from functools import partial

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from torch.nn.functional import scaled_dot_product_attention

from inflight.checkpoint import load_tokenizer
from inflight.models import gpt2_network

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
ROWS = 4  # texts that the cache has room for


class Text:
    """A prompt and its answer so far."""

    def __init__(self, ids, max_tokens):
        self.ids = ids
        self.length = len(ids) + max_tokens  # when it is complete
        self.sender = None  # of its responses, as Triton gave it in the latest call
        self.row = None  # its row in the cache
        self.cached = 0  # tokens whose keys and values are there


def value(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder = parameters["checkpoint_dir"]["string_value"]
        self.tokenizer = load_tokenizer(folder)
        self.network = net = gpt2_network.load(folder)
        room = (ROWS, net.num_heads, net.num_positions, net.head_dim)
        self.cache = torch.zeros(net.num_layers, 2, *room)  # 2: keys, values
        self.texts = {}  # by the sequence's number
        self.free = list(range(ROWS))  # rows that nobody has

    def execute(self, requests):
        batch = {}
        for request in requests:
            if value(request, "ready"):
                number = value(request, "number")
                if value(request, "start"):
                    self.texts[number] = self.begin(request)
                self.texts[number].sender = request.get_response_sender()
                batch[number] = request
        self.forget_those_who_left(batch)
        computed = self.with_row(batch)
        if computed:
            tokens = self.step([self.texts[number] for number in computed])
            for number, token in zip(computed, tokens):
                self.answer(number, token)
        for number, request in batch.items():
            if number in self.texts:  # its answer is not complete
                request.set_release_flags(RESCHEDULE)

    def begin(self, request):
        """The state of a new sequence."""
        prompt = value(request, "text_input").decode()
        max_tokens = json.loads(request.parameters())["max_tokens"]
        return Text(self.tokenizer.encode(prompt), max_tokens)

    def answer(self, number, token):
        """Send a token; with the last one, the sequence is over."""
        text = self.texts[number]
        text.ids.append(token)
        is_last = len(text.ids) == text.length
        piece = self.tokenizer.decode([token], skip_special_tokens=False).encode()
        tensor = pb_utils.Tensor("text_output", np.array([[piece]], object))
        response = pb_utils.InferenceResponse([tensor])
        text.sender.send(response, flags=FINAL if is_last else 0)
        if is_last:
            self.forget(number)

    # These three are yours.

    def with_row(self, numbers):
        """Of these sequences, those that are computed now: a list of numbers."""
        for number in numbers:
            if self.texts[number].row is None and self.free:
                self.texts[number].row = self.free.pop()
        return [number for number in numbers if self.texts[number].row is not None]

    def forget_those_who_left(self, batch):
        """Forget the sequences that are not in this call because their clients left."""
        for number in [number for number in self.texts if number not in batch]:
            if self.texts[number].sender.is_cancelled():
                self.forget(number)

    def forget(self, number):
        """Keep nothing more of a sequence."""
        text = self.texts.pop(number)
        if text.row is not None:
            self.free.append(text.row)

    # Below, all is as in the lecture.

    def step(self, texts):
        """One forward pass: the next token of each text."""
        ids, positions, last = [], [], []
        for text in texts:
            ids += text.ids[text.cached :]
            positions += range(text.cached, len(text.ids))
            last.append(len(ids) - 1)
        attend = partial(self.attend, texts)
        tokens = self.network.next_tokens(ids, positions, last, attend)
        for text in texts:
            text.cached = len(text.ids)
        return tokens

    def attend(self, texts, layer, projected):
        """Attention: takes [tokens, 3, heads, size], gives [tokens, heads, size]."""
        found, start = [], 0
        for text in texts:
            end = start + len(text.ids) - text.cached
            query, key, value = projected[start:end].permute(1, 2, 0, 3)
            keys, values = self.cache[layer, :, text.row, :, : len(text.ids)]
            keys[:, text.cached :], values[:, text.cached :] = key, value
            is_prompt = text.cached == 0  # a single new token looks at everything
            heads = scaled_dot_product_attention(
                query, keys, values, is_causal=is_prompt
            )
            found.append(heads.transpose(0, 1))
            start = end
        return torch.cat(found)
