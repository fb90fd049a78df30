"""The two architectures, as they are computed: a step in, the hidden state of each sequence's last token out.

Neither knows how attention finds its keys: each layer writes its new ones into the cache and asks `attend`. Between the
layers runs `x` [tokens, hidden], the tokens of all sequences in one row; what a layer adds to it is added in place.
"""

from __future__ import annotations

import functools

import torch
from torch.nn.functional import embedding, gelu, layer_norm, linear, rms_norm, silu

from inflight.engine.torch.attention import Attend, Step
from inflight.engine.torch.weights import FREQUENCIES, LLAMA

Weights = dict[str, torch.Tensor]
MOST_PACKED_ROWS = 32  # with more tokens, a matrix of whole numbers is better turned into floating point once


class Linear:
    """x → x @ weight.T + bias, for a weight [outputs, inputs] in floating point."""

    def __init__(self, weights: Weights, name: str):
        self._weight, self._bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self._weight, self._bias)

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> None:
        """Add what `x` gives to `total`, within the product itself."""
        total.addmm_(x, self._weight.t())
        if self._bias is not None:
            total += self._bias


class Int8Linear:
    """The same for a weight in int8 with a scale for each output: the activations stay as they are.

    PyTorch has a product for it that reads the whole numbers as they lie; where that is not there or not right on this
    device, they are turned into floating point before each product.
    """

    def __init__(self, weights: Weights, name: str, dtype: torch.dtype):
        self._weight, self._scale = weights[f"{name}.weight"], weights[f"{name}.scale"].to(dtype)
        self._bias = weights.get(f"{name}.bias")
        self._is_packed = has_packed_product(self._weight.device, dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._is_packed and len(x) <= MOST_PACKED_ROWS:
            product = torch._weight_int8pack_mm(x, self._weight, self._scale)
        else:
            product = linear(x, self._weight.to(x.dtype)) * self._scale
        return product if self._bias is None else product + self._bias

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> None:
        total += self(x)


@functools.cache
def has_packed_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's product for int8 weights is there and right; it is none of its public functions."""
    random = torch.Generator(device).manual_seed(0)
    x = torch.empty(3, 128, device=device).normal_(generator=random).to(dtype)
    weight = torch.randint(-127, 128, (64, 128), dtype=torch.int8, device=device, generator=random)
    scale = torch.linspace(0.01, 0.02, 64, device=device).to(dtype)
    try:
        packed = torch._weight_int8pack_mm(x, weight, scale).float()
    except (RuntimeError, AttributeError):
        return False
    plain = linear(x.float(), weight.float()) * scale.float()
    return bool((packed - plain).abs().max() <= 0.02 * plain.abs().max())


def layer_linear(weights: Weights, name: str, dtype: torch.dtype) -> Linear | Int8Linear:
    is_int8 = weights[f"{name}.weight"].dtype == torch.int8
    return Int8Linear(weights, name, dtype) if is_int8 else Linear(weights, name)


class Attention:
    """The half of a layer that both architectures share: new keys and values into the cache, then attention.

    `rotation` is a Llama's; what attention gives is added to `total`.
    """

    def __init__(self, weights: Weights, prefix: str, model: dict, dtype: torch.dtype):
        self._qkv = layer_linear(weights, prefix + "attention.qkv", dtype)
        self._dense = layer_linear(weights, prefix + "attention.dense", dtype)
        self._heads, self._kv_heads = model["num_attention_heads"], model["num_key_value_heads"]

    def add_to(
        self,
        total: torch.Tensor,
        x: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
        attend: Attend,
        rotation: Rotation | None = None,
    ) -> None:
        heads = self._qkv(x).view(len(x), self._heads + 2 * self._kv_heads, -1)  # queries, keys, values
        if rotation is not None:
            rotation(heads[:, : self._heads + self._kv_heads])
        cache.flatten(0, 1).index_copy_(0, slots, heads[:, self._heads :])
        self._dense.add_to(total, attend(heads[:, : self._heads], cache).flatten(1))


class Rotation:
    """Rotary position embedding of a step's tokens: Su et al. 2021, arXiv:2104.09864. It changes what it is given.

    Parameters
    ----------
    cosines, sines : tensor [tokens, head size]
        The second half is the first again; of the sines, the first half is negative.
    """

    def __init__(self, cosines: torch.Tensor, sines: torch.Tensor):
        self._cosines, self._sines = cosines[:, None], sines[:, None]

    def __call__(self, heads: torch.Tensor) -> None:
        turned = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(self._cosines).addcmul_(turned, self._sines)


def rotary_tables(model: dict, weights: Weights, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Cosines and sines of every position, [positions, head size], as `Rotation` takes them."""
    device = weights["transformer.ln_f.weight"].device
    if (frequencies := weights.get(FREQUENCIES)) is None:
        steps = torch.arange(0, model["head_size"], 2, dtype=torch.float32, device=device) / model["head_size"]
        frequencies = 1.0 / model["rotary_base"] ** steps
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat([cosines, cosines], -1).to(dtype), torch.cat([-sines, sines], -1).to(dtype)


class Llama:
    """Touvron et al. 2023, arXiv:2302.13971: RMS norm before each half of a layer, rotary positions, gated MLP."""

    def __init__(self, model: dict, weights: Weights, positions: int, dtype: torch.dtype):
        self._embedding = weights["transformer.vocab_embedding.weight"]
        self._norm, self._epsilon = weights["transformer.ln_f.weight"], model["norm_epsilon"]
        self._cosines, self._sines = rotary_tables(model, weights, positions, dtype)
        prefixes = [f"transformer.layers.{number}." for number in range(model["num_hidden_layers"])]
        self._layers = [
            (
                weights[prefix + "input_layernorm.weight"],
                Attention(weights, prefix, model, dtype),
                weights[prefix + "post_layernorm.weight"],
                layer_linear(weights, prefix + "mlp.gate_up", dtype),
                layer_linear(weights, prefix + "mlp.proj", dtype),
            )
            for prefix in prefixes
        ]

    def __call__(self, step: Step, caches: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden state of the last token of each sequence, [sequences, hidden]."""
        x, slots = embedding(step.ids, self._embedding), step.slots.long()
        rotation = Rotation(self._cosines[step.positions], self._sines[step.positions])
        for cache, (before_attention, attention, before_mlp, gate_up, down) in zip(caches, self._layers):
            attention.add_to(x, self._normed(x, before_attention), cache, slots, attend, rotation)
            if attention is self._layers[-1][1]:
                x = last_tokens(x, step)
            gate, up = gate_up(self._normed(x, before_mlp)).chunk(2, -1)
            down.add_to(x, silu(gate).mul_(up))
        return self._normed(x, self._norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight.shape, weight, self._epsilon)


class Gpt2:
    """Radford et al. 2019: layer norm before each half of a layer, a learned vector for each position, GELU."""

    def __init__(self, model: dict, weights: Weights, positions: int, dtype: torch.dtype):
        self._embedding = weights["transformer.vocab_embedding.weight"]
        self._positions = weights["transformer.position_embedding.weight"]
        self._epsilon = model["norm_epsilon"]
        self._norm = _norm(weights, "transformer.ln_f")
        prefixes = [f"transformer.layers.{number}." for number in range(model["num_hidden_layers"])]
        self._layers = [
            (
                _norm(weights, prefix + "input_layernorm"),
                Attention(weights, prefix, model, dtype),
                _norm(weights, prefix + "post_layernorm"),
                layer_linear(weights, prefix + "mlp.fc", dtype),
                layer_linear(weights, prefix + "mlp.proj", dtype),
            )
            for prefix in prefixes
        ]

    def __call__(self, step: Step, caches: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden state of the last token of each sequence, [sequences, hidden]."""
        x, slots = embedding(step.ids, self._embedding), step.slots.long()
        x += embedding(step.positions, self._positions)
        for cache, (before_attention, attention, before_mlp, widening, narrowing) in zip(caches, self._layers):
            attention.add_to(x, self._normed(x, before_attention), cache, slots, attend)
            if attention is self._layers[-1][1]:
                x = last_tokens(x, step)
            narrowing.add_to(x, gelu(widening(self._normed(x, before_mlp)), approximate="tanh"))
        return self._normed(x, self._norm)

    def _normed(self, x: torch.Tensor, norm: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return layer_norm(x, x.shape[-1:], *norm, self._epsilon)


def _norm(weights: Weights, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def last_tokens(x: torch.Tensor, step: Step) -> torch.Tensor:
    """The rows of each sequence's last token: nobody asks for what follows the others."""
    return x if step.is_decode else x[step.begins[1:] - 1]


class LanguageModel:
    """An architecture with its head: a step in, logits out.

    Parameters
    ----------
    model : dict
        `pretrained_config` of the engine.
    weights : dict
        By the names of `weights.shapes`.
    positions : int
        Most tokens of a sequence.
    """

    def __init__(self, model: dict, weights: Weights, positions: int, dtype: torch.dtype):
        architecture = Llama if model["architecture"] == LLAMA else Gpt2
        self._body = architecture(model, weights, positions, dtype)
        self._head = weights.get("lm_head.weight", weights["transformer.vocab_embedding.weight"])

    def __call__(self, step: Step, caches: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Logits that follow the last token of each sequence, [sequences, vocab_size].

        Parameters
        ----------
        caches : tensor [layers, blocks, tokens of a block, 2 × KV heads, head size]
            The new tokens are written into it.
        """
        return linear(self._body(step, caches, attend), self._head)
