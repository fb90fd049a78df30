"""Computes a Llama: the new tokens of all sequences in, logits after some of them out.

It does not know how attention finds its keys: each layer writes its new ones into the cache and asks `attend`. Between
the layers runs `x` [tokens, hidden], the tokens of all sequences in one row; what a layer adds to it is added in place.
Touvron et al. 2023, arXiv:2302.13971: RMS norm before each half of a layer, rotary positions, gated feed-forward part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from inflight.engine.torch.attention import Attend, Step

FREQUENCIES = "rotary_frequencies"  # the name of a tensor: radians a position for each pair of numbers in a head


class Llama:
    """The model with its weights.

    Parameters
    ----------
    model : dict[str, Any]
        `pretrained_config` of the engine.
    weights : dict[str, Any]
        Tensors by the names of `builder`, all on one device.
    positions : int
        Most tokens of a sequence.
    """

    def __init__(self, model: dict[str, Any], weights: dict[str, torch.Tensor], positions: int):
        self._weights, self._num_layers = weights, model["num_hidden_layers"]
        self._heads, self._kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        self._epsilon = model["norm_epsilon"]
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = weights.get("lm_head.weight", self._embedding)
        places = torch.arange(positions, dtype=torch.float32, device=self._embedding.device)
        angles = places[:, None] * weights[FREQUENCIES]
        # [positions, head size]: the second half of a head is rotated as the first, and takes its sines the other way.
        self._cosines = torch.cat([angles.cos(), angles.cos()], -1).to(self._embedding.dtype)
        self._sines = torch.cat([-angles.sin(), angles.sin()], -1).to(self._embedding.dtype)

    def __call__(self, step: Step, caches: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Logits that follow the tokens `step.logits_after`, [rows of logits, vocab_size].

        Parameters
        ----------
        caches : tensor [layers, blocks, tokens of a block, 2 × KV heads, head size]
            The new tokens are written into it.
        """
        x, slots = embedding(step.ids, self._embedding), step.slots.long()
        cosines, sines = self._cosines[step.positions][:, None], self._sines[step.positions][:, None]
        for number, cache in enumerate(caches):
            layer = f"model.layers.{number}."
            heads = linear(self._normed(x, layer + "input_layernorm"), self._weight(layer + "self_attn.qkv_proj"))
            heads = heads.view(len(x), self._heads + 2 * self._kv_heads, -1)  # queries, keys, values
            _rotate(heads[:, : self._heads + self._kv_heads], cosines, sines)
            cache.flatten(0, 1).index_copy_(0, slots, heads[:, self._heads :])
            attended = attend(heads[:, : self._heads], cache).flatten(1)
            x.addmm_(attended, self._weight(layer + "self_attn.o_proj").t())
            if number == self._num_layers - 1 and not step.is_decode:
                x = x[step.logits_after]  # only these tokens need logits
            normed = self._normed(x, layer + "post_attention_layernorm")
            gate, up = linear(normed, self._weight(layer + "mlp.gate_up_proj")).chunk(2, -1)
            x.addmm_(silu(gate).mul_(up), self._weight(layer + "mlp.down_proj").t())
        return linear(self._normed(x, "model.norm"), self._head)

    def _weight(self, name: str) -> torch.Tensor:
        return self._weights[f"{name}.weight"]

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, x.shape[-1:], self._weight(name), self._epsilon)


def _rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    """Rotary position embedding, in place, of `heads` [tokens, heads, head size]: Su et al. 2021, arXiv:2104.09864."""
    turned = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cosines).addcmul_(turned, sines)
