"""The tier that this machine runs the course in, and why: its NVIDIA GPU, the GPU's driver, and PyTorch's build.

    found = here()
    found.name, found.why              # "cuda", "NVIDIA H200, driver 580.65.06, PyTorch's build for CUDA 13.0"

nvidia-smi, which comes with the driver, and the file in which PyTorch's build says what it is for are asked. PyTorch
would know it all as well, but it takes two seconds to import and some hundred MB of the GPU, in processes that compute
nothing; NVIDIA's own binding would be one more package to install.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import CourseError

CPU, CUDA = "cpu", "cuda"
TIERS = (CPU, CUDA)
VISIBLE = "CUDA_VISIBLE_DEVICES"

# CUDA's major version -> the oldest driver that runs it, and the oldest GPU (compute capability) that its compiler
# makes code for. NVIDIA, "CUDA Compatibility", table 1; release notes of CUDA 12 and 13.
NEEDS = {12: ((525,), (5, 0)), 13: ((580,), (7, 5))}
INDEXES = "https://pytorch.org/get-started/locally/"  # names the package index of each of PyTorch's builds

MIB, GIB = 2**20, 2**30
FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version")
NEWER_FIELDS = (*FIELDS, "compute_cap")  # drivers before 510 do not know it
ANSWER_S = 10  # a driver that nobody uses is loaded first, which takes seconds
# Where the driver's programs are that are not on everybody's path: containers of Google's, Windows' subsystem.
ELSEWHERE = ("/usr/local/nvidia/bin", "/usr/lib/wsl/lib")


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as its driver describes it.

    Attributes
    ----------
    index : int
        Its number, as nvidia-smi counts.
    total_bytes, free_bytes : int or None
        Of its memory; None where the driver does not tell, as on chips whose memory is the CPU's too.
    driver : str
        The driver's version.
    capability : (int, int) or None
        Its compute capability; None where an old driver does not tell.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    free_bytes: int | None
    driver: str
    capability: tuple[int, int] | None

    @property
    def memory(self) -> str:
        """ "139.7 of 140.4 GiB free", or "memory unknown"."""
        if self.total_bytes is None or self.free_bytes is None:
            return "memory unknown"
        return f"{self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free"


@dataclass(frozen=True)
class Tier:
    """The tier of this machine.

    Attributes
    ----------
    name : str
        One of `TIERS`.
    why : str
        A few words.
    gpu : Gpu or None
        The GPU that the course computes on.
    fix : str
        What to do so that a GPU that is there is used; empty where there is nothing to do.
    """

    name: str
    why: str
    gpu: Gpu | None = None
    fix: str = ""


def here() -> Tier:
    """The tier of this machine: "cuda" if PyTorch can use an NVIDIA GPU, else "cpu".

    Of several GPUs the one with the most free memory is taken; CUDA_VISIBLE_DEVICES narrows the choice, and blank
    means none. The machine is asked once a process: where the course computes does not change with the load it makes.
    """
    return _found(os.environ.get("PATH", ""), os.environ.get(VISIBLE))


def device() -> str:
    """What PyTorch is to compute on, "cuda" or "cpu"; "cuda" is the chosen GPU alone.

    CUDA_VISIBLE_DEVICES tells PyTorch, which has to be called after this, and every process that this one starts.
    """
    found = here()
    if found.gpu is not None and not os.environ.get(VISIBLE, "").startswith("MIG-"):
        os.environ[VISIBLE] = found.gpu.uuid
    return found.name


def checked(wanted: str | None) -> str:
    """A device for PyTorch: `wanted`, or that of the tier where it is None.

    Raises
    ------
    CourseError
        `wanted` is a GPU, and the tier has none.
    """
    found = device()
    if wanted is not None and wanted.startswith(CUDA) and found != CUDA:
        fix = here().fix or "give the model KIND_CPU in its instance_group"
        raise CourseError(f"A model is to compute on a GPU, and {here().why}. To go on, {fix}.")
    return wanted or found


def note() -> str:
    """What to say of the GPU when the course is set up, a sentence; blank where there is none."""
    found = here()
    if found.gpu is not None:
        return f"The course computes on the GPU here ({found.why})."
    return (
        f"There is a GPU, but the course computes on the CPU: {found.why}. To use it, {found.fix}." if found.fix else ""
    )


def gpus() -> list[Gpu] | None:
    """The GPUs that the driver shows; None where there is no driver, or it does not answer."""
    program = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(ELSEWHERE))
    if program is None:
        return None
    for fields in (NEWER_FIELDS, FIELDS):
        command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            printed = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if printed.returncode == 0:
            rows = csv.reader(printed.stdout.splitlines(), skipinitialspace=True)
            return [_gpu(dict(zip(fields, row))) for row in rows if len(row) == len(fields) and row[0].isdigit()]
    return None


def torch_build() -> tuple[str, str | None] | None:
    """Version of PyTorch, and of the CUDA that its build is for (None: for CPUs); None without PyTorch."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+)(?:: [^=]+)? = '([^']*)'", text, re.MULTILINE))
    return values.get("__version__", "of unknown version"), values.get("cuda")


# Choosing -------------------------------------------------------------------------------------------------------------


@functools.cache
def _found(_path: str, visible: str | None) -> Tier:
    """`here`, for a path on which the driver's program is looked for and a setting of CUDA_VISIBLE_DEVICES."""
    every = gpus()
    if every is None:
        if not list(Path("/dev").glob("nvidia[0-9]*")):
            return Tier(CPU, "there is no NVIDIA GPU")
        return Tier(
            CPU,
            "there is an NVIDIA GPU, and nvidia-smi does not answer",
            fix="install the NVIDIA driver with its nvidia-smi; in a container, start it with --gpus all",
        )
    seen = _visible(every, visible)
    if not seen:
        return Tier(CPU, f"{VISIBLE} hides the GPU" if every else "there is no NVIDIA GPU")
    gpu = max(seen, key=lambda one: (one.free_bytes or 0, -one.index))
    build = torch_build()
    problem, fix = _unusable(gpu, build)
    if problem:
        return Tier(CPU, f"{gpu.name} is not used: {problem}", fix=fix)
    assert build is not None
    others = "".join(f"; GPU {one.index} has {one.memory}" for one in seen if one is not gpu)
    chosen = f"GPU {gpu.index}, the one with the most free memory ({gpu.memory}{others})" if others else gpu.memory
    return Tier(CUDA, f"{gpu.name}, {chosen}, driver {gpu.driver}, PyTorch's build for CUDA {build[1]}", gpu)


def _visible(every: list[Gpu], setting: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, read as CUDA does: what it does not know ends the list."""
    if setting is None or setting.startswith("MIG-"):  # a part of a GPU, which nvidia-smi's table does not have
        return every
    left: list[Gpu] = []
    for entry in setting.split(","):
        named = [gpu for gpu in every if entry.strip() in (str(gpu.index), gpu.uuid)]
        named = named or [gpu for gpu in every if entry.startswith("GPU-") and gpu.uuid.startswith(entry.strip())]
        if len(named) != 1:
            break
        left += named
    return left


def _unusable(gpu: Gpu, build: tuple[str, str | None] | None) -> tuple[str, str]:
    """Why PyTorch cannot compute on a GPU, and what to do; blank where it can."""
    if build is None:
        return "PyTorch is not installed", "set the course up: `make setup`"
    version, cuda = build
    if cuda is None:
        return (
            f"PyTorch {version} is the build for CPUs",
            "set the course up again where pip finds the build for GPUs, with no PIP_EXTRA_INDEX_URL that names "
            "PyTorch's index for CPUs: `make clean setup`",
        )
    driver, capability = NEEDS.get(int(cuda.partition(".")[0]), ((0,), (0, 0)))
    older = f"set the course up again with PIP_EXTRA_INDEX_URL as {INDEXES} names it for CUDA 12: `make clean setup`"
    if _numbers(gpu.driver) < driver:
        return (
            f"its driver {gpu.driver} is older than {driver[0]}, which PyTorch's build for CUDA {cuda} needs",
            f"update the driver, or {older}",
        )
    if gpu.capability is not None and gpu.capability < capability:
        return (
            "it has compute capability {}.{}, and PyTorch's build for CUDA {} needs {}.{}".format(
                *gpu.capability, cuda, *capability
            ),
            older,
        )
    return "", ""


def _gpu(row: dict[str, str]) -> Gpu:
    return Gpu(
        int(row["index"]),
        row["uuid"],
        row["name"],
        _bytes(row["memory.total"]),
        _bytes(row["memory.free"]),
        row["driver_version"],
        _capability(row.get("compute_cap", "")),
    )


def _bytes(text: str) -> int | None:
    """Of a number of MiB; None for "[N/A]" and the like."""
    return int(text) * MIB if text.isdigit() else None


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _numbers(version: str) -> tuple[int, ...]:
    """(580, 65, 6) of "580.65.06"."""
    return tuple(map(int, re.findall(r"\d+", version)))
