"""`inflight dataset`: prompts and answer lengths for benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from inflight import bench, checkpoint
from inflight.cli import terminal
from inflight.cli.terminal import console

if TYPE_CHECKING:
    from pandas import DataFrame

app = typer.Typer(no_args_is_help=True, help="Prompts and answer lengths for benchmarks.")


@app.command("show")
def dataset_show(
    path: Annotated[Path | None, typer.Argument(help="By default the dataset that ships with the course.")] = None,
) -> None:
    """Show how long the prompts and answers of a dataset are.

    Example: [bold]inflight dataset show[/]
    """
    path = path or bench.dataset.MINI_CNN_EVAL
    records = bench.dataset.read_dataset(path)
    _print_lengths(
        path, bench.dataset.length_table(records, checkpoint.load_tokenizer(terminal.cached_engine())), len(records)
    )


def _print_lengths(path: Path, lengths: DataFrame, num_records: int) -> None:
    table = Table("length", *lengths.columns)
    for measure, row in lengths.iterrows():
        table.add_row(measure, *map(str, row))
    console.print(f"{path}: {num_records} records", highlight=False, soft_wrap=True)
    console.print(table)
