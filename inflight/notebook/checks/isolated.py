"""Runs a grader: here, or in a process of its own if the answer may hang, crash or take all memory.

    found = graded(grade, answer, seed=48151)
    found = graded_apart(grade, "quantizer.py", seed=48151, within_s=30)

A learner's file is graded apart: a process that it ends, or leaves hanging, is not the notebook's.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from inflight.notebook.checks.answers import as_json, plain, what_failed
from inflight.notebook.checks.findings import NOT_YET, Finding, Measured, figures
from inflight.notebook.pages import progress

MOST_MEMORY = 12 << 30  # bytes of address space: a runtime reserves some more than it uses


def graded(grade: Callable, answer: object, seed: int | None) -> dict[str, Finding]:
    """Return a grader's finding for each part of an answer; "" stands for the whole.

    Parameters
    ----------
    seed : int or None
        Of the hidden cases, where the grader has any.
    """
    found = {}
    for part, given in _parts(grade, answer, seed).items():
        progress.say(part)
        found[part] = _found(given)
    return found


def _parts(grade: Callable, answer: object, seed: int | None, path: str = "") -> dict[str, Any]:
    """Return for each part the grader's finding, or a function that finds it."""
    hidden = [] if seed is None else [random.Random(seed)]
    found = _found(lambda: grade(plain(answer), *hidden), path)
    return found if isinstance(found, dict) else {"": found}


def _found(given: Any, path: str = "") -> Any:
    """Return a function's finding, or its error as one: an answer of any type may arrive, and a lab must go on."""
    if not callable(given):
        return given
    try:
        return given()
    except NotImplementedError:
        return NOT_YET
    except (Exception, SystemExit) as error:
        return what_failed(error, path)


def graded_apart(grade: Callable, answer: object, seed: int | None, within_s: float) -> dict[str, Finding]:
    """Return what `graded` gives, from another process, in which each part may take `within_s`.

    Parameters
    ----------
    grade : callable
        A function at the top of its module.
    answer : object
        The path of the learner's file, or a list or tuple that begins with it: a problem is told with its line.
    """
    given = list(answer) if isinstance(answer, list | tuple) else [answer]
    if not isinstance(given[0], str | Path) or not Path(given[0]).is_file():
        return {"": f"There is no file {given[0]!s}: run the cell that writes it, and give its path."}
    given[0] = path = str(Path(given[0]).absolute())
    request = {
        "grade": [grade.__module__, grade.__qualname__],
        "answer": given if isinstance(answer, list | tuple) else path,
        "path": path,
        "seed": seed,
        "within_s": within_s,
    }
    ran = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=json.dumps(request, default=as_json),
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread takes address space
    )
    names, found, end = [""], {}, ""
    for line in map(json.loads, ran.stdout.splitlines()):
        names, end = line.get("parts", names), line.get("end", end)
        if "found" in line:
            one = line["found"]
            found[line["part"]] = [Measured(**figure) for figure in one] if isinstance(one, list) else one
    if len(found) < len(names):
        found[names[len(found)]] = end or _what_ended(ran, path, within_s)
    return {part: found.get(part, NOT_YET) for part in names}


def _what_ended(ran: subprocess.CompletedProcess, path: str, within_s: float) -> str:
    """Say why the other process ended before it had reported every part."""
    name, last = Path(path).name, ran.stderr.strip().splitlines()
    if any(line.startswith("Timeout (") for line in last):
        own = re.findall(rf'File "{re.escape(path)}", line (\d+)', ran.stderr)
        where = f"{name}, line {own[0]}" if own else name
        ended = f"it had not ended after {within_s:g} s"
        return f"{where}: {ended}. Is there a loop that does not end, or a wait for what never comes?"
    return f"{name} ended its process (exit status {ran.returncode}). {last[-1] if last else ''}".strip()


def main() -> None:
    """Be the other process: print a line of JSON with the names of the parts, then one for each part.

    It ends there, whatever threads it has left; an error in one of them, such as in a callback, ends it at once.
    """
    request, results = json.load(sys.stdin), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the learner's code prints is no result
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    path, (module, name) = request["path"], request["grade"]

    def tell(**what: object) -> None:
        results.write(json.dumps(what, default=as_json) + "\n")
        faulthandler.dump_traceback_later(request["within_s"], exit=True)

    def end_of_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
            tell(end=what_failed(failed.exc_value, path))
            os._exit(0)

    threading.excepthook = end_of_thread
    faulthandler.dump_traceback_later(request["within_s"], exit=True)
    parts = _parts(getattr(importlib.import_module(module), name), request["answer"], request["seed"], path)
    tell(parts=list(parts))
    for part, given in parts.items():
        found = _found(given, path)
        tell(part=part, found=[asdict(figure) for figure in figures(found)] or found)
    os._exit(0)
