"""Weights of a checkpoint as one GGUF file in the precision that a build asks for.

The engine's compiler reads GGUF. A GGUF checkpoint whose precision is wanted as it is goes there unchanged; any other
is written again, tensor by tensor, with the formats of the gguf library. A Hugging Face folder takes the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
from safetensors import safe_open

from inflight import schemas
from inflight.checkpoint import q4_1, rotary
from inflight.checkpoint.gguf_index import read_index
from inflight.checkpoint.safetensors_header import tensor_shapes
from inflight.checkpoint.shapes import GgufShape, LlamaConfig, ModelConfig, read_llama, shape_problem
from inflight.checkpoint.tokenizer_files import MOST_TOKENIZER_BYTES, Vocabulary
from inflight.errors import CourseError

# TensorRT-LLM's name of a precision -> the GGUF format of the matrices. `None` keeps them as floating point.
GGUF_FORMATS = {
    None: gguf.GGMLQuantizationType.F16,
    "W8A16": gguf.GGMLQuantizationType.Q8_0,
    "W4A8": gguf.GGMLQuantizationType.Q4_1,
    "W4A16": gguf.GGMLQuantizationType.Q4_1,
}


VOCABULARY = ("token_embd.weight", "output.weight")


def stored_format(tensor: str, quant_algo: str | None) -> gguf.GGMLQuantizationType:
    """The GGUF format of a matrix. What turns tokens into vectors and back keeps 8 bits: each word has but one row."""
    if tensor in VOCABULARY and bits(quant_algo) == "W4":
        return gguf.GGMLQuantizationType.Q8_0
    return GGUF_FORMATS[quant_algo]


def bits(quant_algo: str | None) -> str | None:
    """The weights' half of a precision: "W4A8" -> "W4"; None for floating point."""
    return quant_algo[:2] if quant_algo else None


class GgufFile:
    """A GGUF file, its index read once.

    Attributes
    ----------
    metadata : dict
        Every key with its value; arrays as lists.
    index : Index
        The same with the types, and where the tensors lie.

    Raises
    ------
    CourseError
        It is no GGUF file, cannot be read, or does not hold what it claims.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.index = read_index(path)
        self.metadata = self.index.metadata

    @cached_property
    def reader(self) -> gguf.GGUFReader:
        """The gguf library's view of the file, with the values of the tensors; made in about two seconds."""
        return gguf.GGUFReader(self.path)

    def shape(self) -> GgufShape:
        """The model's size.

        Raises
        ------
        CourseError
            The metadata does not say it, or the tensors are of another.
        """
        prefix = f"{self.metadata.get('general.architecture')}."
        values = {key.removeprefix(prefix): value for key, value in self.metadata.items()}
        fix = "Download or copy it again."
        shape = schemas.check(GgufShape, values, f"The metadata of the GGUF file {self.path}", fix)
        wanted = shape.tensors()
        if shape.architecture != "llama":  # others may lack some, and have more
            wanted = {row.name: wanted[row.name] for row in self.index.tensors if row.name in wanted}
        if problem := shape_problem(wanted, ((tensor.name, tensor.shape) for tensor in self.index.tensors)):
            raise CourseError(f"The GGUF file {self.path} does not hold the model that it claims: {problem}. {fix}")
        return shape

    def rotary_factors(self) -> np.ndarray | None:
        """What each frequency of the rotation of positions is divided by, float32 [head_size / 2]; None: by nothing.

        Raises
        ------
        CourseError
            There are not as many as the model's heads need, or one is not above 0.
        """
        found = [tensor.shape for tensor in self.index.tensors if tensor.name == rotary.FACTORS]
        if not found:
            return None
        wanted = (self.shape().head_size // 2,)
        if found != [wanted]:
            raise CourseError(
                f"The GGUF file {self.path} does not hold the model that it claims: its tensor {rotary.FACTORS} has "
                f"the shape {found[0]} instead of {wanted}. Download or copy it again."
            )
        [tensor] = [tensor for tensor in self.reader.tensors if tensor.name == rotary.FACTORS]
        factors = gguf.dequantize(tensor.data, tensor.tensor_type)
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise CourseError(
                f"The GGUF file {self.path} divides frequencies of positions by {factors.min()}: its tensor "
                f"{rotary.FACTORS} is damaged. Download or copy it again."
            )
        return factors

    def tensor_table(self) -> list[dict]:
        """One row a tensor: `name`, `shape` (numpy order), `format`, `parameters`, `bytes`."""
        return [
            {
                "name": tensor.name,
                "shape": tensor.shape,
                "format": tensor.kind.name,
                "parameters": tensor.parameters,
                "bytes": tensor.size,
            }
            for tensor in self.index.tensors
        ]

    def precision(self) -> str | None:
        """Precision of most of the weights: "W4", "W8", or None for floating point."""
        sizes: Counter[str] = Counter()
        for row in self.tensor_table():
            name = row["format"]
            sizes[f"W{name[1]}" if name.startswith("Q") else ""] += row["parameters"]
        return (sizes.most_common(1)[0][0] if sizes else "") or None


def requantize(
    source: GgufFile,
    target: Path,
    quant_algo: str | None,
    four_bits: Callable[[np.ndarray], np.ndarray] = q4_1.quantize,
) -> None:
    """Write `source` again as `target`, its matrices in the format of `quant_algo`.

    `four_bits` makes Q4_1, uint8 [rows, columns / 32 × 20], of float32 [rows, columns].
    """
    writer = gguf.GGUFWriter(target, source.metadata["general.architecture"])
    for key, (kind, item_kind) in source.index.kinds.items():
        if key != "general.architecture":
            writer.add_key_value(key, source.metadata[key], kind, sub_type=item_kind)
    for tensor in source.reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        _add_tensor(writer, tensor.name, values, quant_algo, four_bits)
    _finish(writer)


def from_huggingface(folder: Path, target: Path, quant_algo: str | None) -> None:
    """Write a Llama model of a Hugging Face folder (safetensors) as a GGUF file.

    Raises
    ------
    CourseError
        The model is not a Llama, has something that no engine here computes, or its weights are incomplete.
    """
    fix = "Save or download the folder again."
    model_type = schemas.read(ModelConfig, folder / "config.json", "model's config", fix).model_type
    if model_type != "llama":
        raise CourseError(
            f"{folder} holds a {model_type!r} model; on this machine the course builds engines from "
            "Llama models. Use a Llama-family checkpoint, or a GGUF file of this one."
        )
    config = read_llama(folder / "config.json", fix)
    vocabulary = schemas.read(Vocabulary, folder / "tokenizer.json", "tokenizer", fix, MOST_TOKENIZER_BYTES)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    files = sorted(folder.glob("*.safetensors"))
    _check_shapes(folder, files, config, names)
    heads, kv_heads = config.num_attention_heads, config.kv_heads
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(config.rope_base)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_vocab_size(config.vocab_size)
    if config.head_size != config.hidden_size // heads:
        writer.add_key_length(config.head_size)
        writer.add_value_length(config.head_size)
    _add_vocabulary(writer, vocabulary, config)
    slowed_by = rotary.factors(config.rotation, config.head_size, config.rope_base)
    if slowed_by is not None:
        writer.add_tensor(rotary.FACTORS, slowed_by)
    for file in files:
        with safe_open(file, framework="pt") as tensors:  # numpy has no bfloat16
            for name in tensors.keys():  # noqa: SIM118  no dict, and not iterable
                gguf_name = _gguf_name(names, name, config)
                if gguf_name is None:
                    continue
                values = tensors.get_tensor(name).float().numpy()
                if name.endswith(("q_proj.weight", "k_proj.weight")):
                    values = _interleave_rotary(values, heads if "q_proj" in name else kv_heads)
                _add_tensor(writer, gguf_name, values, quant_algo)
    _finish(writer)


def _gguf_name(names: gguf.TensorNameMap, name: str, config: LlamaConfig) -> str | None:
    """GGUF's name of a tensor of a Hugging Face folder; None when the model is whole without it."""
    if name == "lm_head.weight" and config.tie_word_embeddings:
        return None
    return names.get_name(name, try_suffixes=(".weight",))


def _check_shapes(folder: Path, files: list[Path], config: LlamaConfig, names: gguf.TensorNameMap) -> None:
    """CourseError when the weights are not those of the model in config.json; only their headers are read."""
    found = [
        (gguf_name, shape)
        for file in files
        for name, shape in tensor_shapes(file)
        if (gguf_name := _gguf_name(names, name, config)) is not None
    ]
    wanted = GgufShape.model_construct(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        heads=config.num_attention_heads,
        stated_kv_heads=config.kv_heads,
        stated_head_size=config.head_size,
        stated_words=config.vocab_size,
    ).tensors()
    if not config.tie_word_embeddings:
        wanted["output.weight"] = (config.vocab_size, config.hidden_size)
    problem = shape_problem(wanted, found)
    if problem is None and len(found) > len(dict(found)):
        problem = "a tensor is there twice"
    if problem:
        raise CourseError(
            f"The weights in {folder} are not those of the model in its config.json: {problem}. "
            "Save or download the folder again."
        )


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: Vocabulary, config: LlamaConfig) -> None:
    """The vocabulary, which the compiler wants to see; at run time the engine uses the folder's tokenizer.json."""
    by_id = {index: token for token, index in tokenizer.model.ids().items()}
    by_id |= {token.id: token.content for token in tokenizer.added_tokens}
    special = {token.id for token in tokenizer.added_tokens if token.special}
    ids = range(config.vocab_size)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer.model.merges or []]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id.get(index, f"[unused{index}]") for index in ids])
    writer.add_token_types([gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL for index in ids])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config.end_id)
    writer.add_bos_token_id(config.bos_token_id or 0)


def _interleave_rotary(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows [heads × head_size, hidden] from Hugging Face's rotary halves to GGUF's neighbouring pairs."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: np.ndarray,
    quant_algo: str | None,
    four_bits: Callable[[np.ndarray], np.ndarray] = q4_1.quantize,
) -> None:
    kind = stored_format(name, quant_algo)
    if values.ndim == 1:  # norms and biases are small and sensitive: they stay in float32
        writer.add_tensor(name, values.astype(np.float32))
    elif kind == gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind == gguf.GGMLQuantizationType.Q4_1:
        writer.add_tensor(name, four_bits(values.astype(np.float32)), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def _finish(writer: gguf.GGUFWriter) -> None:
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
