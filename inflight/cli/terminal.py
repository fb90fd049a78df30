"""Shared by all subcommands of `inflight`: two consoles, long steps with their progress shown, and how a command ends.

The command line names rooms and takes from them when a command runs: `inflight --help` waits for none of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inflight import checkpoint, engine, triton
from inflight.cli import ended
from inflight.errors import CourseError

if TYPE_CHECKING:
    from inflight.triton import Server

LINE_EVERY_S = 5.0  # where there is no terminal to draw a bar in

console = Console()
progress_console = Console(stderr=True)  # so that what a command prints can be piped

ENGINE_DIR = typer.Option(help="Engine folder; by default the course's, built once and kept.")
SET = typer.Option("--set", metavar="NAME=VALUE", help="A value for a template; may be given several times.")


# How a command ends ---------------------------------------------------------------------------------------------------


def finish(stopped: str = "") -> None:
    """After the results: end as a signal asked to, or with a CourseError when there is something that stopped them."""
    if ended:
        if stopped:
            tell(stopped)
        raise ended[0]
    if stopped:
        raise CourseError(stopped)


# What a command tells -------------------------------------------------------------------------------------------------


def show(rows: Sequence[Mapping[str, object]], title: str = "", whole_names: bool = False) -> None:
    """Print rows as a table; nothing where there are none.

    What is too long for a narrow terminal goes on in the next line of its cell; in the first column not with
    `whole_names`.
    """
    if not rows:
        return
    if title:
        console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
    table = Table(*rows[0])
    table.columns[0].no_wrap = whole_names
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row.values()))
    console.print(table)


def tell(sentence: str) -> None:
    """Say a sentence beside what a command prints."""
    progress_console.print(sentence, highlight=False, soft_wrap=True, markup=False)


@contextlib.contextmanager
def progress(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows what runs, and how much of all is done; until it is called, `first` is shown.

    In a terminal as a bar; elsewhere as a line for each step, and one every few seconds of a step.
    """
    if not progress_console.is_terminal:
        lines = _Lines()
        lines(first, 0, 1)
        yield lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


class _Lines:
    """Shows progress as lines."""

    def __init__(self) -> None:
        self._what, self._told_at = "", 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if what != self._what or time.monotonic() - self._told_at >= LINE_EVERY_S:
            self._what, self._told_at = what, time.monotonic()
            tell(f"{what} ({done} of {total})" if done else what)


def values(pairs: list[str] | None) -> dict[str, Any]:
    """Read the options `--set NAME=VALUE`, of which there may be several."""
    found = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CourseError(f"--set {pair}: write it as NAME=VALUE, such as --set decoupled_mode=true.")
        found[name] = value
    return found


def cached_engine() -> Path:
    """Return the engine of the course's model, built if it is not there yet."""
    source = checkpoint.fetch()
    with progress("Preparing the engine (built once, then kept)"):
        return engine.cached(source)


# Servers --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(repo: Path, **options) -> Iterator[Server]:
    """Start a server of `repo`, and show what it loads meanwhile. Options as of `Server`."""
    with progress(f"Starting Triton with {', '.join(triton.repository.models(repo))}"):
        running = triton.Server(repo, **options).start()
    try:
        yield running
    finally:
        running.stop()


def keep_serving(server: Server, notes: str) -> None:
    """Show the states of a server's models, and `notes`; return never, but by a signal.

    Raises
    ------
    CourseError
        The server has died; the message says of what.
    """
    show([dataclasses.asdict(model) for model in server.models()])
    console.print(notes, highlight=False)
    server.wait()
