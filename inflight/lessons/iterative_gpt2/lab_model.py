"""The lecture's model with a KV cache. Who has room in it, and where, is up to a subclass; the lab's model.py is one.

    class TritonPythonModel(Gpt2Model):
        def initialize(self, args): ...           # the cache: self.empty_cache(positions)
        def with_room(self, numbers): ...         # of these sequences, those that are computed now
        def where(self, text): ...                # the position in the cache of each token of the text
        def forget(self, number): ...

It runs in Triton, and in the lab's check. Its parameters are `checkpoint_dir`, and `log`: a file to which each pass
adds a line, the number of texts that waited for room.
"""

import json
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from inflight.checkpoint import load_tokenizer
from inflight.models import gpt2_network


class Text:
    """A prompt and its answer so far.

    Attributes
    ----------
    ids : list of int
    length : int
        Tokens of prompt and answer, when it is complete.
    sender : object
        Of its responses, as Triton gave it in the latest call.
    slot : int or None
        Its slot of the cache.
    blocks : list of int
        Its block table, where the cache has blocks in place of slots.
    cached : int
        Tokens whose keys and values are in the cache.
    """

    def __init__(self, ids, max_tokens):
        self.ids, self.length = ids, len(ids) + max_tokens
        self.sender = self.slot = None
        self.blocks = []
        self.cached = 0


def value(request, name):
    import triton_python_backend_utils as pb_utils  # it is inside Triton only

    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().item()


class Gpt2Model:
    """An iterative GPT-2 without its memory; see the top of this module."""

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder, self.log = (parameters[name]["string_value"] for name in ("checkpoint_dir", "log"))
        self.tokenizer, self.network = load_tokenizer(folder), gpt2_network.load(folder)
        self.texts = {}  # by the sequence's number, in the order of their start

    def empty_cache(self, positions):
        """Keys and values of so many tokens: [layers, 2, heads, positions, size]."""
        net = self.network
        return torch.zeros(net.num_layers, 2, net.num_heads, positions, net.head_dim)

    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        batch = {}
        for request in requests:
            if value(request, "ready"):
                number = value(request, "number")
                if value(request, "start"):
                    max_tokens = json.loads(request.parameters())["max_tokens"]
                    prompt = value(request, "text_input").decode()
                    self.texts[number] = Text(self.tokenizer.encode(prompt), max_tokens)
                self.texts[number].sender = request.get_response_sender()
                batch[number] = request
        self.forget_those_who_left(batch)
        computed = self.with_room(list(batch))
        if computed:
            tokens = self.step([self.texts[number] for number in computed])
            with open(self.log, "a") as log:
                print(len(batch) - len(computed), file=log)
            for number, token in zip(computed, tokens):
                self.answer(number, token)
        for number, request in batch.items():
            if number in self.texts:  # its answer is not complete
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def forget_those_who_left(self, batch):
        for number in [number for number in self.texts if number not in batch]:
            if self.texts[number].sender.is_cancelled():
                self.forget(number)

    def answer(self, number, token):
        """Send a token; with the last one, the sequence is over."""
        import triton_python_backend_utils as pb_utils

        text = self.texts[number]
        text.ids.append(token)
        is_last = len(text.ids) == text.length
        piece = self.tokenizer.decode([token], skip_special_tokens=False).encode()
        response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([[piece]], object))])
        text.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0)
        if is_last:
            self.forget(number)

    def step(self, texts):
        """One forward pass: the next token of each text."""
        ids, positions, cu_seqlens = [], [], [0]
        for text in texts:
            ids += text.ids[text.cached :]
            positions += range(text.cached, len(text.ids))
            cu_seqlens.append(len(ids))
        places = [torch.tensor([*self.where(text)]) for text in texts]
        attend = partial(self.attend, texts, places, cu_seqlens)
        tokens = self.network.next_tokens(ids, positions, [end - 1 for end in cu_seqlens[1:]], attend)
        for text in texts:
            text.cached = len(text.ids)
        return tokens

    def attend(self, texts, places, cu_seqlens, layer, qkv):
        """Attention: takes [tokens, 3, heads, size], gives [tokens, heads, size]."""
        found, cache = [], self.cache[layer]
        for text, where, (start, end) in zip(texts, places, pairwise(cu_seqlens)):
            own = qkv[start:end].permute(1, 2, 0, 3)
            cache[:, :, where[text.cached :]] = own[1:]
            keys, values = cache[:, :, where]
            seen = torch.ones(end - start, len(text.ids), dtype=torch.bool).tril(text.cached)
            found.append(scaled_dot_product_attention(own[0], keys, values, attn_mask=seen).transpose(0, 1))
        return torch.cat(found)
