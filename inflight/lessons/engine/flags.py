"""What each flag of TensorRT-LLM's build meant, and what became of it."""

import pandas as pd

from inflight.paths import ASSETS


def build_flags() -> pd.DataFrame:
    """One row a flag: its names in three generations of TensorRT-LLM, what it means, and what became of it."""
    return pd.read_csv(ASSETS / "lab-gpu" / "build_flags.csv", keep_default_na=False)
