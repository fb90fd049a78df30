"""Reads a GGUF file, and writes its weights again in the precision that a build asks for.

The compiler of engines for CPUs reads GGUF. A checkpoint whose precision is wanted as it is goes there unchanged; any
other is written again, tensor by tensor, with the formats of the gguf library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from inflight.checkpoint import q4_1
from inflight.errors import CourseError, reason


class Stored(NamedTuple):
    """What becomes of a matrix of a GGUF type in an engine of the precision "auto"."""

    bits: str | None  # "W4", "W8", or None for floating point
    is_read: bool  # the engine's compiler reads it as it is; else the matrix is written again in these bits


# GGUF's types of matrices, as far as an engine has a precision for them. A matrix of another type that the gguf library
# can dequantize is written again in the precision that is asked for. The compiler (OpenVINO GenAI 2026.4.1) reads Q4_K,
# too, but rounds the smallest value of each block to whole steps, as it does with Q4_1 (which alone is mended, in
# `engine/openvino/four_bits.py`). With values half-way between two steps, logits of a model with drawn weights were off
# by 1.1 of their standard deviation; by 0.07 when the weights were written again.
TYPES = {
    "F32": Stored(None, is_read=False),
    "F16": Stored(None, is_read=True),
    "BF16": Stored(None, is_read=False),
    "Q8_0": Stored("W8", is_read=True),
    "Q6_K": Stored("W8", is_read=True),
    "Q5_0": Stored("W8", is_read=False),
    "Q5_1": Stored("W8", is_read=False),
    "Q5_K": Stored("W8", is_read=False),
    "Q4_0": Stored("W4", is_read=True),
    "Q4_1": Stored("W4", is_read=True),
    "Q4_K": Stored("W4", is_read=False),
}
# Bits of the weights -> the GGUF type in which matrices are written again.
WRITTEN = {
    None: gguf.GGMLQuantizationType.F16,
    "W8": gguf.GGMLQuantizationType.Q8_0,
    "W4": gguf.GGMLQuantizationType.Q4_1,
}
VOCABULARY = ("token_embd.weight", "output.weight")
ROTARY_FACTORS = "rope_freqs.weight"  # what Llama 3.1 and later divide the frequencies of positions by


def stored_format(tensor: str, quant_algo: str | None) -> gguf.GGMLQuantizationType:
    """Return the GGUF format of a matrix. Embedding and output keep 8 bits: each word has only one row there."""
    if tensor in VOCABULARY and bits(quant_algo) == "W4":
        return gguf.GGMLQuantizationType.Q8_0
    return WRITTEN[bits(quant_algo)]


def bits(quant_algo: str | None) -> str | None:
    """Return the weights' half of a precision: "W4A8" -> "W4"; None for floating point."""
    return quant_algo[:2] if quant_algo else None


class GgufFile:
    """A GGUF file as the gguf library reads it, which takes some two seconds for the course's.

    Attributes
    ----------
    metadata : dict
        Every key with its value; arrays as lists.
    kinds : dict
        Every key with the type of its value and, of an array, that of its items, else None.
    tensors : dict
        gguf's tensors by name: `data` is what the file holds of one, with the rows of a matrix as rows, and `shape` has
        the dimensions in GGUF's order, columns first.

    Raises
    ------
    CourseError
        The library cannot read it.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise CourseError(f"There is no GGUF file at {path}. Give the path of one.")
        try:
            reader = gguf.GGUFReader(self.path)
            fields = [field for field in reader.fields.values() if not field.name.startswith("GGUF.")]
            self.metadata = {field.name: field.contents() for field in fields}
        except Exception as error:  # the library raises whatever it trips over
            raise CourseError(
                f"The GGUF file {path} cannot be read ({reason(error, first=True)}): download or copy it again."
            ) from error
        array = gguf.GGUFValueType.ARRAY
        self.kinds = {
            field.name: (field.types[0], field.types[-1] if field.types[0] == array else None) for field in fields
        }
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._refuse_unreadable()

    def _refuse_unreadable(self) -> None:
        for kind, tensor in {tensor.tensor_type: tensor for tensor in self.tensors.values()}.items():
            try:
                gguf.dequantize(tensor.data[:1], kind)
            except NotImplementedError:
                raise CourseError(
                    f"{self.path} has weights of the GGUF type {kind.name} ({tensor.name}), which cannot be read: give "
                    f"a file with types among {', '.join(TYPES)}."
                ) from None

    def sizes(self) -> dict[str, int]:
        """The model's sizes, by their names in an engine's config.json.

        Raises
        ------
        CourseError
            The metadata does not say them.
        """
        architecture = self.metadata.get("general.architecture")
        values = {key.removeprefix(f"{architecture}."): value for key, value in self.metadata.items()}
        try:
            heads, hidden = values["attention.head_count"], values["embedding_length"]
            return {
                "num_hidden_layers": values["block_count"],
                "num_attention_heads": heads,
                "num_key_value_heads": values.get("attention.head_count_kv", heads),
                "head_size": values.get("attention.key_length", hidden // heads),
                "hidden_size": hidden,
                "intermediate_size": values["feed_forward_length"],
                "vocab_size": values.get("vocab_size", len(values["tokenizer.ggml.tokens"])),
                "max_position_embeddings": values["context_length"],
            }
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise CourseError(
                f"The metadata of the GGUF file {self.path} does not say the model's size ({error}): download or copy "
                "it again."
            ) from None

    def rotary_factors(self) -> NDArray[Any] | None:
        """Return the divisors of the rotary frequencies, float32 [head_size / 2]; None: they are not divided."""
        tensor = self.tensors.get(ROTARY_FACTORS)
        return None if tensor is None else gguf.dequantize(tensor.data, tensor.tensor_type)

    def tensor_table(self) -> list[dict[str, Any]]:
        """Return one row a tensor: `name`, `shape` (numpy order), `format`, `parameters`, `bytes`."""
        return [
            {
                "name": tensor.name,
                "shape": tuple(map(int, tensor.shape[::-1])),
                "format": tensor.tensor_type.name,
                "parameters": int(tensor.n_elements),
                "bytes": int(tensor.n_bytes),
            }
            for tensor in self.tensors.values()
        ]

    def precision(self) -> str | None:
        """Return the precision of most of the weights: "W4", "W8", or None for floating point.

        Raises
        ------
        CourseError
            There is no such precision for the type of a matrix.
        """
        sizes: Counter[str | None] = Counter()
        for tensor in self._matrices():
            kind = tensor.tensor_type.name
            if kind not in TYPES:
                raise CourseError(
                    f"{self.path} has weights of the GGUF type {kind} ({tensor.name}), for which there is no precision "
                    "of an engine: say in which one they are to be written again (--quantization W8A16 or W4A8), or "
                    f"give a file with types among {', '.join(TYPES)}."
                )
            sizes[TYPES[kind].bits] += int(tensor.n_elements)
        return sizes.most_common(1)[0][0] if sizes else None

    def is_read_as(self, quant_algo: str | None) -> bool:
        """Say whether the engine's compiler reads every matrix as it is, and that is what is asked for."""
        kinds = {tensor.tensor_type.name for tensor in self._matrices()}
        return all(kind in TYPES and TYPES[kind].is_read for kind in kinds) and self.precision() == bits(quant_algo)

    def _matrices(self) -> list[gguf.ReaderTensor]:
        return [tensor for tensor in self.tensors.values() if len(tensor.shape) > 1]


def requantize(
    source: GgufFile,
    target: Path,
    quant_algo: str | None,
    four_bits: Callable[[NDArray[Any]], NDArray[Any]] = q4_1.quantize,
) -> None:
    """Write `source` again as `target`, its matrices in the format of `quant_algo`.

    `four_bits` makes Q4_1, uint8 [rows, columns / 32 × 20], of float32 [rows, columns].
    """
    writer = gguf.GGUFWriter(target, source.metadata["general.architecture"])
    try:
        for key, (kind, item_kind) in source.kinds.items():
            if key != "general.architecture":
                writer.add_key_value(key, source.metadata[key], kind, sub_type=item_kind)
        for tensor in source.tensors.values():
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            _add_tensor(writer, tensor.name, values, quant_algo, four_bits)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: NDArray[Any],
    quant_algo: str | None,
    four_bits: Callable[[NDArray[Any]], NDArray[Any]],
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
