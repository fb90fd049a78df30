"""`inflight gpt2`: prompts that compete for a GPT-2 behind Triton."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from inflight import bench, models, triton
from inflight.cli import terminal
from inflight.cli.terminal import console, progress_console
from inflight.errors import CourseError
from inflight.triton.repository.layout import GPT2

if TYPE_CHECKING:
    from pandas import DataFrame

    from inflight.triton import Server

GPT2_CHECKPOINT = typer.Option(help="course-gpt2, gpt2, a Hugging Face folder, or owner/name of its hub.")

app = typer.Typer(no_args_is_help=True, help="GPT-2 served by Triton: whole batches, and a token at a time.")


@app.command("race")
def gpt2_race_command(
    models: Annotated[list[str], typer.Argument(help=f"{' or '.join(GPT2)}, or both: one race each.")],
    streams: Annotated[int, typer.Option(help="Prompts that race.")] = 2,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    offset_s: Annotated[float, typer.Option(help="Seconds between the starts of two streams.")] = 0.1,
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt per stream: give it several times.")] = None,
    checkpoint: Annotated[str, GPT2_CHECKPOINT] = "course-gpt2",
    url: Annotated[str | None, typer.Option(help="host:port (gRPC); by default a server is started.")] = None,
) -> None:
    """Send prompts that compete for one GPT-2 model, and watch their tokens come.

    Example: [bold]inflight gpt2 race simple-gpt2 iterative-gpt2[/]
    """
    prompts = bench.gpt2_client.prompts(streams, prompt or bench.gpt2_client.PROMPTS)
    with contextlib.ExitStack() as stack:
        url = url or stack.enter_context(_gpt2_server(models, checkpoint)).grpc_url
        for model in models:
            raced = _race(url, model, prompts, tokens, offset_s)
            _print_race(model, prompts, raced)
            if len(raced) < streams * tokens:
                terminal.finish(f"The race was interrupted after {len(raced)} of {streams * tokens} tokens.")


def _race(url: str, model: str, prompts: list[str], tokens: int, offset_s: float) -> DataFrame:
    """Show a race with a bar for each stream, where there is a terminal; after Ctrl-C or SIGTERM, its tokens so far."""
    came = []
    racing = bench.gpt2_client.race(url, model, prompts, tokens, offset_s)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total} tokens"))
    terminal.tell(f"{model}: {len(prompts)} streams race")
    with (
        contextlib.closing(racing),
        Progress(*columns, console=progress_console, disable=not progress_console.is_terminal) as shown,
    ):
        bars = [shown.add_task(f"{model}, stream {number}", total=tokens) for number in range(1, len(prompts) + 1)]
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            for arrived in racing:
                came += arrived
                for token in arrived:
                    shown.update(bars[token.stream - 1], completed=token.token)
    return bench.gpt2_client.table(came)


@contextlib.contextmanager
def _gpt2_server(names: list[str], checkpoint: str) -> Iterator[Server]:
    """Start a server of GPT-2 models for this race."""
    for name in names:
        if name not in GPT2:
            raise CourseError(
                f"The server for the occasion has no {name!r}: name {' or '.join(GPT2)}, or a "
                "running server with --url."
            )
    with terminal.progress(f"Preparing the checkpoint {checkpoint}"):
        folder = models.gpt2_checkpoint.find(checkpoint)
    with TemporaryDirectory(prefix="inflight-gpt2-") as scratch:
        repo = triton.repository.assemble(
            Path(scratch) / "repository", Path(scratch), tuple(dict.fromkeys(names)), gpt2_checkpoint_dir=folder
        )
        with terminal.server(repo) as server:
            yield server


def _print_race(model: str, prompts: list[str], tokens: DataFrame) -> None:
    console.print(f"[bold]{escape(model)}[/]  {bench.gpt2_client.summary(tokens)}", highlight=False, soft_wrap=True)
    for row in bench.gpt2_client.standings(tokens).itertuples():
        prompt = escape(prompts[row.stream - 1])
        console.print(f"  [bold]{row.stream}[/] {prompt}[bold]{escape(row.text)}[/]", highlight=False, soft_wrap=True)
