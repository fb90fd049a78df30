"""A batching strategy of one's own: from C source to a library, and to where Triton looks for it.

    library = build("assets/batching/volume.c", "batchstrategy.so")
    place = install(library, server, "batch-cost", "parameter")
    server.load("batch-cost")                               # from now on it decides who joins a batch

Triton takes the first library that it finds: the one that the model's parameter TRITON_BATCH_STRATEGY_PATH names, then
`batchstrategy.so` in the folder of the model's version, of the model, and of its backend.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inflight import files
from inflight.errors import CourseError
from inflight.paths import ASSETS
from inflight.triton import batch_library, repository
from inflight.triton.server import Server

SOURCES = ASSETS / "batching"
PLACES = ("parameter", "version", "model", "backend")  # in the order in which Triton looks
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror=implicit-function-declaration", "-shared", "-fPIC")


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
    with _replaced(target) as aside:
        command = [*compiler(), *OPTIONS, f"-I{SOURCES}", "-o", str(aside), str(source)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            raise CourseError(_compiler_reason(source, done.stderr))
        _refuse_if_not_one(aside, target)
    return target


def compiler() -> list[str]:
    """The command of a C compiler: the machine's own, or the one of the Python package ziglang.

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


def _compiler_reason(source: Path, output: str) -> str:
    """The first error that a compiler reports, in a sentence."""
    place = re.search(r"^(.+?):(\d+):\d+: (?:fatal )?error: (.+)$", output, re.MULTILINE)
    if place:
        where = f"{Path(place[1]).name}, line {place[2]}"
        return f"{source} does not compile: {where}: {place[3].rstrip('?.')}. Correct it and build again."
    lines = [line for line in output.splitlines() if line.strip()] or ["the compiler gives no reason"]
    return f"{source} does not become a library: {lines[0].strip()}. Correct it and build again."


def _refuse_if_not_one(library: Path, called: Path) -> None:
    problem = batch_library.check(library)
    if problem:
        raise CourseError(f"{problem.message} {problem.fix}".replace(str(library), str(called)))


# Installing -----------------------------------------------------------------------------------------------------------


def install(library: str | Path, server: Server, model: str, where: str) -> Path:
    """Put a library where Triton finds it the next time that the model is loaded.

    A library that is built anew and has the path of one in use is taken only after `server.unload`: a process does not
    open a library again that it has open.

    Parameters
    ----------
    library : path
    server : Server
        Its repository is changed; for "backend", its own backend folder, which all its Python models share.
    model : str
    where : str
        One of `PLACES`. "parameter": the file stays where it is, and the model's config names it.

    Returns
    -------
    Path
        Where Triton will find it.

    Raises
    ------
    CourseError
        It is no batching library; the place is unknown; for "backend", the server does not run.
    """
    library = Path(library).absolute()
    _refuse_if_not_one(library, library)
    _mark_as_new(server, model)
    if where == "parameter":
        values: dict[str, Any] = {batch_library.PARAMETER: library}
        repository.edit(server.repo, model, **values)
        return library
    target = _folder(server, model, where) / batch_library.FILE_NAME
    with _replaced(target) as aside:
        shutil.copyfile(library, aside)
    return target


def uninstall(server: Server, model: str, where: str) -> None:
    """Undo `install`, for the next time that the model is loaded; nothing happens where no library is."""
    _mark_as_new(server, model)
    if where == "parameter":
        path = server.repo / model / repository.CONFIG
        config = repository.read_config(path)
        config.parameters.pop(batch_library.PARAMETER, None)
        repository.write_config(config, path)
    else:
        (_folder(server, model, where) / batch_library.FILE_NAME).unlink(missing_ok=True)


def _mark_as_new(server: Server, model: str) -> None:
    """Make Triton load the model again when told to: a library that is new or gone is no reason for it."""
    folder = server.repo / model / "1"
    if not folder.is_dir():
        raise CourseError(f"The repository {server.repo} has no model {model!r}. Name one that it has.")
    folder.touch()


def _folder(server: Server, model: str, where: str) -> Path:
    if where not in PLACES:
        raise CourseError(f"Triton looks for no batching library in {where!r}. Name one of: {', '.join(PLACES)}.")
    if where == "backend":
        return server.backend_dir
    folder = server.repo / model
    return folder / "1" if where == "version" else folder


@contextlib.contextmanager
def _replaced(target: Path) -> Iterator[Path]:
    """A file beside `target` that takes its place when the block ends well; who has the old one open keeps it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = files.new_file_beside(target)
        try:
            yield aside
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise CourseError(f"{target} cannot be written ({error.strerror}). Name another place.") from error
