"""Runs what may hang, crash or take all memory in a process of its own.

    told, problem = run_apart(steps, {"numbers": [1, 2]}, "quantizer.py", within_s=30)

`steps` is a generator function of a module, which gets the dict and yields what JSON can hold. A learner's file is run
by such a function: a process that it ends, or leaves hanging, is not the notebook's.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from inflight.notebook.answers import what_failed

MOST_MEMORY = 12 << 30  # bytes of address space: a runtime reserves some more than it uses


def run_apart(steps: Callable[[dict], Iterator], asked: dict, path: str | Path, within_s: float) -> tuple[list, str]:
    """What `steps(asked)` yields in another process, and what ended that too early; blank where nothing did.

    Parameters
    ----------
    steps : callable
        A generator function at the top of its module.
    path : path
        The learner's file: a problem is told with its line.
    within_s : float
        Longest time for each step.
    """
    path = str(path)
    request = {"asked": asked, "path": path, "within_s": within_s, "steps": [steps.__module__, steps.__qualname__]}
    ran = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=json.dumps(request, default=_as_json),
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread takes address space
    )
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    told = [line["told"] for line in lines if "told" in line]
    if lines and "end" in lines[-1]:
        return told, lines[-1]["end"]
    name, last = Path(path).name, ran.stderr.strip().splitlines()
    if any(line.startswith("Timeout (") for line in last):
        own = re.findall(rf'File "{re.escape(path)}", line (\d+)', ran.stderr)
        where = f"{name}, line {own[0]}" if own else name
        ended = f"it had not ended after {within_s:g} s"
        return told, f"{where}: {ended}. Is there a loop that does not end, or a wait for what never comes?"
    return told, f"{name} ended its process (exit status {ran.returncode}). {last[-1] if last else ''}".strip()


def _as_json(value: object) -> object:
    """A server by its addresses and its repository; a NumPy number; anything else as it is printed."""
    if hasattr(value, "grpc_url"):
        return {name: str(getattr(value, name)) for name in ("grpc_url", "http_url", "repo")}
    return value.item() if isinstance(value, np.generic) else str(value)


def main() -> None:
    """The other process: a line of JSON for each step, and one for the end.

    It ends there, whatever threads it has left; an error in one of them, such as in a callback, ends it at once.
    """
    request, results = json.load(sys.stdin), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the learner's code prints is no result
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))

    def end(problem: str) -> None:
        results.write(json.dumps({"end": problem}) + "\n")
        os._exit(0)

    def end_of_thread(failed: threading.ExceptHookArgs) -> None:
        if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
            end(what_failed(failed.exc_value, request["path"]))

    threading.excepthook = end_of_thread
    faulthandler.dump_traceback_later(request["within_s"], exit=True)
    module, name = request["steps"]
    for told in getattr(importlib.import_module(module), name)(request["asked"]):
        results.write(json.dumps({"told": told}, default=_as_json) + "\n")
        faulthandler.dump_traceback_later(request["within_s"], exit=True)
    end("")
