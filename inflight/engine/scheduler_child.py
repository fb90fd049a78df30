"""The process in which a learner's scheduler runs; see `scheduler_process`, which starts it and reads what it writes.

python -m inflight.engine.scheduler_child my_scheduler.py

It is sent the text of the file first, for the file may have been changed since that text was tried.
"""

from __future__ import annotations

import ast
import faulthandler
import inspect
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
from types import FrameType, ModuleType

from inflight.engine.scheduler import Now, Plan, RequestView, Scheduler

MOST_MEMORY = 1 << 30  # bytes
MOST_ANSWER = 1 << 20  # bytes of a line; a plan for a thousand requests has some 20,000
MOST_MESSAGE = 500  # characters of what an exception says


def main(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # `input` must not take a question away
    os.dup2(2, 1)  # what the scheduler prints belongs to the log
    faulthandler.register(signal.SIGUSR1, file=answers, all_threads=False)
    threading.Thread(target=_end_with_parent, args=(questions.fileno(),), daemon=True).start()
    try:
        scheduler = _scheduler(path, json.loads(questions.readline())["source"].encode("latin-1"))
        code = inspect.unwrap(type(scheduler).schedule).__code__
        is_own = code.co_filename == path  # or it was imported, and its lines are another file's
        _write(answers, {"line": code.co_firstlineno if is_own else None})
        for text in questions:
            plan, line = _planned(scheduler, code, _now(json.loads(text)))
            _write(answers, _answer(plan, line if is_own else None))
    except BaseException as error:
        _write(answers, _told(error, path))
        raise SystemExit(1) from None


def _end_with_parent(handle: int) -> None:
    """A scheduler that never returns must not outlive the engine, nor what it has started."""
    poll = select.poll()
    poll.register(handle, 0)  # only that the other end is closed
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def _scheduler(path: str, source: bytes) -> Scheduler:
    """The object that the file defines. Raises whatever running it raises."""
    sys.dont_write_bytecode = True
    module = ModuleType("scheduler_of_a_learner")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    kind = getattr(module, "Scheduler", None)
    if not isinstance(kind, type) or kind is Scheduler:  # the protocol, imported
        raise Unfit("it defines no class Scheduler")
    if not (hasattr(kind, "schedule") and hasattr(inspect.unwrap(kind.schedule), "__code__")):
        raise Unfit("its class Scheduler has no method schedule(self, now)", _line_of_class(source))
    return kind()


class Unfit(Exception):
    """What the file lacks, and the line that shows it."""

    def __init__(self, reason: str, line: int | None = None):
        super().__init__(reason)
        self.line = line


def _line_of_class(source: bytes) -> int | None:
    nodes = ast.walk(ast.parse(source))
    return next((node.lineno for node in nodes if isinstance(node, ast.ClassDef) and node.name == "Scheduler"), None)


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


def _answer(plan: object, line: int | None) -> dict:
    if not isinstance(plan, Plan):
        return {"error": f"schedule() returned a {type(plan).__name__}; it must return a Plan", "line": line}
    try:
        content = {"admit": list(plan.admit), "compute": list(plan.compute.items()), "pause": list(plan.pause)}
        length = len(json.dumps(content))
    except (TypeError, AttributeError, ValueError):
        reason = "gave a plan that is not made of request ids and numbers of tokens"
        return {"error": f"schedule() {reason}", "line": line}
    if length > MOST_ANSWER // 2:
        return {"error": f"schedule() gave a plan of {length} characters, more than any plan needs", "line": line}
    return {"plan": content, "line": line}


def _told(error: BaseException, path: str) -> dict:
    """An error of the file in a sentence, with the last of its lines that took part."""
    if isinstance(error, Unfit):
        return {"error": str(error), "line": error.line}
    if isinstance(error, SyntaxError) and error.filename == path:
        return {"error": f"it is not Python ({error.msg})", "line": error.lineno}
    own = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == path]
    what = "it ends the process" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}".rstrip(": ")
    if len(what) > MOST_MESSAGE:
        what = what[:MOST_MESSAGE] + " …"
    return {"error": what.rstrip("."), "line": own[-1] if own else None}


def _write(answers, content: dict) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1])
