"""The names of files and models in a model repository.

Imports only the standard library, so that a command line can name models without waiting.
"""

from __future__ import annotations

import re
from pathlib import Path

from inflight.paths import PACKAGE

TEMPLATES = PACKAGE / "triton" / "templates"
CONFIG = "config.pbtxt"
PREPROCESSING, ENGINE, POSTPROCESSING, ENSEMBLE = PIPELINE = (
    "preprocessing",
    "tensorrt_llm",
    "postprocessing",
    "ensemble",
)
# In TensorRT-LLM's repository, this model does in Python what the ensemble does; here it is the ensemble's second name,
# for clients that ask for that one.
BLS = "tensorrt_llm_bls"
BASELINE = "llama-python"  # the same checkpoint without an engine, beside the others when asked for
GPT2 = ("simple-gpt2", "iterative-gpt2")  # batch after batch, and a batch that changes at every token
BATCH_COST = "batch-cost"  # sleeps instead of computing, so that only the batcher's work shows
EMBEDDING = "text-embedding"  # the checkpoint as a model that gains from batches
# Whose clients are served: those of releases of TensorRT-LLM, and of its model of today, one in place of PIPELINE.
OLDEST_CONTRACT, DEFAULT_CONTRACT, LLMAPI = CONTRACTS = ("0.5", "0.19", "llmapi")
SETTINGS = "model.yaml"  # of LLMAPI, beside its model.py
VARIABLE = re.compile(r"\$\{(\w+)\}")  # ${name} in a template, which `assemble` replaces


def is_repository(folder: Path) -> bool:
    return any(folder.glob(f"*/{CONFIG}"))


def serves_llmapi(repo: str | Path) -> bool:
    return Path(repo, ENGINE, "1", SETTINGS).exists()


def models(repo: str | Path) -> list[str]:
    """List the models in a repository, in the order of the pipeline, then by name."""
    names = sorted(path.parent.name for path in Path(repo).glob(f"*/{CONFIG}"))
    return sorted(names, key=lambda name: PIPELINE.index(name) if name in PIPELINE else len(PIPELINE))
