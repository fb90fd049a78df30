"""A batching strategy of one's own: from C source to a library that Triton loads.

library = build("volume.c", "batchstrategy.so")
repository.edit(repo, "batch-cost", TRITON_BATCH_STRATEGY_PATH=library)
server.load("batch-cost")                               # from now on it decides who joins a batch
"""

from __future__ import annotations

import shutil
import subprocess
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
        The library to make. One that was there is replaced, never written over: a server may have it open. Such a
        server goes on with the old one, so that each build needs a name of its own.

    Returns
    -------
    Path
        The library, absolute.

    Raises
    ------
    CourseError
        There is no compiler; or the source does not become a library, with what the compiler says. The library that
        was there is untouched then.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CourseError("There is no C compiler on this machine: install one, such as gcc.")
    target = Path(target).absolute()
    made = target.with_suffix(".new")
    command = [compiler, *OPTIONS, f"-I{SOURCES}", "-o", str(made), str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise CourseError(f"{source} does not become a library: {done.stderr.strip()[:1000]}", "Correct it.")
    return made.replace(target)
