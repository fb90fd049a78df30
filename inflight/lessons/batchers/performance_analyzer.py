"""Triton's Performance Analyzer, which measures a model: `perf_analyzer(folder)` is the path of the program.

It is inside the tritonclient wheel, and misses two libraries that another wheel of the course carries.
"""

from __future__ import annotations

import os
import platform
import shlex
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files as files_of
from pathlib import Path

from inflight.errors import CourseError

# Libraries that the binary wants, and the names under which nvidia-pytriton carries them.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}


def perf_analyzer(folder: str | Path) -> Path:
    """Write a program `perf_analyzer` into `folder`: the one of the tritonclient wheel, with its libraries.

    Raises
    ------
    CourseError
        This is no x86-64 Linux, or the wheels do not have it.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CourseError(
            f"The Performance Analyzer of the tritonclient wheel runs on x86-64 Linux only, and this is "
            f"{platform.machine()} {platform.system()}: measure with `inflight bench load`."
        )
    libraries = Path(folder).absolute() / "perf_analyzer_libraries"
    libraries.mkdir(exist_ok=True)
    binary = _carried("tritonclient", "perf_analyzer")
    folders = {libraries}
    for name, pattern in LIBRARIES.items():
        path = _carried("nvidia-pytriton", pattern)
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(path)
        folders.add(path.parent)
    program = libraries.parent / "perf_analyzer"
    found = shlex.quote(os.pathsep.join(map(str, sorted(folders))))
    program.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={found} exec {shlex.quote(str(binary))} "$@"\n')
    program.chmod(0o755)
    return program


def _carried(distribution: str, pattern: str) -> Path:
    """The file of an installed package whose name fits the pattern."""
    try:
        [path, *_] = [Path(each.locate()) for each in files_of(distribution) or [] if Path(each.name).match(pattern)]
    except (PackageNotFoundError, ValueError):
        raise CourseError(
            f"The installed {distribution} has no {pattern}: install the course's requirements (`make setup` does it)."
        ) from None
    return path.resolve()
