"""Computes, before an engine is built, the bytes of its weights and KV cache, and how many users fit into memory.

sizing = Sizing(GgufFile(checkpoint.path), read(engine_dir).pretrained_config)
sizing.weight_bytes(BuildConfig(quant_algo=None)), sizing.kv_bytes_per_token(BuildConfig())
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from inflight import checkpoint
from inflight.checkpoint.q4_1 import BLOCK
from inflight.engine.folder import EngineInfo
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError

# Bits that the engine stores for one weight, by the checkpoint's format; with 4 and 8 bits, the 32 weights of a block
# share a float16 scale, and in Q4_1 a smallest value in float16, else a zero point of as many bits as a weight.
STORED_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "F16": 16}
SCALE_BYTES = 2
KV_SCALE_BYTES = 8  # a float32 scale and a float32 zero point
KINDS = ("feed-forward", "embedding", "attention", "norms")


def kind(tensor: str) -> str:
    """Return what a tensor of a GGUF file is for; one of `KINDS`."""
    if "norm" in tensor:
        return "norms"
    if "attn" in tensor:
        return "attention"
    return "feed-forward" if "ffn" in tensor else "embedding"


class Sizing:
    """The arithmetic of one model's engines.

    Parameters
    ----------
    source : GgufFile
        The checkpoint.
    model : dict
        `pretrained_config` of any engine of this model.

    Raises
    ------
    CourseError
        The checkpoint has a format whose size in an engine is not known here.
    """

    def __init__(self, source: checkpoint.GgufFile, model: dict[str, Any]):
        self.model = model
        self._table, self._precision = source.tensor_table(), source.precision()
        unknown = {row["format"] for row in self._table if len(row["shape"]) > 1} - set(STORED_BITS)
        if unknown:
            raise CourseError(
                f"{source.path} has weights in the format {unknown.pop()}; sizes are known for "
                f"{', '.join(STORED_BITS)}. Build the engine and look at its size instead."
            )

    def weights_by_kind(self, config: BuildConfig) -> pd.DataFrame:
        """Return one row a kind of weight: `kind`, `tensors`, `parameters`, `bytes` in the engine."""
        rows = pd.DataFrame(self._table)
        rows["kind"] = rows["name"].map(kind)
        rows["bytes"] = self._bytes(config.quant_algo)
        grouped = rows.groupby("kind").agg(
            tensors=("name", "size"), parameters=("parameters", "sum"), bytes=("bytes", "sum")
        )
        return grouped.loc[[name for name in KINDS if name in grouped.index]].astype(int).reset_index()

    def weight_bytes(self, config: BuildConfig) -> int:
        return int(self.weights_by_kind(config)["bytes"].sum())

    def kv_bytes_per_token(self, config: BuildConfig) -> int:
        """Return the bytes of one token's keys and values, with the scales that an 8-bit cache needs."""
        plain = EngineInfo(Path(), "", self.model, config).kv_cache_bytes_per_token
        if config.kv_cache_quant_algo is None:
            return plain
        # A scale for each channel of a block of keys, and one for each token's values.
        keys = self.model["head_size"] * KV_SCALE_BYTES // config.tokens_per_block
        heads = self.model["num_hidden_layers"] * self.model["num_key_value_heads"]
        return plain + int(heads * (keys + KV_SCALE_BYTES))

    def kv_bytes_per_user(self, config: BuildConfig, tokens: int) -> int:
        """Return the bytes of KV cache of one user with `tokens` tokens, in whole blocks."""
        blocks = -(-tokens // config.tokens_per_block)
        return blocks * config.tokens_per_block * self.kv_bytes_per_token(config)

    def users(self, config: BuildConfig, tokens: int, memory_bytes: float) -> int:
        """Return how many users with `tokens` tokens each fit into `memory_bytes` beside the weights."""
        return max(0, int((memory_bytes - self.weight_bytes(config)) // self.kv_bytes_per_user(config, tokens)))

    def _bytes(self, quant_algo: str | None) -> list[int]:
        """Return the bytes of each tensor in the engine. Tensors with the same content are stored once."""
        precision = self._precision if quant_algo == "auto" else checkpoint.weights.bits(quant_algo)
        as_it_is = precision == self._precision
        sizes, constants = [], set()
        for row in self._table:
            if len(row["shape"]) == 1:
                sizes.append(row["parameters"] * (4 if precision else 2))
                continue
            stored = row["format"] if as_it_is else checkpoint.weights.stored_format(row["name"], quant_algo).name
            rows, columns = row["shape"]
            bits, blocks = STORED_BITS[stored], rows * columns // BLOCK
            size = rows * columns * bits // 8
            if stored == "Q4_1":
                size += blocks * 2 * SCALE_BYTES
            elif stored.startswith("Q"):
                zeros = -(-blocks * bits // 8)  # the middle step throughout
                size += blocks * SCALE_BYTES + (0 if (stored, zeros) in constants else zeros)
                constants.add((stored, zeros))
            sizes.append(size)
        return sizes
