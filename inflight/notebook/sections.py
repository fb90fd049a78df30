"""A section of a lecture that runs without those before it: after a kernel has died, or for who begins in the middle.

    catch_up("03", "Eight users at once")

It runs what the section needs of the earlier ones, the cells tagged `setup`, and nothing where that is there already;
but a server of theirs that was stopped is started again. A cell that is tagged `long` besides is run only for a section
that takes a name from it, itself or through other cells that are run for it.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import symtable
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from IPython import get_ipython
from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from inflight.errors import CourseError
from inflight.notebook import progress
from inflight.paths import COURSE
from inflight.triton.server import Server

if TYPE_CHECKING:
    from nbformat import NotebookNode

SETUP = frozenset({"setup", "parameters"})  # tags of cells that later sections need
LONG = "long"  # tag of those among them that only some later sections need, and that take more than a few seconds
IPYTHONS_OWN = {"get_ipython", "display"}


_under_way: list[str] = []  # the section that is caught up for


class Earlier(NamedTuple):
    """A code cell before a section, and the heading that it stands under; blank before the first."""

    heading: str
    cell: NotebookNode


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
    if _under_way:  # a cell that is run for a later section begins with this: what it needs has been run before it
        return
    needed = _needed(_lecture(number), heading)
    names = {name for one in needed for name in given(one.cell.source)}
    if names <= set(shell.user_ns):
        _start_again({value for name in names if isinstance(value := shell.user_ns[name], Server)})
        return
    _under_way.append(heading)
    try:
        _run(needed, heading, shell)
    finally:
        _under_way.clear()


def _run(needed: list[Earlier], heading: str, shell: InteractiveShell) -> None:
    with progress.wait(f"Catching up for {heading!r}", len(needed)) as line:
        for one in needed:
            line(f"from {one.heading!r}" if one.heading else "its first cells")
            with capture_output():
                ran = shell.run_cell(one.cell.source, store_history=False, silent=True)
            error = ran.error_before_exec or ran.error_in_exec
            if isinstance(error, KeyboardInterrupt):
                raise CourseError("Interrupted while earlier sections ran. Run this cell again.")
            if error is not None:
                raise CourseError(
                    f"Catching up failed in the cell of an earlier section that begins with "
                    f"{one.cell.source.strip().partition(chr(10))[0]!r}: {error}. Run the notebook from its first cell."
                )


def _start_again(servers: set[Server]) -> None:
    """Start those that do not run any more, as after `server.stop()`."""
    for server in servers:
        if not server.is_alive():
            with progress.wait("The server was stopped, and starts again"):
                server.start()


def _needed(notebook: NotebookNode, heading: str) -> list[Earlier]:
    """The cells that the section `heading` needs, in their order: of those tagged `setup` before it all but the long
    ones that give no name which the section takes, or another needed cell after them.

    Raises
    ------
    CourseError
        The lecture has no such section.
    """
    earlier, own = _around(notebook, heading)
    wanted, needed = _taken(own), list[Earlier]()
    for one in reversed(earlier):
        gives, takes = _names(one.cell.source)
        if not _is_long(one.cell) or gives & wanted:
            needed.insert(0, one)
            wanted = (wanted - gives) | takes
    return needed


def _around(notebook: NotebookNode, heading: str) -> tuple[list[Earlier], list[NotebookNode]]:
    """The cells tagged `setup` before a section, and the section's own code cells."""
    earlier = list[Earlier]()
    for title, cells in _sections(notebook, with_empty=True):
        if title == heading:
            return earlier, cells
        earlier += [Earlier(title, cell) for cell in cells if SETUP & _tags(cell)]
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
        which no cell that it can count on gives. A lecture without those tags and calls is read from the top: there
        every cell before a section counts.
    """
    cells = [cell for _, section in _sections(notebook) for cell in section]
    is_linear = not any(_tags(cell) & {"setup", LONG} or "catch_up(" in cell.source for cell in cells)
    base: set[str] = set()  # what cells tagged `setup` have given so far; `catch_up` runs a long one where it is taken
    for place, (heading, cells) in enumerate(_sections(notebook)):
        taken = _taken(cells)
        called = "".join(cells[0].source.split())
        if missing := taken - base:
            yield f"the section {heading!r} takes {', '.join(sorted(missing))} from a cell that is no `setup`"
        if not is_linear and place and taken and f'catch_up("{number}","{"".join(heading.split())}"' not in called:
            yield f"the section {heading!r} takes names from earlier ones and does not begin with catch_up"
        for cell in cells:
            if is_linear or SETUP & _tags(cell):
                base |= given(cell.source)
            if _is_long(cell) and not (SETUP & _tags(cell) and given(cell.source)):
                yield f"the section {heading!r} has a cell tagged `{LONG}` that is no `setup` or gives no name"


def _taken(cells: list[NotebookNode]) -> set[str]:
    """The names that the code cells of a section take from those before it."""
    own, taken = set[str](), set[str]()
    for cell in cells:
        gives, takes = _names(cell.source)
        taken |= takes - own
        own |= gives
    return taken


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def _is_long(cell: NotebookNode) -> bool:
    return LONG in _tags(cell)


def _sections(notebook: NotebookNode, with_empty: bool = False) -> list[tuple[str, list[NotebookNode]]]:
    """Heading and code cells of each section that has code; what stands before the first heading has a blank one.

    `with_empty` gives those without code, too.
    """
    found: list[tuple[str, list[NotebookNode]]] = [("", [])]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            found[-1][1].append(cell)
            continue
        found += [(row.removeprefix("## "), []) for row in cell.source.splitlines() if row.startswith("## ")]
    return [(heading, cells) for heading, cells in found if cells or with_empty]


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


def _lecture(number: str) -> NotebookNode | SimpleNamespace:
    """The cells of a lecture, as nbformat has them; to import that takes one to two seconds, and whoever runs waits."""
    paths = sorted((COURSE / "notebooks").glob(f"{number}_*.ipynb"))
    if not paths:
        raise CourseError(f"There is no lecture {number!r} to catch up with.")
    cells = json.loads(paths[0].read_text(encoding="utf-8"))["cells"]
    return SimpleNamespace(cells=[SimpleNamespace(**{**cell, "source": "".join(cell["source"])}) for cell in cells])
