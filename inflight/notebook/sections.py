"""A section of a lecture that runs without those before it: after a kernel has died, or for who begins in the middle.

    catch_up("03", "Eight users at once")

It runs what the section needs of the earlier ones, the cells tagged `setup`, and nothing where that is there already;
but a server of theirs that was stopped is started again.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator

import nbformat
from IPython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager
from IPython.utils.capture import capture_output
from nbformat import NotebookNode

from inflight.errors import CourseError
from inflight.notebook import progress
from inflight.paths import COURSE
from inflight.triton.server import Server

SETUP = frozenset({"setup", "parameters"})  # tags of cells that later sections need
IPYTHONS_OWN = {"get_ipython", "display"}


def catch_up(number: str, heading: str) -> None:
    """Run what the section `heading` of lecture `number` needs of those before it, unless this kernel has it.

    Of their servers, those that have been stopped since are started again.

    Parameters
    ----------
    number : str
        The lecture's, as "03".
    heading : str
        The section's, as it stands in the lecture.

    Raises
    ------
    CourseError
        There is no such lecture or section, a cell fails, or a server does not start.
    """
    shell = get_ipython()
    if shell is None:
        raise CourseError("catch_up belongs into a notebook: outside of one there is nothing to catch up with.")
    cells = before(_lecture(number), heading)
    needed = {name for cell in cells for name in given(cell.source)}
    if needed <= set(shell.user_ns):
        _start_again({value for name in needed if isinstance(value := shell.user_ns[name], Server)})
        return
    with progress.wait("Catching up with the sections before this one", len(cells)) as line:
        for cell in cells:
            line(cell.source.strip().partition("\n")[0])
            with capture_output():
                ran = shell.run_cell(cell.source, store_history=False, silent=True)
            error = ran.error_before_exec or ran.error_in_exec
            if error is not None:
                raise CourseError(
                    f"Catching up failed in the cell of an earlier section that begins with "
                    f"{cell.source.strip().partition(chr(10))[0]!r}: {error}. Run the notebook from its first cell."
                )


def _start_again(servers: set[Server]) -> None:
    """Start those that do not run any more, as after *Stop now* in a lecture's last cell."""
    for server in servers:
        if not server.is_alive():
            with progress.wait("The server was stopped, and starts again"):
                server.start()


def before(notebook: NotebookNode, heading: str) -> list[NotebookNode]:
    """The cells of a lecture that the section `heading` needs: those tagged `setup` in the sections before it.

    Raises
    ------
    CourseError
        The lecture has no such section.
    """
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and f"## {heading}" in cell.source.splitlines():
            return found
        if cell.cell_type == "code" and SETUP & set(cell.metadata.get("tags", [])):
            found.append(cell)
    raise CourseError(f"There is no section {heading!r} in this lecture; take the heading as it stands there.")


def given(source: str) -> set[str]:
    """The names that a cell gives to those after it; that of an `except … as` is gone after its block."""
    tree = ast.parse(TransformerManager().transform_cell(source))
    handled = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    return _names(source)[0] - handled


def unmet(notebook: NotebookNode, number: str) -> Iterator[str]:
    """What keeps sections of a lecture from running after those cells alone that `catch_up` runs.

    Yields
    ------
    str
        A sentence for each section that takes names from earlier ones and does not catch up, or that takes a name
        which no cell that it can count on gives.
    """
    base: set[str] = set()  # what cells tagged `setup` have given so far
    for place, (heading, cells) in enumerate(_sections(notebook)):
        own, taken = set[str](), set[str]()
        for cell in cells:
            gives, takes = _names(cell.source)
            taken |= takes - own
            own |= gives
        called = "".join(cells[0].source.split())
        if missing := taken - base:
            yield f"the section {heading!r} takes {', '.join(sorted(missing))} from a cell that is no `setup`"
        if place and taken and f'catch_up("{number}","{"".join(heading.split())}"' not in called:
            yield f"the section {heading!r} takes names from earlier ones and does not begin with catch_up"
        for cell in cells:
            if SETUP & set(cell.metadata.get("tags", [])):
                base |= given(cell.source)


def _sections(notebook: NotebookNode) -> list[tuple[str, list[NotebookNode]]]:
    """Heading and code cells of each section that has code; what stands before the first heading has a blank one."""
    found: list[tuple[str, list[NotebookNode]]] = [("", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found[-1][1].append(cell)
            continue
        found += [(row.removeprefix("## "), []) for row in cell.source.splitlines() if row.startswith("## ")]
    return [(heading, cells) for heading, cells in found if cells]


def _names(source: str) -> tuple[set[str], set[str]]:
    """Names that a cell gives at its top level; and names that it takes, and neither gives nor finds in Python."""
    table = symtable.symtable(TransformerManager().transform_cell(source), "cell", "exec")
    gives = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    takes = {name for each in _tables(table) for name in _from_outside(each)}
    in_magics = set(re.findall(r"^%.*?\{(\w+)", source, re.M))  # {name} is filled in by IPython
    return gives, (takes | in_magics) - gives - set(dir(builtins)) - IPYTHONS_OWN


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _from_outside(table: symtable.SymbolTable) -> Iterator[str]:
    is_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()


def _lecture(number: str) -> NotebookNode:
    paths = sorted((COURSE / "notebooks").glob(f"{number}_*.ipynb"))
    if not paths:
        raise CourseError(f"There is no lecture {number!r} to catch up with.")
    return nbformat.read(paths[0], as_version=4)
