"""Finds out through PyTorch whether there is a GPU, and how much of its memory is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from inflight import tiers
from inflight.engine.folder import EngineInfo
from inflight.errors import CourseError


def refuse_without_gpu(info: EngineInfo) -> None:
    """Raise CourseError where PyTorch has no GPU for an engine to compute on, with the reason."""
    found = tiers.here()
    if found.name != tiers.CUDA:
        way_on = f"To use it here, {found.fix}" if found.fix else "Load it on a machine with one"
        raise CourseError(
            f"The engine in {info.folder} is for an NVIDIA GPU (tier cuda), and PyTorch can use none here "
            f"({found.why}). {way_on}, or build one for this machine: `inflight build --tier cpu`."
        )


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Turn what PyTorch raises when memory is short into a CourseError that says what there was no room for."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CourseError(
            f"The GPU has no room for {what}: {_free() / 1e6:,.0f} MB of its memory are free. Stop what else uses it, "
            "lower kv_cache_free_gpu_mem_fraction, or build a smaller engine."
        ) from error


def free_bytes(info: EngineInfo) -> int:
    """Return the GPU memory that an engine may take.

    Raises
    ------
    CourseError
        There is no GPU that PyTorch can use.
    """
    refuse_without_gpu(info)
    return _free()


def _free() -> int:
    """Return the free memory; memory that PyTorch holds and does not use counts as free."""
    free, _ = torch.cuda.mem_get_info()
    return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
