"""Quantizes float weights to GGUF's Q4_1 with the least squared error that a search finds.

A block of 32 weights is stored as w = d·q + m with q = 0 … 15, d and m in float16 (https://github.com/ggml-org/ggml,
`block_q4_1`). The plain way takes m and d from the smallest and the largest weight. Weights far out are few, so ranges
that leave them outside are tried as well; for each, d and m are then the least-squares fit to the q that came out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK, BLOCK_BYTES, STEPS = 32, 20, 15
# Widths of the range of q that are tried, over that from the smallest weight to the largest.
WIDTHS = (1.0, 0.94, 0.88, 0.82, 0.76, 0.7)
AT_ONCE = 8192  # blocks: a megabyte, so that a search stays in the processor's cache


def quantize(values: NDArray[Any]) -> NDArray[Any]:
    """Quantize float32 [rows, columns] to Q4_1, uint8 [rows, columns / 32 × 20].

    Raises
    ------
    ValueError
        The columns are no multiple of 32.
    """
    rows, columns = values.shape
    if columns % BLOCK:
        raise ValueError(f"rows of {columns} weights cannot be divided into blocks of {BLOCK}")
    blocks = values.reshape(-1, BLOCK)
    parts = [_quantize(blocks[begin : begin + AT_ONCE]) for begin in range(0, len(blocks), AT_ONCE)]
    blocks_of_rows: NDArray[Any] = np.concatenate(parts).reshape(rows, -1)
    return blocks_of_rows


def unpacked(blocks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Unpack blocks of Q4_1, uint8 [..., 20], into d and m, float32 [...], and q, uint8 [..., 32]."""
    scales = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    q = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1)
    return scales[..., 0], scales[..., 1], q


def dequantize(blocks: NDArray[Any]) -> NDArray[Any]:
    """Turn blocks of Q4_1, uint8 [blocks, 20], back into weights, float32 [blocks, 32]."""
    d, m, q = unpacked(blocks)
    weights: NDArray[Any] = d[..., None] * q + m[..., None]
    return weights


def share_lost(values: NDArray[Any], blocks: NDArray[Any]) -> float:
    """Return the squared error of Q4_1 blocks, over the squared distances of weights from the mean of their block.

    0: nothing is lost; 1: as much as if each weight were replaced by that mean. Where all weights of a block are alike,
    the squared error itself.

    Parameters
    ----------
    values : float32 array [blocks, 32]
    blocks : uint8 array [blocks, 20]
        What was made of them.
    """
    spread = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum(dtype=np.float64)
    error = ((dequantize(blocks) - values) ** 2).sum(dtype=np.float64)
    return float(error / spread) if spread else float(error)


def _quantize(blocks: NDArray[Any]) -> NDArray[Any]:
    """Pack blocks, float32 [blocks, 32], as bytes [blocks, 20]: d, m, and q of weight i with that of weight i + 16."""
    least, most = blocks.min(-1), blocks.max(-1)
    d, m = _stored((most - least) / STEPS), _stored(least)
    error = _error(blocks, d, m)
    for width in WIDTHS:
        tried_d, tried_m = _fit(blocks, (most - least) * width / STEPS, (least + most - (most - least) * width) / 2)
        tried = _error(blocks, tried_d, tried_m)
        better = tried < error
        d, m, error = np.where(better, tried_d, d), np.where(better, tried_m, m), np.where(better, tried, error)
    q = _steps(blocks, d, m).astype(np.uint8)
    scales = np.stack([d, m], axis=-1).astype(np.float16).view(np.uint8)
    return np.concatenate([scales, q[:, :16] | q[:, 16:] << 4], axis=-1)


def _steps(blocks: NDArray[Any], d: NDArray[Any], m: NDArray[Any]) -> NDArray[Any]:
    """Return the q nearest to each weight, float32."""
    inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
    q: NDArray[Any] = np.clip(np.rint((blocks - m[:, None]) * inverse[:, None]), 0, STEPS)
    return q


def _fit(blocks: NDArray[Any], d: NDArray[Any], m: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The d and m that fit best to the q that the given ones lead to; where those are all the same, the given ones."""
    q = _steps(blocks, d, m)
    mean_q, mean = q.mean(-1), blocks.mean(-1)
    away = q - mean_q[:, None]
    spread = (away * away).sum(-1)
    fitted = np.divide((away * blocks).sum(-1), spread, out=d.copy(), where=spread > 0)
    return _stored(fitted), _stored(np.where(spread > 0, mean - fitted * mean_q, m))


def _error(blocks: NDArray[Any], d: NDArray[Any], m: NDArray[Any]) -> NDArray[Any]:
    missed = _steps(blocks, d, m) * d[:, None] + m[:, None] - blocks
    error: NDArray[Any] = (missed * missed).sum(-1)
    return error


def _stored(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.float16).astype(np.float32)
