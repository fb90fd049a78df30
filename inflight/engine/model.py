"""The interface between executor and model, and `load`, which picks the class that runs an engine."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from inflight.engine.folder import EngineInfo, read
from inflight.engine.messages import Chunk
from inflight.errors import CourseError

# The first word of an engine's version -> the class that runs it. By name: a runner brings its
# libraries along, and only the one that is needed is imported.
RUNNERS = {
    "openvino": "inflight.engine.openvino.runner:OpenVINOModel",
    "torch": "inflight.engine.torch.runner:TorchModel",
}


class Model(Protocol):
    """An engine, loaded: what an executor uses of it.

    Attributes
    ----------
    info : EngineInfo
    block_bytes : int
        Bytes of one KV cache block: keys and values of `tokens_per_block` tokens in every layer.
    """

    info: EngineInfo
    block_bytes: int

    def allocate_kv_cache(self, num_blocks: int, tokens_of_answer: int = 1) -> None:
        """Give the model a cache of blocks 0 … num_blocks − 1.

        `tokens_of_answer` is how many tokens of an answer an iteration may have, drafts among them; a model prepares
        its iterations of answers for that many.
        """

    def forward(self, chunks: list[Chunk]) -> Iterable[Any]:
        """Compute the new tokens of several sequences, one chunk each.

        Returns
        -------
        float32 array [sum of num_logits, vocab_size]
            Logits that follow the last `num_logits` tokens of each chunk, in their order; valid until the next call. A
            model that keeps them on a GPU gives rows that know their `argmax()` and that `numpy.asarray` brings.
        """
        ...

    def read_blocks(self, blocks: list[int]) -> bytes:
        """Return what is in blocks of the cache, as `BlockFormat` has it."""
        ...

    def write_blocks(self, blocks: list[int], data: bytes) -> None:
        """Put into blocks of the cache what `read_blocks` of an engine of the same kind gave.

        Raises
        ------
        CourseError
            `data` is of another kind of engine, of another number of blocks, or damaged; the cache is as it was.
        """
        ...


def load(engine: str | Path | EngineInfo) -> Model:
    """Load the engine in a folder, or with the info that `read` gave, by the runner that it was built for.

    Raises
    ------
    CourseError
        The folder is not an engine of this version, or is damaged.
    """
    info = engine if isinstance(engine, EngineInfo) else read(engine)
    name = info.version.split()[0]
    if name not in RUNNERS:
        raise CourseError(
            f"The engine in {info.folder} is for {name}; here there is {', '.join(RUNNERS)}. Build it again."
        )
    module, _, runner = RUNNERS[name].partition(":")
    loaded: Model = getattr(import_module(module), runner)(info)
    return loaded


def rows_with_logits(chunks: list[Chunk], ends: NDArray[Any]) -> NDArray[Any]:
    """Return the tokens after which logits are wanted, int64 [sum of num_logits]; `ends` are the ends of the chunks."""
    return np.concatenate([np.arange(end - chunk.num_logits, end) for chunk, end in zip(chunks, ends)]).astype(np.int64)


def free_bytes(info: EngineInfo) -> int:
    """Return the free memory where an engine keeps its weights and its KV cache: the host's, or its GPU's.

    Raises
    ------
    CourseError
        There is no GPU that PyTorch can use.
    """
    if info.device == "cpu":
        return int(psutil.virtual_memory().available)
    return int(import_module("inflight.engine.torch.device").free_bytes(info))
