"""Computes one iteration of the model: tokens of several sequences in, rows of logits out.

    model = OpenVINOModel(read("engine"))
    model.allocate_kv_cache(num_blocks=256)
    logits = model.forward([Chunk(token_ids=[1, 2, 3], num_past=0, blocks=[0])])     # [1, vocab_size] float32

No padding anywhere: the new tokens of all sequences lie in one row, prompts and single tokens side by side, and the
attention kernel finds each sequence's past through its list of cache blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from inflight.engine.block_format import BlockFormat
from inflight.engine.folder import EngineInfo, cannot_be_loaded
from inflight.engine.messages import Chunk
from inflight.engine.model import rows_with_logits
from inflight.engine.openvino import steps
from inflight.errors import reason


class OpenVINOModel:
    """An engine, loaded, with its KV cache, whose blocks hold scales too; see `inflight.engine.model.Model`.

    Raises
    ------
    CourseError
        The graph in the folder cannot be read or compiled.
    """

    def __init__(self, info: EngineInfo):
        self.info = info
        try:
            graph = steps.read(info.folder)
            steps.with_pages(graph)
            steps.keep_last_tokens(graph)
            self.program = steps.compiled(graph, info.build_config, info.quant_algo)
        except RuntimeError as error:
            raise cannot_be_loaded(info, reason(error)) from error
        self._request = self.program.create_infer_request()
        self._cache_shapes = steps.cache_shapes(self.program)
        self.block_bytes = steps.block_bytes(self.program)
        self._format = BlockFormat(info)

    def allocate_kv_cache(self, num_blocks: int, tokens_of_answer: int = 1) -> None:
        """Give the model a cache of `num_blocks` blocks; memory is taken as blocks are first written."""
        self._caches = []
        for name, (kind, shape) in self._cache_shapes.items():
            tensor = ov.Tensor(kind, ov.Shape([num_blocks, *shape]))
            self._request.set_tensor(name, tensor)
            self._caches.append(tensor.data)

    def forward(self, chunks: list[Chunk]) -> NDArray[Any]:
        """Run one iteration; see `Model.forward`."""
        lengths = np.array([len(chunk.token_ids) for chunk in chunks])
        past = np.array([chunk.num_past for chunk in chunks], np.int32)
        begins = np.concatenate([[0], np.cumsum(lengths)])
        tokens_per_block = self.info.build_config.tokens_per_block
        used_blocks = [chunk.blocks[: -(-(p + n) // tokens_per_block)] for chunk, p, n in zip(chunks, past, lengths)]
        inputs = {
            "input_ids": np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int64),
            "position_ids": np.concatenate([np.arange(p, p + n) for p, n in zip(past, lengths)]).astype(np.int64),
            "past_lens": past,
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.concatenate(used_blocks).astype(np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, used_blocks)]).astype(np.int32),
            "max_context_len": np.array((past + lengths).max(), np.int32),
            "last_tokens": rows_with_logits(chunks, begins[1:]),
        }
        for name, value in inputs.items():
            self._request.set_tensor(name, ov.Tensor(value))
        self._request.infer()
        logits: NDArray[Any] = self._request.get_tensor("logits").data
        return logits[:, 0, :]

    def read_blocks(self, blocks: list[int]) -> bytes:
        """Return what is in blocks; see `Model.read_blocks`."""
        return self._format.sealed(cache[blocks] for cache in self._caches)

    def write_blocks(self, blocks: list[int], data: bytes) -> None:
        """Fill blocks; see `Model.write_blocks`."""
        content = self._format.opened(data, len(blocks) * self.block_bytes)
        for cache in self._caches:
            shape = len(blocks), *cache.shape[1:]
            num_bytes = int(np.prod(shape)) * cache.itemsize
            cache[blocks] = np.frombuffer(content[:num_bytes], cache.dtype).reshape(shape)
            content = content[num_bytes:]
