"""Checkpoint in, engine for PyTorch out: weights in the precision of the build, tokenizer, and what config.json says.

A checkpoint is a GGUF file of a Llama, a Hugging Face folder of a Llama or a GPT-2, or an architecture alone, whose
weights are random and made when the engine is loaded. Whatever it calls its tensors and however it lays them out, the
engine has them as `weights` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import gguf
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from inflight import schemas
from inflight.checkpoint import folder_files, meaningless, rotary, tokenizer
from inflight.checkpoint.shapes import Gpt2Config, LlamaConfig, ModelConfig, read_llama, refuse_unless
from inflight.checkpoint.sources import Checkpoint
from inflight.checkpoint.weights import GgufFile
from inflight.engine.config import BuildConfig
from inflight.engine.folder import TORCH_WEIGHTS_FILE
from inflight.engine.torch import weights as torch_weights
from inflight.engine.torch.weights import FREQUENCIES, GPT2, LLAMA
from inflight.errors import CourseError

Get = Callable[[str], torch.Tensor]  # a tensor of a checkpoint by its name there
FIX = "Save or download the folder again."
HF_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layer": "model.layers.{}.",
    "before_attention": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "attention": "self_attn.o_proj.weight",
    "before_mlp": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
GGUF_LLAMA = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "layer": "blk.{}.",
    "before_attention": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "attention": "attn_output.weight",
    "before_mlp": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
}


def write_engine(checkpoint: Checkpoint, config: BuildConfig, folder: Path) -> dict:
    """Write weights and tokenizer of an engine into `folder`; return its `pretrained_config`.

    Raises
    ------
    CourseError
        The model is no Llama or GPT-2, or one with options that the runner does not compute.
    """
    write = {"gguf": _from_gguf, "hf": _from_huggingface, "random": _from_nothing}[checkpoint.format]
    model, quant_algo = write(checkpoint, config, folder)
    if model["architecture"] == GPT2 and config.max_seq_len > model["max_position_embeddings"]:
        raise CourseError(
            f"max_seq_len is {config.max_seq_len}, and {checkpoint.name} has learned "
            f"{model['max_position_embeddings']} positions: build it with a max_seq_len of at most that."
        )
    return {
        "architecture": model["architecture"],
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.sha256},
        "num_parameters": sum(math.prod(shape) for shape in torch_weights.shapes(model).values()),
        "dtype": config.dtype,
        **model,
        "quantization": {"quant_algo": quant_algo, "kv_cache_quant_algo": None},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    }


# Where the weights come from ------------------------------------------------------------------------------------------


def _from_gguf(checkpoint: Checkpoint, config: BuildConfig, folder: Path) -> tuple[dict, str | None]:
    source = GgufFile(checkpoint.path)
    shape = source.shape()
    if shape.architecture != "llama":
        raise _not_computed(checkpoint.path, shape.architecture)
    if shape.rotated not in (None, shape.head_size):
        raise CourseError(
            f"{checkpoint.path} rotates {shape.rotated} of the {shape.head_size} numbers of a head, and the course "
            "computes models that rotate all: use another checkpoint."
        )
    tensors = {tensor.name: tensor for tensor in source.reader.tensors}

    def get(name: str) -> torch.Tensor:
        values = torch.tensor(gguf.dequantize(tensors[name].data, tensors[name].tensor_type))
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            return _halves(values, shape.heads if "attn_q" in name else shape.kv_heads)
        return values

    model = {
        "architecture": LLAMA,
        **shape.sizes(),
        "norm_epsilon": 1e-5 if shape.epsilon is None else shape.epsilon,
        "rotary_base": shape.rope_base or 10000.0,
        "share_embedding_table": "output.weight" not in tensors,
    }
    weights = _llama(get, GGUF_LLAMA, model)
    if rotary.FACTORS in tensors:
        weights[FREQUENCIES] = _frequencies(model) / get(rotary.FACTORS)
    stored = {"W8": "W8A16"}.get(source.precision() or "")
    quant_algo = stored if config.quant_algo == "auto" else config.quant_algo
    _save(weights, model, config.dtype, quant_algo, folder)
    tokenizer.write_files(checkpoint, source.metadata, folder)
    return model, quant_algo


def _from_huggingface(checkpoint: Checkpoint, config: BuildConfig, folder: Path) -> tuple[dict, str | None]:
    files = [file for file in folder_files.checked(checkpoint.path) if file.suffix == ".safetensors"]
    read, model = described(checkpoint.path / "config.json")
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
        file_of = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  no dict

        def get(name: str) -> torch.Tensor:
            if name not in file_of:
                raise CourseError(f"The weights in {checkpoint.path} have no tensor {name}. {FIX}")
            return file_of[name].get_tensor(name)

        if isinstance(read, LlamaConfig):
            weights = _llama(get, HF_LLAMA, model)
            slowed_by = rotary.factors(read.rotation, read.head_size, read.rope_base)
            if slowed_by is not None:
                weights[FREQUENCIES] = _frequencies(model) / torch.from_numpy(slowed_by)
        else:
            prefix = "transformer." if any(name.startswith("transformer.") for name in file_of) else ""
            weights = _gpt2(lambda name: get(prefix + name), model)
        quant_algo = None if config.quant_algo == "auto" else config.quant_algo
        _save(weights, model, config.dtype, quant_algo, folder)
    tokenizer.write_files(checkpoint, {}, folder)
    return model, quant_algo


def _from_nothing(checkpoint: Checkpoint, config: BuildConfig, folder: Path) -> tuple[dict, str | None]:
    _, model = described(checkpoint.path)
    meaningless.write_tokenizer(model["vocab_size"], folder)
    return {**model, "seed": 0}, None if config.quant_algo == "auto" else config.quant_algo


def described(config_file: Path) -> tuple[LlamaConfig | Gpt2Config, dict]:
    """What a Hugging Face `config.json` says, as it is and under TensorRT-LLM's names.

    Raises
    ------
    CourseError
        It is of another architecture, or has an option that the runner does not compute.
    """
    model_type = schemas.read(ModelConfig, config_file, "model's config", FIX).model_type
    if model_type == "llama":
        llama = read_llama(config_file, FIX)
        return llama, {
            "architecture": LLAMA,
            "num_hidden_layers": llama.num_hidden_layers,
            "num_attention_heads": llama.num_attention_heads,
            "num_key_value_heads": llama.kv_heads,
            "head_size": llama.head_size,
            "hidden_size": llama.hidden_size,
            "intermediate_size": llama.intermediate_size,
            "vocab_size": llama.vocab_size,
            "max_position_embeddings": llama.max_position_embeddings,
            "norm_epsilon": llama.rms_norm_eps,
            "rotary_base": llama.rope_base,
            "share_embedding_table": bool(llama.tie_word_embeddings),
        }
    if model_type == "gpt2":
        gpt2 = schemas.read(Gpt2Config, config_file, "model's config", FIX)
        refuse_unless(config_file, "activation_function", gpt2.activation_function, ("gelu_new", "gelu_pytorch_tanh"))
        refuse_unless(config_file, "scale_attn_weights", gpt2.scale_attn_weights, (True,))
        refuse_unless(config_file, "scale_attn_by_inverse_layer_idx", gpt2.scale_attn_by_inverse_layer_idx, (False,))
        refuse_unless(config_file, "add_cross_attention", gpt2.add_cross_attention, (False,))
        return gpt2, {
            "architecture": GPT2,
            "num_hidden_layers": gpt2.n_layer,
            "num_attention_heads": gpt2.n_head,
            "num_key_value_heads": gpt2.n_head,
            "head_size": gpt2.n_embd // gpt2.n_head,
            "hidden_size": gpt2.n_embd,
            "intermediate_size": gpt2.feed_forward,
            "vocab_size": gpt2.vocab_size,
            "max_position_embeddings": gpt2.n_positions,
            "norm_epsilon": gpt2.layer_norm_epsilon,
            "share_embedding_table": True,
        }
    raise _not_computed(config_file.parent, model_type)


def _not_computed(path: Path, architecture: str | None) -> CourseError:
    return CourseError(
        f"{path} holds a {architecture!r} model; the course computes Llama and GPT-2 models on a GPU. Use a checkpoint "
        "of one of these."
    )


# How the weights are laid out -----------------------------------------------------------------------------------------


def _llama(get: Get, names: dict[str, str], model: dict) -> dict[str, torch.Tensor]:
    weights = {
        "transformer.vocab_embedding.weight": get(names["embedding"]),
        "transformer.ln_f.weight": get(names["norm"]),
    }
    if not model["share_embedding_table"]:
        weights["lm_head.weight"] = get(names["head"])
    for layer in range(model["num_hidden_layers"]):
        there, here = names["layer"].format(layer), f"transformer.layers.{layer}."
        query, key, value, gate, up = (get(there + names[part]) for part in ("query", "key", "value", "gate", "up"))
        weights |= {
            here + "input_layernorm.weight": get(there + names["before_attention"]),
            here + "attention.qkv.weight": torch.cat([query, key, value]),
            here + "attention.dense.weight": get(there + names["attention"]),
            here + "post_layernorm.weight": get(there + names["before_mlp"]),
            here + "mlp.gate_up.weight": torch.cat([gate, up]),
            here + "mlp.proj.weight": get(there + names["down"]),
        }
    return weights


def _gpt2(get: Get, model: dict) -> dict[str, torch.Tensor]:
    weights = {
        "transformer.vocab_embedding.weight": get("wte.weight"),
        "transformer.position_embedding.weight": get("wpe.weight"),
        "transformer.ln_f.weight": get("ln_f.weight"),
        "transformer.ln_f.bias": get("ln_f.bias"),
    }
    parts = {
        "input_layernorm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.dense": "attn.c_proj",
        "post_layernorm": "ln_2",
        "mlp.fc": "mlp.c_fc",
        "mlp.proj": "mlp.c_proj",
    }
    for layer in range(model["num_hidden_layers"]):
        for here, there in parts.items():
            weight = get(f"h.{layer}.{there}.weight")  # a matrix is [inputs, outputs] there
            weights[f"transformer.layers.{layer}.{here}.weight"] = weight.t() if weight.dim() == 2 else weight
            weights[f"transformer.layers.{layer}.{here}.bias"] = get(f"h.{layer}.{there}.bias")
    return weights


def _halves(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows [heads × head_size, hidden] from GGUF's neighbouring rotary pairs to Hugging Face's halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _frequencies(model: dict) -> torch.Tensor:
    return torch.from_numpy(rotary.frequencies(model["head_size"], model["rotary_base"]))


def _save(weights: dict[str, torch.Tensor], model: dict, dtype: str, quant_algo: str | None, folder: Path) -> None:
    """Write the weights in the engine's precision; CourseError when they are not those of the model."""
    for name, shape in torch_weights.shapes(model).items():
        if tuple(weights[name].shape) != shape:
            raise CourseError(
                f"The weights are not those of the model in its config: {name} has the shape "
                f"{tuple(weights[name].shape)} instead of {shape}. {FIX}"
            )
    stored = {}
    for name, weight in weights.items():
        if torch_weights.is_quantized(name, quant_algo):
            stored[name], stored[name.replace(".weight", ".scale")] = torch_weights.quantized(weight)
        elif name == FREQUENCIES:
            stored[name] = weight.float()
        else:
            stored[name] = weight.to(getattr(torch, dtype)).contiguous()
    save_file(stored, folder / TORCH_WEIGHTS_FILE)
