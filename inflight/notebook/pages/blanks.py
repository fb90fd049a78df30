"""Lines that a reader writes: blank in a learner's copy of a lecture, with the course's own folded below.

In a lecture's source the course's lines stand under a comment:

    def gap_ms(times_s):
        # your line: the median time from one token to the next, in milliseconds
        return 1000 * statistics.median(np.diff(times_s))

They end at an empty line, at a line that is indented less, or with the cell. A learner's copy has `...` in their place,
and below it a folded cell. That cell uses the course's line where the learner's is blank, and says so; otherwise it
compares the results of both: of a value at once, of a function on the examples in its docstring (`>>> gap_ms([0, 1])`)
and at each call. In a file that `%%writefile` writes, only blank lines are filled in.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import functools
import inspect
import re
import reprlib
import textwrap
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inflight.errors import CourseError
from inflight.files import replace_text

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOR_CI = "remove-cell"  # the tag, which MyST-NB knows too, of a cell that neither a copy, a page nor slides have
MARK = "# your line"
BLANK = re.compile(r"^([ \t]*)(# your line\b.*\n)((?:(?!\1# your line\b)\1.*\S.*(?:\n|\Z))+)", re.M)
LEFT = re.compile(r"\s*(?:[\w, ]+ = |# )?\.\.\.\s*")  # lines as a copy has them
WRITES = re.compile(r"%%writefile(?: -a)? (\S+)\n")
FOLDED = {"jupyter": {"source_hidden": True}}
FORM = "A cell with a blank ends with it: with a function that has it, or with names that get a value at top level."
LONGEST_SHOWN = 6  # values
ABOUT = "# The course's line: click here to see it."


# From a lecture to a learner's copy -----------------------------------------------------------------------------------


def is_for_ci(cell: NotebookNode) -> bool:
    return FOR_CI in cell.metadata.get("tags", [])


def opened(cells: list[NotebookNode]) -> Iterator[NotebookNode]:
    """Return a lecture's cells as a learner gets them: without those for CI, and with blanks for the reader's lines.

    Raises
    ------
    CourseError
        A blank stands where it cannot be opened.
    """
    for cell in cells:
        if is_for_ci(cell):
            continue
        marked = cell.source.count(MARK) if cell.cell_type == "code" else 0
        if not marked:
            yield cell
            continue
        if marked > len(BLANK.findall(cell.source)):
            raise CourseError(
                f"A comment `{MARK}…` opens no blank. Write `{MARK}: …`, and a line of the course's below."
            )
        answer = _answer(cell.source)
        yield type(cell)({**cell, "source": _blanked(cell.source)})
        yield type(cell)({**cell, "id": f"{cell.id}-answer", "metadata": FOLDED, "source": f"{ABOUT}\n{answer}"})


def _blanked(source: str) -> str:
    """Return the source with `...` in place of the course's lines."""
    written = WRITES.match(source)
    is_python = written is None or written[1].endswith(".py")

    def blank(found: re.Match) -> str:
        indent, comment, lines = found.groups()
        names = ", ".join(_assigned(lines)) if is_python else ""
        empty = f"{names} = ..." if names else "..." if is_python else "# ..."
        return indent + comment + indent + empty + ("\n" if lines.endswith("\n") else "")

    return BLANK.sub(blank, source)


def _assigned(lines: str) -> list[str]:
    """List the names that these lines assign."""
    found: list[str] = []
    for statement in ast.parse(textwrap.dedent(lines)).body:
        for target in statement.targets if isinstance(statement, ast.Assign) else []:
            names = [
                node for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ]
            found += [name.id for name in names if name.id not in found]
    return found


def _answer(source: str) -> str:
    """Make the folded cell below a cell that ends with functions or values that are the reader's."""
    if written := WRITES.match(source):
        return _answer_in_file(written[1], source)
    lines, parts, covered = source.splitlines(), ["from inflight.notebook import blanks"], 0
    values = {source.count("\n", 0, found.start(3)) + 1: found[3] for found in BLANK.finditer(source) if not found[1]}
    for statement in ast.parse(source).body:
        code, names = "\n".join(lines[statement.lineno - 1 : statement.end_lineno]), []
        if statement.lineno <= covered:
            continue
        if statement.lineno in values:
            code = values[statement.lineno].rstrip("\n")
            covered = statement.lineno + code.count("\n")
            names = _assigned(code) if all(isinstance(one, ast.Assign) for one in ast.parse(code).body) else []
        elif isinstance(statement, ast.FunctionDef) and BLANK.search(code):
            names = [statement.name]
        elif len(parts) == 1:
            continue
        if not names:
            raise CourseError(f"`{code.splitlines()[0]}` comes after a blank, or gives no name a value. {FORM}")
        given = ", ".join(names)
        courses = f"({given})" if len(names) > 1 else given
        parts.append(f'yours = {given}\n{code}\n{given} = blanks.settle("{given}", yours, {courses})')
    if len(parts) == 1:
        raise CourseError(f"A blank stands inside of a loop, a class or a `with`. {FORM}")
    return "\n\n".join(parts)


def _answer_in_file(path: str, source: str) -> str:
    text = "\n".join(found[0].rstrip("\n") for found in BLANK.finditer(source))
    return f"from inflight.notebook import blanks\n\nblanks.fill(f\"{path}\", r'''\n{text}\n''')"


# What the folded cell does --------------------------------------------------------------------------------------------


def settle(name: str, yours: Any, courses: Any) -> Any:
    """Compare yours with the course's, print the result, and return the course's value or function.

    Parameters
    ----------
    name : str
        What is compared, as it stands in the cell.
    yours, courses : object
        Numbers, arrays or texts; or functions, which change nothing that they are given: each call then compares.
    """
    if _follows_an_error():
        print(f"{name}: the cell that ran before has an error, so nothing is compared, and the course's is used.")
        return courses
    if callable(courses):
        return _both(name, getattr(yours, "yours", yours), courses)
    if yours is ... or (isinstance(yours, tuple) and ... in yours):
        print(f"{name}: your line is blank, and the course's is used.")
    elif _same(yours, courses):
        print(f"{name}: your line and the course's give the same.")
    else:
        print(f"{name}: {_difference(yours, courses)}")
    return courses


def _follows_an_error() -> bool:
    """Whether the kernel's cell before this one failed: what a name has is then of an earlier cell, or the course's."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    before = shell.last_execution_result if shell else None
    return before is not None and not before.success


def _both(name: str, yours: Callable, courses: Callable) -> Callable:
    if _is_blank(yours):
        print(f"{name}: your line is blank, and the course's is used.")
        courses.yours = yours  # type: ignore[attr-defined]  # for the cell when it is run again
        return courses
    told: list[bool] = []  # whether the results were the same, at each call so far
    yes = f"{name}: yes, your line gives what the course's gives."
    is_trying = True  # the examples, which are all asked before a yes

    @functools.wraps(courses)
    def compared(*args: Any, **kwargs: Any) -> Any:
        right = courses(*args, **kwargs)
        if False in told:
            return right
        try:
            got = yours(*args, **kwargs)
        except Exception as error:  # a learner's line may raise anything
            got = error
        is_same = _same(got, right)
        if is_same and not told and not is_trying:
            print(yes)
        elif not is_same:
            given = ", ".join([*map(_shown, args), *(f"{key}={_shown(value)}" for key, value in kwargs.items())])
            after_yes = "but here " if told and not is_trying else ""
            print(f"{name}({given}): {after_yes}{_difference(got, right)}")
        told.append(is_same)
        return right

    compared.yours = yours  # type: ignore[attr-defined]
    for example in doctest.DocTestParser().get_examples(courses.__doc__ or ""):
        eval(example.source, courses.__globals__ | {name: compared})
    is_trying = False
    if not told:
        print(f"{name}: your line is compared with the course's when a cell below calls it.")
    elif False not in told:
        print(yes)
    return compared


def _is_blank(function: Callable) -> bool:
    try:
        return any(LEFT.fullmatch(found[3]) for found in BLANK.finditer(inspect.getsource(function)))
    except OSError:  # its cell is not known any more
        return False


def fill(path: str, answers: str) -> None:
    """Put the course's lines where the last ones of a written file are blank; print whether any were.

    Parameters
    ----------
    answers : str
        Each comment with its lines, in the order of the file.
    """
    file, wanted = Path(path), list(BLANK.finditer(answers))
    text = file.read_text(encoding="utf-8")
    left = [
        (found.span(3), right[3])
        for found, right in zip(list(BLANK.finditer(text))[-len(wanted) :], wanted)
        if found[2] == right[2] and LEFT.fullmatch(found[3])
    ]
    for (begin, end), lines in reversed(left):
        text = text[:begin] + lines + text[end:]
    if left:
        replace_text(file, text)
        print(f"{file.name}: your line is blank, and the course's is used.")
    else:
        print(f"{file.name}: your line is in it; what follows shows whether it does what it should.")


def _same(got: Any, right: Any) -> bool:
    got = float(got) if isinstance(got, Fraction | Decimal) else got
    try:
        return np.shape(got) == np.shape(right) and bool(np.all(np.isclose(got, right, rtol=1e-6, equal_nan=True)))
    except (TypeError, ValueError):  # no numbers
        return type(got) is type(right) and bool(np.all(got == right))


def _difference(got: Any, right: Any) -> str:
    """Say what yours gives and what the course's does; of two that are long, where they first differ."""
    if all(hasattr(each, "columns") for each in (got, right)) and list(got) == list(right) and len(got) == len(right):
        column = next((name for name in right if not _same(got[name].to_numpy(), right[name].to_numpy())), None)
        if column is not None:
            return f"{column}: {_difference(got[column].tolist(), right[column].tolist())}"
    if all(isinstance(each, list | tuple | np.ndarray) and np.ndim(each) for each in (got, right)):
        same = next((n for n, pair in enumerate(zip(got, right)) if not _same(*pair)), min(len(got), len(right)))
        if max(len(got), len(right)) > LONGEST_SHOWN:
            counts = f"yours gives {len(got):,} values, the course's {len(right):,}"
            if same == min(len(got), len(right)):
                return f"{counts}; the first {same:,} are the same. The course's are used."
            return f"{counts}; [{same}] differs, {_shown(got[same])} and {_shown(right[same])}. The course's are used."
    return f"yours gives {_shown(got)}, the course's {_shown(right)}, which is used."


def _shown(value: Any) -> str:
    if isinstance(value, Exception):
        return f"{type(value).__name__} ({value})"
    if hasattr(value, "columns"):
        return f"a table of {len(value)} rows"
    if isinstance(value, float | np.floating):
        return f"{value:,.6g}"
    if isinstance(value, bool | np.bool_):  # a bool is an int, and would be a 0 or 1
        return str(value)
    return f"{value:,}" if isinstance(value, int | np.integer) else reprlib.repr(value)
