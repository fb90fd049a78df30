"""The weights of an engine for PyTorch: their names and shapes, in 8 bits if wanted, from a file or at random.

The names are those of TensorRT-LLM's checkpoints. Query, key and value are one matrix, and so are a Llama's gate and
up projections: a product of one larger matrix is faster than those of several.
"""

from __future__ import annotations

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from inflight.engine.folder import TORCH_WEIGHTS_FILE, EngineInfo
from inflight.errors import CourseError

LLAMA, GPT2 = "LlamaForCausalLM", "GPTForCausalLM"
ARCHITECTURES = (LLAMA, GPT2)
SPREAD = 0.02  # standard deviation of random weights, as both models' authors began with
BYTE_SPREAD = 73.3  # that of whole numbers from -127 to 127, each as likely
FREQUENCIES = "rotary_frequencies"  # only there where they are not those of `rotary_base` alone


def shapes(model: dict) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model, by its `pretrained_config`. Matrices are [outputs, inputs]."""
    hidden, inner, words = model["hidden_size"], model["intermediate_size"], model["vocab_size"]
    queries = model["num_attention_heads"] * model["head_size"]
    keys = model["num_key_value_heads"] * model["head_size"]
    is_llama = model["architecture"] == LLAMA
    widening = "mlp.gate_up" if is_llama else "mlp.fc"
    matrices = {
        "attention.qkv": (queries + 2 * keys, hidden),
        "attention.dense": (hidden, queries),
        widening: (2 * inner if is_llama else inner, hidden),
        "mlp.proj": (hidden, inner),
    }
    found: dict[str, tuple[int, ...]] = {"transformer.vocab_embedding.weight": (words, hidden)}
    if not is_llama:
        found["transformer.position_embedding.weight"] = (model["max_position_embeddings"], hidden)
    norms = ["transformer.ln_f"]
    for layer in range(model["num_hidden_layers"]):
        prefix = f"transformer.layers.{layer}."
        norms += [prefix + "input_layernorm", prefix + "post_layernorm"]
        for name, shape in matrices.items():
            found[f"{prefix}{name}.weight"] = shape
            if not is_llama:
                found[f"{prefix}{name}.bias"] = shape[:1]
    for norm in norms:
        found[f"{norm}.weight"] = (hidden,)
        if not is_llama:
            found[f"{norm}.bias"] = (hidden,)
    if not model["share_embedding_table"]:
        found["lm_head.weight"] = (words, hidden)
    return found


def is_quantized(name: str, quant_algo: str | None) -> bool:
    """Whether a weight is kept in 8 bits: the matrices of the layers are.

    What turns words into vectors and back is not, for each word has but one row.
    """
    is_matrix = ".layers." in name and name.endswith(".weight") and "layernorm" not in name
    return quant_algo == "W8A16" and is_matrix


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix [outputs, inputs] in int8, and a float32 scale for each output."""
    weight = weight.float().contiguous()
    scale = weight.abs().amax(1).clamp(min=1e-12) / 127
    return (weight / scale[:, None]).round().to(torch.int8), scale


def load(info: EngineInfo, device: str) -> dict[str, torch.Tensor]:
    """The weights of an engine on a device, by name.

    Raises
    ------
    CourseError
        They are not those of the model in its config.json.
    """
    model = info.pretrained_config
    if "seed" in model:
        return at_random(info, device)
    try:
        weights = load_file(info.folder / TORCH_WEIGHTS_FILE, device)
    except (SafetensorError, OSError) as error:
        raise CourseError(
            f"The weights of the engine in {info.folder} cannot be read ({error}). Build it again: `inflight build`."
        ) from error
    for name, shape in shapes(model).items():
        found = tuple(weights[name].shape) if name in weights else None
        if found != shape:
            raise CourseError(
                f"The weights of the engine in {info.folder} are not those of its config.json: {name} is {found} "
                f"instead of {shape}. Build it again: `inflight build`."
            )
    return weights


def at_random(info: EngineInfo, device: str) -> dict[str, torch.Tensor]:
    """Weights of the right sizes, made on the device from the engine's seed; norms leave what they get as it is."""
    model = info.pretrained_config
    dtype, quant_algo = getattr(torch, info.build_config.dtype), model["quantization"]["quant_algo"]
    random = torch.Generator(device).manual_seed(model["seed"])
    weights = {}
    for name, shape in shapes(model).items():
        if len(shape) == 1:
            make = torch.zeros if name.endswith("bias") else torch.ones
            weights[name] = make(shape, dtype=dtype, device=device)
        elif is_quantized(name, quant_algo):
            weights[name] = torch.randint(-127, 128, shape, dtype=torch.int8, device=device, generator=random)
            weights[name.replace(".weight", ".scale")] = torch.full(shape[:1], SPREAD / BYTE_SPREAD, device=device)
        else:
            weights[name] = torch.empty(shape, dtype=dtype, device=device).normal_(0, SPREAD, generator=random)
    return weights
