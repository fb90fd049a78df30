"""Makes a checkpoint whose weights a learner's own quantizer has put into 4 bits.

    own = quantized(fetch(), quantizer.quantize, "own.gguf")
    engine.build(own, BuildConfig(), "engine")          # as of any other checkpoint

A quantizer is a function of float32 [blocks, 32] that gives the blocks of GGUF's Q4_1, uint8 [blocks, 20].
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.checkpoint import weights
from inflight.checkpoint.q4_1 import BLOCK, BLOCK_BYTES
from inflight.checkpoint.sources import Checkpoint, fetch
from inflight.errors import CourseError

Quantizer = Callable[[NDArray[Any]], NDArray[Any]]


def quantized(source: Checkpoint, quantize: Quantizer, target: str | Path) -> Checkpoint:
    """Write `source`, a GGUF checkpoint, as the file `target`, the matrices of its layers quantized by `quantize`.

    Its vocabulary keeps 8 bits, and its norms 32, as in every build with 4-bit weights.

    Raises
    ------
    CourseError
        `source` is no GGUF file; what `quantize` gives are no blocks of Q4_1.
    """
    if source.format != "gguf":
        raise CourseError(f"{source.name} is not a GGUF file, and only those can be quantized again.")
    target = Path(target)
    try:
        weights.requantize(weights.GgufFile(source.path), target, "W4A8", lambda values: in_blocks(values, quantize))
    except BaseException:  # an interrupt too: half a file must not pass for a checkpoint
        target.unlink(missing_ok=True)
        raise
    return fetch(target)


def in_blocks(values: NDArray[Any], quantize: Quantizer) -> NDArray[Any]:
    """Turn float32 [rows, columns] into Q4_1, uint8 [rows, columns / 32 × 20], by a quantizer of blocks.

    Raises
    ------
    CourseError
        What it gives are no blocks of Q4_1.
    """
    blocks = values.reshape(-1, BLOCK)
    made = np.asarray(quantize(blocks.copy()))
    if made.dtype != np.uint8 or made.shape != (len(blocks), BLOCK_BYTES):
        raise CourseError(
            f"A quantizer gives uint8 [blocks, {BLOCK_BYTES}]; of {len(blocks)} blocks this one made {made.dtype} "
            f"{list(made.shape)}."
        )
    return made.reshape(len(values), -1)
