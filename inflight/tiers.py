"""Finds the tier that this machine runs the course in, by asking PyTorch whether it can use an NVIDIA GPU.

    found = here()
    found.name, found.why              # "cuda", "NVIDIA H200, 139.8 GiB, PyTorch's build for CUDA 13.0"

Where PyTorch's build is for CPUs, which a file of it tells, it is not imported: that takes two seconds.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inflight import bootstrap
from inflight.errors import CourseError

CPU, CUDA = "cpu", "cuda"
INDEXES = "https://pytorch.org/get-started/locally/"  # names PyTorch's builds
GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as PyTorch describes it: bytes of its memory, and its compute capability."""

    name: str
    total_bytes: int
    capability: tuple[int, int]


@dataclass(frozen=True)
class Tier:
    """The tier of this machine, and the reason."""

    name: str  # "cpu" or "cuda"
    why: str  # in a few words
    gpu: Gpu | None = None  # PyTorch's first, which CUDA_VISIBLE_DEVICES chooses; blank hides all
    fix: str = ""  # what to do so that a GPU that is there is used; empty where there is nothing to do


@functools.cache
def here() -> Tier:
    """The tier of this machine: "cuda" if PyTorch can use an NVIDIA GPU, else "cpu". It is asked once a process."""
    is_there = bootstrap.has_nvidia_gpu()
    again = "set the course up again with the build for it: `INFLIGHT_TORCH=auto make clean setup`"
    build = torch_build()
    if build is None or build[1] is None:
        if not is_there:
            return Tier(CPU, "there is no NVIDIA GPU")
        installed = "PyTorch is not installed" if build is None else f"PyTorch {build[0]} is the build for CPUs"
        return Tier(CPU, f"there is an NVIDIA GPU, and {installed}", fix=again)
    # By name: who imports this module does not load PyTorch, and only its build for GPUs is asked.
    cuda: Any = importlib.import_module("torch").cuda
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        can_be_used = cuda.is_available()
    if not can_be_used:
        reason = f": {str(said[0].message).splitlines()[0]}" if said else ""
        why = f"PyTorch's build for CUDA {build[1]} finds no GPU{reason}"
        return Tier(CPU, why, fix=f"update the NVIDIA driver, or {again}" if is_there else "")
    found = cuda.get_device_properties(0)
    gpu = Gpu(found.name, found.total_memory, (found.major, found.minor))
    oldest = min(int(digits) for digits in re.findall(r"sm_(\d+)", " ".join(cuda.get_arch_list())))
    if 10 * found.major + found.minor < oldest:
        why = f"{gpu.name} is older than what PyTorch's build for CUDA {build[1]} computes on"
        return Tier(CPU, why, fix=f"name a build that is for it ({INDEXES}): `INFLIGHT_TORCH=cu126 make clean setup`")
    return Tier(CUDA, f"{gpu.name}, {gpu.total_bytes / GIB:.1f} GiB, PyTorch's build for CUDA {build[1]}", gpu)


def checked(wanted: str | None) -> str:
    """Return a device for PyTorch: `wanted`, or that of the tier where it is None.

    Raises
    ------
    CourseError
        `wanted` is a GPU, and the tier has none.
    """
    found = here()
    if wanted is not None and wanted.startswith(CUDA) and found.name != CUDA:
        fix = found.fix or "give the model KIND_CPU in its instance_group"
        raise CourseError(f"A model is to compute on a GPU, and {found.why}. To go on, {fix}.")
    return wanted or found.name


def torch_build() -> tuple[str, str | None] | None:
    """Version of PyTorch, and of the CUDA that its build is for (None: for CPUs); None without PyTorch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+)(?:: [^=]+)? = '([^']*)'", text, re.MULTILINE))
    return values.get("__version__", "of unknown version"), values.get("cuda")
