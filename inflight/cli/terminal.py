"""What every subcommand of `inflight` shares: two consoles, and the course's engine and a server with their progress shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from inflight import engine
from inflight.checkpoint.sources import DEFAULT, Checkpoint
from inflight.triton.server import Server

console = Console()
progress_console = Console(stderr=True)  # so that what a command prints can be piped

ENGINE_DIR = typer.Option(help="Engine folder; by default one of the course's model, built once and kept in the cache.")


def fetch(source: str) -> Checkpoint:
    """`checkpoint.fetch` with a progress bar."""
    from inflight import checkpoint

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task("downloading", total=None, visible=False)
        return checkpoint.fetch(source, lambda done, total: bar.update(task, completed=done, total=total, visible=True))


def cached_engine() -> Path:
    """The engine of the course's model, fetched and built if it is not there yet."""
    source = fetch(DEFAULT)
    with progress_console.status("Preparing the engine (built once, then kept)"):
        return engine.cached(source)


@contextlib.contextmanager
def server(repo: Path, **ports) -> Iterator[Server]:
    """A server of `repo`, its models' states shown while it starts."""
    with progress_console.status("Starting Triton") as status:
        running = Server(
            repo, **ports, on_state=lambda row: status.update(f"Starting Triton: {row.name} {row.state}")
        ).start()
    try:
        yield running
    finally:
        running.stop()
