"""Runs a grader in a process of its own, for an answer that may hang, crash or take all memory.

    found = graded_apart(grade, "quantizer.py", seed=48151, within_s=30)

A learner's file is graded apart: a process that it ends, or leaves hanging, is not the notebook's.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inflight.notebook.checks.answers import as_json, brief, late, what_failed
from inflight.notebook.checks.findings import NOT_YET, RIGHT, Finding, Measured, NotYet, Right, Wrong, figures
from inflight.notebook.checks.graders import found_by, parts_of

MOST_WRITTEN, LAST_PRINTED = 1 << 30, 1 << 16  # bytes of a file; of what was printed, as it is read
MOST_MEMORY = 12 << 30  # bytes of address space: a runtime reserves more than it uses
# Each takes address space, and waits for the others.
FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def graded_apart(
    grade: Callable, answer: object, seed: int | None, within_s: float, of_file: bool = True
) -> dict[str, Finding]:
    """Return what `graders.graded` gives, from another process, in which each part may take `within_s`.

    What that process has started ends with it.

    Parameters
    ----------
    grade : callable
        A function at the top of its module.
    answer : object
        What JSON can hold.
    of_file : bool
        It is the path of the learner's file, or a list or tuple that begins with it: a problem is told with its line.
    """
    path = ""
    if of_file:
        given: list[Any] = list(answer) if isinstance(answer, list | tuple) else [answer]
        if problem := _no_file(given):
            return {"": Wrong(problem)}
        given[0] = path = str(Path(given[0]).absolute())
        answer = given if isinstance(answer, list | tuple) else path
    with tempfile.NamedTemporaryFile("r") as late_at:  # where it was when its time was up
        request = {
            "grade": [grade.__module__, grade.__qualname__],
            "answer": answer,
            "path": path,
            "seed": seed,
            "within_s": within_s,
            "late_at": late_at.name,
        }
        told, printed, status = _run(json.dumps(request, default=as_json))
        stack = late_at.read()
    names, found, end = [""], {}, ""
    for line in map(json.loads, told.splitlines()):
        names, end = line.get("parts", names), line.get("end", end)
        if "found" in line:
            found[line["part"]] = _from_json(line["found"])
    if len(found) < len(names):
        found[names[len(found)]] = Wrong(end or _what_ended(stack, printed, status, path, within_s))
    return {part: found.get(part, NOT_YET) for part in names}


def _no_file(given: list) -> str:
    """Say why an answer does not begin with the path of a file; "" where it does."""
    if not given or not isinstance(given[0], str | Path):
        return (
            f"Your answer is {brief(given[0] if given else given)}: give the path of your file, which its cell writes."
        )
    if "\n" in str(given[0]):
        return "Your answer is a text of several lines: give the path of the file that it stands in."
    try:
        is_there = Path(given[0]).is_file()
    except (OSError, ValueError):  # too long for a path, or with a letter that no path has
        is_there = False
    return (
        "" if is_there else f"There is no file {brief(str(given[0]))}: run the cell that writes it, and give its path."
    )


def _run(request: str) -> tuple[str, str, int]:
    """Run `main` on a request; return its lines of JSON, what was printed, and its exit status."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as printed:
        # Files, and no pipes: a process that the learner's code starts may hold these open for as long as it likes.
        process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=told,
            stderr=printed,
            env={**os.environ, **FEW_THREADS},
            start_new_session=True,
        )
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request.encode())
            process.wait()
        finally:  # also when the notebook is interrupted
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told.seek(0)
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - LAST_PRINTED))
        return told.read().decode(), printed.read().decode(errors="replace"), process.returncode


def _to_json(finding: Finding) -> dict:
    if isinstance(finding, Wrong):
        return {"wrong": finding.because}
    if isinstance(finding, Right | NotYet):
        return {"right": isinstance(finding, Right)}
    return {"measured": [asdict(figure) for figure in figures(finding)]}


def _from_json(told: dict) -> Finding:
    if "wrong" in told:
        return Wrong(told["wrong"])
    if "right" in told:
        return RIGHT if told["right"] else NOT_YET
    return [Measured(**figure) for figure in told["measured"]]


def _what_ended(stack: str, printed: str, status: int, path: str, within_s: float) -> str:
    """Say why the other process ended before it had reported every part; it has a `stack` if its time was up."""
    name, last = Path(path).name or "Your answer", printed.strip().splitlines()
    if stack:
        own = re.findall(rf'File "{re.escape(path)}", line (\d+)', stack) if path else []
        return late(f"{name}, line {own[0]}" if own else name, within_s)
    return f"{name} ended its process (exit status {status}). {last[-1] if last else ''}".strip()


def main() -> None:
    """Be the other process: print a line of JSON with the names of the parts, then one for each part.

    It ends there, whatever threads it has left; an error in one of them, such as in a callback, ends it at once.
    """
    request, results = json.load(sys.stdin), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the learner's code prints is no result
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_WRITTEN, MOST_WRITTEN))  # a print that does not end
    path, (module, name) = request["path"], request["grade"]
    late_at = os.open(request["late_at"], os.O_WRONLY)

    def tell(**what: object) -> None:
        results.write(json.dumps(what, default=as_json) + "\n")
        faulthandler.dump_traceback_later(request["within_s"], exit=True, file=late_at)

    def end_of_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
            tell(end=what_failed(failed.exc_value, path))
            os._exit(0)

    threading.excepthook = end_of_thread
    faulthandler.dump_traceback_later(request["within_s"], exit=True, file=late_at)
    parts = parts_of(getattr(importlib.import_module(module), name), request["answer"], request["seed"], path)
    tell(parts=list(parts))
    for part, given in parts.items():
        found = found_by(given, path)
        tell(part=part, found=_to_json(found))
    os._exit(0)
