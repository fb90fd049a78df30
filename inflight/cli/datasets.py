"""`inflight dataset`: prompts and answer lengths for benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from inflight import bench, checkpoint
from inflight.cli import terminal
from inflight.cli.terminal import console
from inflight.errors import CourseError

if TYPE_CHECKING:
    from pandas import DataFrame

app = typer.Typer(no_args_is_help=True, help="Prompts and answer lengths for benchmarks.")


@app.command("cnn")
def dataset_cnn(
    path: Annotated[Path, typer.Argument(help="Your copy of cnn_eval.json.")],
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("mini_cnn_eval.json"),
    limit: Annotated[int, typer.Option(help="How many records to take, from the first.")] = 100,
    max_input_len: Annotated[int | None, typer.Option(help="Drop records whose prompt has more tokens.")] = None,
) -> None:
    """Take the first records of the real CNN/DailyMail evaluation file, in MLPerf's layout.

    Example: [bold]inflight dataset cnn cnn_eval.json --output mini.json --max-input-len 1024[/]
    """
    if output.exists() and path.exists() and output.samefile(path):
        raise CourseError(f"{output} is the dataset itself: name another file with --output, so that nothing is lost.")
    tokenizer = checkpoint.load_tokenizer(terminal.cached_engine())
    records = bench.dataset.read_dataset(path)
    kept = bench.dataset.fitting(records, tokenizer, max_input_len, limit)
    _print_lengths(bench.dataset.write_dataset(kept, output), bench.dataset.length_table(kept, tokenizer), len(kept))
    if num_dropped := len(records[:limit]) - len(kept):
        console.print(
            f"{num_dropped} more had a prompt of over {max_input_len} tokens and were left out.", highlight=False
        )


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
