"""The process in which a learner's scheduler runs; see `scheduler_process`, which starts it and reads what it writes.

python -m inflight.engine.scheduler_child my_scheduler.py
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
from types import FrameType

from inflight.engine.scheduler import Now, Plan, RequestView, Scheduler

MOST_MEMORY = 1 << 30  # bytes


def main(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the scheduler prints belongs to the log
    faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        scheduler = _scheduler(path)
        code = type(scheduler).schedule.__code__
        _write(answers, {"line": code.co_firstlineno})
        for text in sys.stdin:
            plan, line = _planned(scheduler, code, _now(json.loads(text)))
            _write(answers, _answer(plan, line))
    except BaseException as error:
        _write(answers, _told(error, path))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """A scheduler that never returns must not outlive the engine."""
    poll = select.poll()
    poll.register(0, 0)  # only that the other end is closed
    poll.poll()
    os._exit(0)


def _scheduler(path: str) -> Scheduler:
    """The object that the file defines. Raises whatever running it raises."""
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location("scheduler_of_a_learner", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise Unfit("there is no such Python file; name the one that defines the scheduler")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    kind = getattr(module, "Scheduler", None)
    if not isinstance(kind, type):
        raise Unfit("it defines no class Scheduler")
    if not hasattr(getattr(kind, "schedule", None), "__code__"):
        raise Unfit("its class Scheduler has no method schedule(self, now)", _line_of(kind))
    return kind()


class Unfit(Exception):
    """What the file lacks, and the line that shows it."""

    def __init__(self, reason: str, line: int | None = None):
        super().__init__(reason)
        self.line = line


def _line_of(kind: type) -> int | None:
    import inspect

    return inspect.getsourcelines(kind)[1]


def _now(numbers: dict) -> Now:
    lines = {name: [RequestView(*row) for row in numbers[name]] for name in ("waiting", "running", "paused")}
    return Now(**{**numbers, **lines})


def _planned(scheduler, code, now: Now) -> tuple[object, int]:
    """The plan, and the line of the file in which `schedule` returned it."""
    line = code.co_firstlineno

    def at_return(frame: FrameType, event: str, argument: object):
        nonlocal line
        if event == "return":
            line = frame.f_lineno
        return at_return

    def at_call(frame: FrameType, event: str, argument: object):
        if frame.f_code is not code:
            return None
        frame.f_trace_lines = False
        return at_return

    sys.settrace(at_call)
    try:
        return scheduler.schedule(now), line
    finally:
        sys.settrace(None)


def _answer(plan: object, line: int) -> dict:
    if not isinstance(plan, Plan):
        return {"error": f"schedule() returned a {type(plan).__name__}; it must return a Plan", "line": line}
    try:
        content = {"admit": list(plan.admit), "compute": list(plan.compute.items()), "pause": list(plan.pause)}
        json.dumps(content)
    except (TypeError, AttributeError, ValueError):
        reason = "gave a plan that is not made of request ids and numbers of tokens"
        return {"error": f"schedule() {reason}", "line": line}
    return {"plan": content, "line": line}


def _told(error: BaseException, path: str) -> dict:
    """An error of the file in a sentence, with the last of its lines that took part."""
    if isinstance(error, Unfit):
        return {"error": str(error), "line": error.line}
    if isinstance(error, SyntaxError) and error.filename == path:
        return {"error": f"it is not Python ({error.msg})", "line": error.lineno}
    own = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == path]
    what = "it ends the process" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}".rstrip(": ")
    return {"error": what.rstrip("."), "line": own[-1] if own else None}


def _write(answers, content: dict) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
