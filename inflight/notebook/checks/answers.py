"""Reads a learner's answer: whether there is one, its plain Python form, and a sentence for an error in it."""

from __future__ import annotations

import contextlib
import functools
import math
import reprlib
import runpy
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, ValuesView
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from inflight.errors import CourseError

LONGEST_CALL_S = 20  # of a learner's function that is called here, in the notebook's kernel


class _LateError(BaseException):
    """A call takes too long. No Exception: a loop that tries again would go on."""


def is_untouched(answer: object) -> bool:
    """Say whether `answer` is None or `...`, or a list, tuple or dict of nothing but these."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return bool(answer) and all(map(is_untouched, answer))
    return answer is None or answer is ...


def names_a_file(answer: object) -> bool:
    """Say whether `answer` is the path of a Python file, or holds one."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return any(map(names_a_file, answer))
    return isinstance(answer, str | Path) and str(answer).endswith(".py")


def plain(answer: Any) -> Any:
    """Return an answer as plain Python values, so that a right one counts in whatever form it is given.

    Numbers of NumPy, fractions and decimals are Python's numbers, a float that is whole is an int; arrays, Series,
    tuples, ranges and iterators are lists, a Series that is labelled by strings is a dict. Within one of these `...`,
    NaN and pandas' NA are None. A function gives what it returns in these terms, and may take LONGEST_CALL_S. Anything
    else stays what it is.
    """
    if isinstance(answer, dict):
        return {key: _item(each) for key, each in answer.items()}
    # NumPy and pandas are told by what they offer: a browser has neither.
    if hasattr(answer, "tolist"):
        if getattr(getattr(answer, "index", None), "inferred_type", "") == "string":
            return plain(answer.to_dict())
        answer = answer.tolist()
    if type(answer) in (list, tuple) or isinstance(answer, Iterator | range | ValuesView):
        return [_item(each) for each in answer]
    if isinstance(answer, Fraction | Decimal):
        answer = float(answer)
    if isinstance(answer, float) and answer.is_integer():
        return int(answer)
    if callable(answer) and not isinstance(answer, type):
        return _in_plain_terms(answer)
    return None if answer is ... else answer


def _item(value: Any) -> Any:
    value = plain(value)
    is_missing = type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value))
    return None if is_missing else value


def _in_plain_terms(function: Callable) -> Callable:
    """Wrap a function: it returns what `plain` makes of its results, and an error names the call and the line.

    After a call that had not ended it is not called again.
    """
    too_late: list[CourseError] = []

    @functools.wraps(function)
    def called(*arguments, **options):
        if too_late:
            raise too_late[0]
        try:
            with _ended_after(LONGEST_CALL_S):
                return plain(function(*arguments, **options))
        except (Exception, _LateError) as error:
            own = getattr(getattr(function, "__code__", None), "co_filename", None)
            lines = [row.line for row in traceback.extract_tb(error.__traceback__) if row.filename == own and row.line]
            where = f", in the line `{lines[-1]}`" if lines else ""
            if isinstance(error, _LateError):
                late = f"{call(function, *arguments)} had not ended after {LONGEST_CALL_S:g} s{where}."
                too_late.append(CourseError(f"{late} Is there a loop that does not end?"))
                raise too_late[0] from None
            error.add_note(f" That was for {call(function, *arguments)}{where}.")
            raise

    return called


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise _LateError in the block after so many seconds, and again each second; in the main thread only.

    A browser has no such timer, and ends a loop by its own means.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def raise_it(*_: object) -> None:
        raise _LateError

    handler = signal.signal(signal.SIGALRM, raise_it)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def call(function: Callable, *arguments: object) -> str:
    """Describe a call for a sentence, such as "wasted(a table of 12 rows, 4)"."""
    name = getattr(function, "__name__", "<lambda>").replace("<lambda>", "your function")
    return f"{name}({', '.join(map(brief, arguments))})"


_brief = reprlib.Repr()
_brief.maxlist = _brief.maxdict = _brief.maxtuple = 12
_brief.maxstring = _brief.maxother = 80


def brief(value: Any) -> str:
    """Describe a value for a sentence, in few words however large it is."""
    if type(value).__name__ == "DataFrame":
        return f"a table of {len(value)} rows"
    return repr(value.name) if isinstance(value, Path) else _brief.repr(value)


def as_json(value: object) -> object:
    """Convert for `json.dumps`: NumPy numbers to Python's, a server to its addresses and repository, others to text."""
    if hasattr(value, "grpc_url"):
        return {name: str(getattr(value, name)) for name in ("grpc_url", "http_url", "repo")}
    return value.tolist() if hasattr(value, "tolist") else str(value)


def load(path: str | Path, *names: str) -> SimpleNamespace:
    """Return what a learner's file defines. Raises its errors, and CourseError where one of `names` is missing."""
    defined = runpy.run_path(str(path))
    for name in names:
        if name not in defined:
            raise CourseError(f"{Path(path).name}: it defines no {name}.")
    return SimpleNamespace(**defined)


def what_failed(error: BaseException, path: str | Path = "") -> str:
    """Tell an error of a learner's code in a sentence, with the line of `path`, the learner's file, where it arose.

    A CourseError is a sentence already.
    """
    notes = "".join(getattr(error, "__notes__", []))
    if isinstance(error, CourseError):
        return f"{error}{notes}"
    name, path = Path(path).name, str(path)
    lines = [row.lineno for row in traceback.extract_tb(error.__traceback__) if path and row.filename == path]
    what = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, what = [error.lineno], error.msg
    if isinstance(error, TypeError | AttributeError | IndexError | KeyError) and not (lines or notes):
        fault = f"{type(error).__name__}: {what}".rstrip(".")
        return f"{name or 'Your answer'} does not fit what the exercise asks for ({fault})."
    where = f"{name}, line {lines[-1]}" if lines else name or "Your answer could not be checked"
    said = f"{where}: {type(error).__name__}: {what}".removesuffix(": ")
    return f"{said}{'' if said[-1] in '.?!' else '.'}{notes}"


def late(where: str, within_s: float) -> str:
    """Say that a learner's file had not ended in time."""
    ended = f"it had not ended after {within_s:g} s"
    return f"{where}: {ended}. Is there a loop that does not end, or a wait for what never comes?"
