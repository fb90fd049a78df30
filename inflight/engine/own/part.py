"""Loads a learner's class from the Python file that a setting names, and tells its errors in a sentence.

`scheduler` (`scheduler_path`), `grammar` (`logits_processor_path`) and `drafts` (`drafter_path`) load theirs here.
A part runs in the engine's own process. What it raises becomes a sentence with file and line. A call that does not
return is ended by whoever started the process: a user interrupts a notebook, and a Triton model's process ends itself,
after a line of JSON that says where the call was.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from inflight.errors import ENGINE_FAILED, CourseError

LONGEST_S = 10  # longest run of a part's file, and longest call of it, where late calls are ended
HELD_S = LONGEST_S  # so much later a call ends the process that lets no other thread run, such as a match of `re`
CALLED = {"<module>": "the file", "__call__": "the logits processor"}  # what a message calls a function
_calls: list[tuple[float, int]] = []  # running calls, the earliest first: when it has to end, and its thread
_watched = threading.Condition()
_report_to: int | None = None  # file descriptor; None: no call is ended
_is_idle = True  # the watchdog waits for a call


class PartError(CourseError):
    """A part could not be loaded, raised an error, or returned what it must not."""

    code = ENGINE_FAILED


def end_late_calls(report_to: int) -> None:
    """Let a call of a part that takes longer than LONGEST_S end this process, after a line that says where it was.

    The line is a JSON object `{"late_call": {"file": …, "line": …, "function": …}}`.

    Parameters
    ----------
    report_to : int
        File descriptor to which it is written.
    """
    global _report_to
    _report_to = report_to
    threading.Thread(target=_watch, args=(report_to,), name="late calls", daemon=True).start()


def _watch(report_to: int) -> None:
    """Look at the earliest call whenever it would be late."""
    global _is_idle
    with _watched:
        while True:
            _watched.wait_for(lambda: _calls)
            ends_by_s, thread = _calls[0]
            if (left_s := ends_by_s - time.monotonic()) <= 0:
                break
            _is_idle = False
            faulthandler.dump_traceback_later(left_s + HELD_S, exit=True, file=report_to)
            _watched.wait(left_s)
            faulthandler.cancel_dump_traceback_later()
            _is_idle = True
        frame = sys._current_frames()[thread]
        while frame.f_back and frame.f_back.f_code.co_filename != __file__:
            frame = frame.f_back
        name = frame.f_code.co_name
        where = {"file": Path(frame.f_code.co_filename).name, "line": frame.f_lineno}
        late = json.dumps({"late_call": {**where, "function": CALLED.get(name, f"{name}()")}})
        os.write(report_to, f"\n{late}\n".encode())
        os._exit(1)


class OwnPart:
    """A class that a file defines.

    Parameters
    ----------
    path : path
        The file. It is run once, here.
    class_name, method : str
        It must define this class, with this method.
    form : str
        The method's parameters, for the message that it is missing.

    Attributes
    ----------
    made : type
        The class.
    place : str
        File and line of the method, as a message names them.

    Raises
    ------
    PartError
        The file cannot be read or run, or has no such class; with file and line.
    """

    def __init__(self, path: str | Path, class_name: str, method: str, form: str):
        self._path = Path(path).absolute()
        self.made = self.call(self._class, class_name, method, form)
        code = inspect.unwrap(getattr(self.made, method)).__code__
        is_own = code.co_filename == str(self._path)  # else it was imported, and its lines belong to another file
        self.place = self._at(code.co_firstlineno if is_own else None)

    def _class(self, class_name: str, method: str, form: str) -> type:
        """Run the file and return the class. Raises whatever the file raises."""
        path = self._path
        if not path.is_file():
            raise PartError(
                f"{path.name}: there is no such Python file; name the one that defines the class {class_name}. "
                f"{path} is no file."
            )
        loader = SourceFileLoader(f"own_{class_name}", str(path))
        spec = spec_from_loader(loader.name, loader)
        assert spec is not None
        module = sys.modules[loader.name] = module_from_spec(spec)
        source = loader.get_data(str(path))
        # Compiled anew each time: cached bytecode may be that of a text that was changed within the same second.
        exec(loader.source_to_code(source, str(path)), module.__dict__)
        kind = getattr(module, class_name, None)
        if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):  # the protocol, imported
            raise PartError(f"{path.name}: it defines no class {class_name}.")
        if not (hasattr(kind, method) and hasattr(inspect.unwrap(getattr(kind, method)), "__code__")):
            nodes = ast.walk(ast.parse(source))
            lines = [node.lineno for node in nodes if isinstance(node, ast.ClassDef) and node.name == class_name]
            where = self._at(lines[0] if lines else None)
            raise PartError(f"{where}: its class {class_name} has no method {method}({form}).")
        return kind

    def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """Call code of the file, and turn an error of it into a sentence with the line of the file where it arose.

        Every call of a learner's code comes through here: what it calls is what `end_late_calls` names.
        """
        try:
            with _ended_if_late():
                return function(*given)
        except PartError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, SyntaxError) and error.filename == str(self._path):
                raise PartError(f"{self._at(error.lineno)}: it is not Python ({error.msg}).") from error
            own = [row.lineno for row in traceback.extract_tb(error.__traceback__) if row.filename == str(self._path)]
            what = "it ends the process" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
            raise PartError(f"{self._at(own[-1] if own else None)}: {what.rstrip(': .')}.") from error

    def _at(self, line: int | None) -> str:
        return f"{self._path.name}, line {line}" if line else self._path.name


@contextlib.contextmanager
def _ended_if_late() -> Iterator[None]:
    """Let the watchdog, if there is one, see to it that the block takes no longer than LONGEST_S."""
    call = time.monotonic() + LONGEST_S, threading.get_ident()
    with _watched:
        _calls.append(call)
        if _is_idle and _report_to is not None:  # here, since the watchdog may never run again
            faulthandler.dump_traceback_later(LONGEST_S + HELD_S, exit=True, file=_report_to)
            _watched.notify()
    try:
        yield
    finally:
        with _watched:
            _calls.remove(call)
            # It has ended before the watchdog woke. Where there is no watchdog the timer is a check's own.
            if _is_idle and not _calls and _report_to is not None:
                faulthandler.cancel_dump_traceback_later()
