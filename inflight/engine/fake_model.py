"""A model without weights that reads and writes its KV cache as a real one does.

Its next token is a function of all tokens in the blocks that it is given. So a scheduler or a block
manager that mixes up, loses or shares a block wrongly changes the answer, in microseconds and without a checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.engine.block_format import BlockFormat
from inflight.engine.folder import EngineInfo
from inflight.engine.messages import Chunk
from inflight.engine.settings import BuildConfig

EMPTY = -1


class FakeModel:
    """See `inflight.engine.model.Model`.

    Parameters
    ----------
    build_config : BuildConfig
    vocab_size : int
    """

    def __init__(self, build_config: BuildConfig, vocab_size: int = 1024):
        pretrained = {"vocab_size": vocab_size, "quantization": {"quant_algo": None}}
        self.info = EngineInfo(Path(), "fake", pretrained, build_config)
        self._format = BlockFormat(self.info)
        self.block_bytes = build_config.tokens_per_block * 8
        self._cache = np.empty((0, build_config.tokens_per_block), np.int64)

    def allocate_kv_cache(self, num_blocks: int, tokens_of_answer: int = 1) -> None:
        self._cache = np.full((num_blocks, self.info.build_config.tokens_per_block), EMPTY, np.int64)

    def forward(self, chunks: list[Chunk]) -> NDArray[Any]:
        """Return logits, float32 [sum of num_logits, vocab_size], one-hot at `next_token` of a sequence's blocks."""
        vocab_size, width = self.info.pretrained_config["vocab_size"], self._cache.shape[1]
        for chunk in chunks:
            for position, token in enumerate(chunk.token_ids, chunk.num_past):
                self._cache[chunk.blocks[position // width], position % width] = token
        rows = []
        for chunk in chunks:
            held, length = self._cache[chunk.blocks].reshape(-1).tolist(), chunk.num_past + len(chunk.token_ids)
            for end in range(length - chunk.num_logits + 1, length + 1):
                rows.append(next_token(held[:end], vocab_size))
        logits = np.zeros((len(rows), vocab_size), np.float32)
        logits[np.arange(len(rows)), rows] = 1.0
        return logits

    def read_blocks(self, blocks: list[int]) -> bytes:
        return self._format.sealed([self._cache[blocks]])

    def write_blocks(self, blocks: list[int], data: bytes) -> None:
        content = self._format.opened(data, len(blocks) * self.block_bytes)
        self._cache[blocks] = np.frombuffer(content, np.int64).reshape(len(blocks), -1)


def next_token(tokens: list[int], vocab_size: int) -> int:
    """Return the answer to `tokens`: a polynomial of all of them, so that each and its place matters."""
    value = 17
    for token in tokens:
        value = (value * 31 + token + 2) % 1_000_003
    return value % vocab_size
