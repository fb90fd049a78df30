"""The GPU as PyTorch sees it: whether there is one, and what it can do."""

from __future__ import annotations

import torch

from inflight.errors import CourseError


def refuse_without_gpu(what: str, fix: str) -> None:
    """Raise CourseError where PyTorch has no GPU to compute on; the sentence begins with `what` and ends with `fix`."""
    if not torch.cuda.is_available():
        build = "sees none" if torch.version.cuda else "is the build for CPUs"
        raise CourseError(f"{what} is for an NVIDIA GPU (tier cuda), and PyTorch here {build}. {fix}")


def free_bytes() -> int:
    """Memory of the GPU that nobody has taken: what PyTorch holds and does not use counts as free."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def has_bfloat16() -> bool:
    """Whether the GPU computes in bfloat16 itself: one of Ampere or later does."""
    return torch.cuda.get_device_capability() >= (8, 0)
