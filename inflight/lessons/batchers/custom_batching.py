"""A batching strategy of one's own: from C source to a library that Triton loads.

    library = build(SOURCES / "volume.c", "batchstrategy.so")
    repository.edit(repo, "batch-cost", TRITON_BATCH_STRATEGY_PATH=library)
    server.load("batch-cost")                               # from now on it decides who joins a batch

Triton takes the first library that it finds: the one that the model's parameter TRITON_BATCH_STRATEGY_PATH names, then
`batchstrategy.so` in the folder of the model's version, of the model, and of its backend.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from inflight.errors import CourseError

SOURCES = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
FUNCTIONS = (
    "TRITONBACKEND_ModelBatcherInitialize",
    "TRITONBACKEND_ModelBatcherFinalize",
    "TRITONBACKEND_ModelBatchInitialize",
    "TRITONBACKEND_ModelBatchIncludeRequest",
    "TRITONBACKEND_ModelBatchFinalize",
)
OPTIONS = (
    *("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-shared", "-fPIC"),
    # Triton never comes back from loading a library that lacks a function.
    *(f"-Wl,--require-defined={name}" for name in FUNCTIONS),
)


def build(source: str | Path, target: str | Path) -> Path:
    """Compile a batching library.

    Parameters
    ----------
    source : path
        A C file with Triton's five functions; it may include "triton.h" from `SOURCES`.
    target : path
        The library to make. One that was there is replaced, never written over: a server may have it open.

    Returns
    -------
    Path
        The library, absolute.

    Raises
    ------
    CourseError
        There is no compiler; the source does not compile, with the compiler's first error; or it lacks a function.
        The library that was there is untouched then.
    """
    source, target = Path(source), Path(target).absolute()
    if not source.is_file():
        raise CourseError(f"There is no source {source}. Name a C file, such as {SOURCES / 'volume.c'}.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder, target.name)
            command = [*compiler(), *OPTIONS, f"-I{SOURCES}", "-o", str(made), str(source)]
            done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                raise CourseError(_reason(source, done.stderr))
            made.replace(target)
    except OSError as error:
        raise CourseError(f"{target} cannot be written ({error.strerror}). Name another place.") from error
    return target


def compiler() -> list[str]:
    """Return the command of a C compiler: the machine's own, or that of the Python package ziglang.

    Raises
    ------
    CourseError
        There is none; the message says how to get one.
    """
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found:
        return [found]
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CourseError(
        "There is no C compiler on this machine: install one, such as gcc, or run `pip install ziglang`, "
        "which brings one."
    )


def _reason(source: Path, output: str) -> str:
    """Say in a sentence the first error that a compiler reports, or which functions a linker misses."""
    place = re.search(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.+)$", output, re.MULTILINE)
    if place:
        where = f"{Path(place[1]).name}, line {place[2]}"
        return f"{source} does not compile: {where}: {place[3].rstrip('?.')}. Correct it and build again."
    if missing := [name for name in FUNCTIONS if re.search(rf"\b{name}\b", output)]:
        return (
            f"{source} does not define all functions of a batching library: {', '.join(missing)}. Write what is "
            "missing and build it again."
        )
    lines = [line for line in output.splitlines() if line.strip()] or ["the compiler gives no reason"]
    return f"{source} does not become a library: {lines[0].strip()}. Correct it and build again."
