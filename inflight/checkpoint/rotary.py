"""How fast a Llama rotates each pair of numbers in a head from one position to the next (Su et al. 2021,
arXiv:2104.09864), and by what the models of longer texts are slowed.
"""

from __future__ import annotations

import numpy as np

from inflight.checkpoint.shapes import RopeParameters

FACTORS = "rope_freqs.weight"  # GGUF's name for what `factors` gives


def frequencies(head_size: int, base: float) -> np.ndarray:
    """Radians a position for each pair of numbers, float32 [head_size / 2]."""
    return (1.0 / base ** (np.arange(0, head_size, 2) / head_size)).astype(np.float32)


def factors(rotation: RopeParameters, head_size: int, base: float) -> np.ndarray | None:
    """What each frequency is divided by, float32 [head_size / 2]; None where they stay as they are.

    With "llama3", as Llama 3.1 has it: the slow ones by `factor`, the fast ones by 1, and those between by between.
    """
    if rotation.kind != "llama3":
        return None
    factor, low, high, positions = rotation.llama3()
    turns = positions * frequencies(head_size, base) / (2 * np.pi)  # within the text that it was trained on first
    kept = ((turns - low) / (high - low)).clip(0, 1)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
