"""Weights of a checkpoint as one GGUF file in the precision that a build asks for.

The engine's compiler reads GGUF. A GGUF checkpoint whose precision is wanted as it is goes there unchanged; any other
is written again, tensor by tensor, with the formats of the gguf library. A Hugging Face folder takes the same way.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

from inflight.errors import CourseError

# TensorRT-LLM's name of a precision -> the GGUF format of the matrices. `None` keeps them as floating point. There is
# no W8A8: with 8-bit weights this runtime's 8-bit activations spoil the text (seen with SmolLM2 and OpenVINO 2026.4).
GGUF_FORMATS = {
    None: gguf.GGMLQuantizationType.F16,
    "W8A16": gguf.GGMLQuantizationType.Q8_0,
    "W4A8": gguf.GGMLQuantizationType.Q4_1,
    "W4A16": gguf.GGMLQuantizationType.Q4_1,
}


def bits(quant_algo: str | None) -> str | None:
    """The weights' half of a precision: "W4A8" -> "W4"; None for floating point."""
    return quant_algo[:2] if quant_algo else None


def architecture(path: Path) -> object:
    """What a GGUF file says of its architecture, a string if it is in order; its tensors are not read.

    A damaged file raises whatever gguf trips over: it checks nothing.
    """
    return gguf.GGUFReader(path).get_field("general.architecture").contents()


class GgufFile:
    """A GGUF file, its index read once (about two seconds for a vocabulary of 49,152).

    Attributes
    ----------
    metadata : dict
        Every key with its value; arrays as lists.
    """

    def __init__(self, path: Path):
        self.path = path
        self.reader = gguf.GGUFReader(path)
        self.metadata = {key: field.contents() for key, field in self.reader.fields.items()}

    def tensor_table(self) -> list[dict]:
        """One row a tensor: `name`, `shape` (numpy order), `format`, `parameters`, `bytes`."""
        return [
            {
                "name": t.name,
                "shape": tuple(int(n) for n in reversed(t.shape)),
                "format": t.tensor_type.name,
                "parameters": int(t.n_elements),
                "bytes": int(t.n_bytes),
            }
            for t in self.reader.tensors
        ]

    def precision(self) -> str | None:
        """Precision of most of the weights: "W4", "W8", or None for floating point."""
        sizes: Counter[str] = Counter()
        for row in self.tensor_table():
            sizes[row["format"]] += row["parameters"]
        name = sizes.most_common(1)[0][0]
        return f"W{name[1]}" if name.startswith("Q") else None


def requantize(source: GgufFile, target: Path, quant_algo: str | None) -> None:
    """Write `source` again as `target`, its matrices in the format of `quant_algo`."""
    writer = gguf.GGUFWriter(target, source.metadata["general.architecture"])
    for field in source.reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        item_kind = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, source.metadata[field.name], kind, sub_type=item_kind)
    for tensor in source.reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        _add_tensor(writer, tensor.name, values, GGUF_FORMATS[quant_algo])
    _finish(writer)


def from_huggingface(folder: Path, target: Path, quant_algo: str | None) -> None:
    """Write a Llama model of a Hugging Face folder (safetensors) as a GGUF file.

    Raises
    ------
    CourseError
        The model is not a Llama, or its weights are incomplete.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("model_type") != "llama":
        raise CourseError(
            f"{folder} holds a {config.get('model_type')!r} model; on this machine the course builds engines from "
            "Llama models. Use a Llama-family checkpoint, or a GGUF file of this one."
        )
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    rope = config.get("rope_parameters") or {}
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base(config.get("rope_theta") or rope.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config["vocab_size"])
    _add_vocabulary(writer, json.loads((folder / "tokenizer.json").read_text(encoding="utf-8")), config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, layers)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:  # numpy has no bfloat16
            for name in tensors.keys():  # noqa: SIM118  no dict, and not iterable
                gguf_name = names.get_name(name, try_suffixes=(".weight",))
                if gguf_name is None or (name == "lm_head.weight" and config.get("tie_word_embeddings")):
                    continue
                values = tensors.get_tensor(name).float().numpy()
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    values = _interleave_rotary(values, heads if "q_proj" in name else kv_heads)
                _add_tensor(writer, gguf_name, values, GGUF_FORMATS[quant_algo])
    _finish(writer)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict, config: dict) -> None:
    """The vocabulary, which the compiler wants to see; at run time the engine uses the folder's tokenizer.json."""
    tokens = dict(tokenizer["model"]["vocab"]) | {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    by_id = {index: token for token, index in tokens.items()}
    special = {token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    ids = range(config["vocab_size"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"].get("merges", [])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id.get(index, f"[unused{index}]") for index in ids])
    writer.add_token_types([gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in ids])
    writer.add_token_merges(merges)
    end_id = config.get("eos_token_id", 0)
    writer.add_eos_token_id(end_id[0] if isinstance(end_id, list) else end_id)
    writer.add_bos_token_id(config.get("bos_token_id") or 0)


def _interleave_rotary(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows [heads × head_size, hidden] from Hugging Face's rotary halves to GGUF's neighbouring pairs."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> None:
    if values.ndim == 1:  # norms and biases are small and sensitive: they stay in float32
        writer.add_tensor(name, values.astype(np.float32))
    elif kind == gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    else:
        writer.add_tensor(name, gguf.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def _finish(writer: gguf.GGUFWriter) -> None:
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
