"""Writes the weights of a Hugging Face folder as an engine for PyTorch has them.

They keep their names but for two: query, key and value are one matrix, `self_attn.qkv_proj`, and so are a layer's gate
and up projections, `mlp.gate_up_proj`, for one larger product is faster than several. The frequencies of rotation are a
tensor of their own, `rotary_frequencies`, so the runner need not know the ways of slowing them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from inflight.checkpoint.as_huggingface import LOCAL
from inflight.engine.folder import TORCH_WEIGHTS_FILE
from inflight.engine.torch.llama import FREQUENCIES
from inflight.errors import CourseError

JOINED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
ALONE = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", "mlp.down_proj")

COMPUTED = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
ROTATIONS = ("default", "llama3")


def write_weights(source: Path, dtype: str, folder: Path) -> tuple[dict[str, Any], int]:
    """Write the weights of the Llama in the folder `source` into an engine's `folder`.

    Returns
    -------
    dict
        The model's entries for the engine's config.json, under TensorRT-LLM's names.
    int
        The number of its parameters.

    Raises
    ------
    CourseError
        The model is no Llama, or has something that the runner does not compute, so that its answers would be wrong.
    """
    config = transformers.AutoConfig.from_pretrained(source, **LOCAL)
    _refuse_others(source, config)
    parts = {name: part for file in sorted(source.glob("*.safetensors")) for name, part in _tensors(file)}
    names = ["model.embed_tokens", "model.norm", *(["lm_head"] if not config.tie_word_embeddings else [])]
    weights = {name: parts[f"{name}.weight"] for name in names}
    for layer in (f"model.layers.{number}." for number in range(config.num_hidden_layers)):
        weights |= {layer + name: parts[f"{layer}{name}.weight"] for name in ALONE}
        for joined, its_parts in JOINED.items():
            weights[layer + joined] = torch.cat([parts[f"{layer}{name}.weight"] for name in its_parts])
    stored = {f"{name}.weight": weight.to(getattr(torch, dtype)).contiguous() for name, weight in weights.items()}
    stored[FREQUENCIES] = LlamaRotaryEmbedding(config).inv_freq.float()
    save_file(stored, folder / TORCH_WEIGHTS_FILE)
    model = {
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_size": config.head_dim,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "norm_epsilon": config.rms_norm_eps,
        "share_embedding_table": config.tie_word_embeddings,
    }
    return model, sum(weight.numel() for weight in weights.values())


def _tensors(file: Path) -> Any:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118  no dict, and not iterable
            yield name, opened.get_tensor(name)


def _refuse_others(source: Path, config: transformers.PretrainedConfig) -> None:
    if config.model_type != "llama":
        raise CourseError(
            f"{source} holds a {config.model_type!r} model, and the engine computes models of the Llama family: use a "
            "checkpoint of one of these."
        )
    values = {name: getattr(config, name) for name in COMPUTED} | {"rope_type": config.rope_parameters["rope_type"]}
    for name, allowed in (COMPUTED | {"rope_type": ROTATIONS}).items():
        if values[name] not in allowed:
            raise CourseError(
                f"{source / 'config.json'} has {name} = {values[name]!r}, and the engine computes "
                f"{' or '.join(map(repr, allowed))} only: use another checkpoint."
            )
