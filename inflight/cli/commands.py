"""The `inflight` command: every subcommand calls one part of the package, and shows what it gives."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from inflight import checkpoint as checkpoints
from inflight import engine, models, openai, syllabus, triton
from inflight.checkpoint.sources import DEFAULT
from inflight.cli import bench, progress, terminal
from inflight.cli.terminal import ENGINE_DIR, SET, console
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.triton.repository.layout import BASELINE, BLS, DEFAULT_CONTRACT, LLMAPI, OLDEST_CONTRACT, PIPELINE

NONE = "none"  # on the command line, for None

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="The course on serving LLMs with Triton, from the command line.",
)

WITH_BASELINE = typer.Option("--with-llama-python", help="Add the baseline without an engine.")
WITH_BLS = typer.Option("--with-bls", help=f"The ensemble as {BLS}, too.")
CONTRACT = typer.Option(
    help=f"Whose clients the tensors are for: {DEFAULT_CONTRACT}, of TensorRT-LLM 0.9 to 0.19; {LLMAPI}, of its model "
    f"of today; {OLDEST_CONTRACT}, of the first workshops."
)


def _build_option(name: str) -> Any:
    """Make the option of an engine's setting, with the help that stands where the setting is declared."""
    [setting] = [setting for setting in dataclasses.fields(BuildConfig) if setting.name == name]
    return typer.Option(help=setting.metadata["help"])


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
        facts = {"checks": [dataclasses.asdict(row) for row in rows], "machine": machine.describe()}
        print(json.dumps(facts, indent=2))
    else:
        _print_checks(rows)
    if any(row.required and not row.ok for row in rows):
        raise typer.Exit(1)


def _print_checks(rows: list) -> None:
    # Without lines between its columns, which a narrow terminal has no room for; nothing in it is cut off.
    table = Table(
        title="inflight doctor", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for name in ("", "", "needed", "here"):
        table.add_column(name, overflow="fold")
    for row in rows:
        mark = {"ok": "[green]ok[/]", "no": "[red]no[/]", "-": "[yellow]-[/]"}[row.mark]
        here = escape(row.have) + (f"\n[bold]fix:[/] {escape(row.fix)}" if row.fix else "")
        table.add_row(mark, row.name, escape(row.need), here)
    console.print(table)
    if any(row.mark == "-" for row in rows):
        console.print("- works as it is; its fix says what would be better.")


# Engine and repository ------------------------------------------------------------------------------------------------


@app.command()
def build(
    checkpoint: Annotated[str, typer.Option(help="Name, Hugging Face id, GGUF file or folder.")] = DEFAULT,
    output_dir: Annotated[Path, typer.Option(help="Folder to make.")] = Path("engine"),
    max_batch_size: Annotated[int, _build_option("max_batch_size")] = BuildConfig.max_batch_size,
    max_input_len: Annotated[int, _build_option("max_input_len")] = BuildConfig.max_input_len,
    max_seq_len: Annotated[int, _build_option("max_seq_len")] = BuildConfig.max_seq_len,
    max_num_tokens: Annotated[int, _build_option("max_num_tokens")] = BuildConfig.max_num_tokens,
    tokens_per_block: Annotated[int, _build_option("tokens_per_block")] = BuildConfig.tokens_per_block,
    dtype: Annotated[str, _build_option("dtype")] = BuildConfig.dtype,
    quant_algo: Annotated[str, _build_option("quant_algo")] = BuildConfig.quant_algo or NONE,
    kv_cache_quant_algo: Annotated[str, _build_option("kv_cache_quant_algo")] = BuildConfig.kv_cache_quant_algo or NONE,
    tier: Annotated[
        str | None, typer.Option(help="cpu (OpenVINO) or cuda (PyTorch); by default the one for this machine.")
    ] = None,
) -> None:
    """Build an engine from a checkpoint.

    Example: [bold]inflight build --output-dir engine --max-batch-size 16[/]
    """
    config = BuildConfig(
        max_batch_size=max_batch_size,
        max_input_len=max_input_len,
        max_seq_len=max_seq_len,
        max_num_tokens=max_num_tokens,
        tokens_per_block=tokens_per_block,
        dtype=dtype,
        quant_algo=_none(quant_algo),
        kv_cache_quant_algo=_none(kv_cache_quant_algo),
    )
    source = checkpoints.fetch(checkpoint)
    with terminal.progress(f"Building an engine from {source.name}"):
        started = time.perf_counter()
        folder = engine.build(source, config, output_dir, tier)
        seconds = time.perf_counter() - started
    files = [{"file": file.name, "MB": f"{file.stat().st_size / 1e6:.1f}"} for file in sorted(folder.iterdir())]
    terminal.show(files, f"{folder} ({seconds:.1f} s)")


@app.command()
def assemble(
    target: Annotated[Path, typer.Argument(help="Folder to make.")] = Path("model_repository"),
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    values: Annotated[list[str] | None, SET] = None,
    with_llama_python: Annotated[bool, WITH_BASELINE] = False,
    with_bls: Annotated[bool, WITH_BLS] = False,
    contract: Annotated[str, CONTRACT] = DEFAULT_CONTRACT,
) -> None:
    """Make a model repository from the templates.

    Example: [bold]inflight assemble model_repository --engine-dir engine --set decoupled_mode=true[/]
    """
    repo = _assemble(target, engine_dir, values, with_llama_python, contract, with_bls)
    tree = Tree(str(repo))
    for model in triton.repository.models(repo):
        branch = tree.add(model)
        for file in sorted(path for path in (repo / model).rglob("*") if path.is_file()):
            branch.add(str(file.relative_to(repo / model)))
    console.print(tree)


# Server ---------------------------------------------------------------------------------------------------------------


@app.command()
def serve(
    repo: Annotated[
        Path | None, typer.Argument(help="Model repository; by default one with the course's model.")
    ] = None,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    values: Annotated[list[str] | None, SET] = None,
    with_llama_python: Annotated[bool, WITH_BASELINE] = False,
    with_bls: Annotated[bool, WITH_BLS] = False,
    contract: Annotated[
        str | None, typer.Option(help=f"As of inflight assemble; by default {DEFAULT_CONTRACT}.")
    ] = None,
    http_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="By default a free one.")] = None,
    open_control: Annotated[
        bool, typer.Option("--open-control", help="No key: any user here can run code as you.")
    ] = False,
    openai_port: Annotated[
        int | None, typer.Option(help="OpenAI's protocol, too; sets decoupled_mode.", min=0, max=65535)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Of the OpenAI port; another takes a key.", show_default=False)
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(help="Of the OpenAI port; or INFLIGHT_API_KEY.", envvar="INFLIGHT_API_KEY", show_envvar=False),
    ] = None,
) -> None:
    """Run a model repository on 127.0.0.1 until Ctrl-C; a second Ctrl-C does not wait for running requests.

    Example: [bold]inflight serve --http-port 8000 --grpc-port 8001[/]
    """
    if openai_port is None and host != "127.0.0.1":
        raise CourseError(
            "--host is of the OpenAI port, and Triton's own ports stay on this machine: add --openai-port."
        )
    if repo is not None and (engine_dir or values or with_llama_python or with_bls or contract):
        raise CourseError(
            "A repository that exists is served as it is: leave out --engine-dir, --set, --contract, --with-bls and "
            "--with-llama-python, or the repository."
        )
    if openai_port is not None:
        values = [*(values or []), "decoupled_mode=true"] if repo is None else values
    with TemporaryDirectory(prefix="inflight-serve-") as scratch, contextlib.ExitStack() as running:
        repo = repo or _assemble(
            Path(scratch) / "repository", engine_dir, values, with_llama_python, contract or DEFAULT_CONTRACT, with_bls
        )
        ports = {"http_port": http_port, "grpc_port": grpc_port, "metrics_port": metrics_port}
        server = running.enter_context(terminal.server(repo, open_control=open_control, **ports))
        addresses = f"HTTP     {server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}\n"
        if openai_port is not None:  # which ends before Triton does: that would wait for its streams
            config = triton.repository.read_config(server.repo / "tensorrt_llm" / triton.repository.CONFIG)
            folder = triton.repository.get_parameter(config, "gpt_model_path")
            door = openai.OpenAIServer(server.grpc_url, folder, openai_port, api_key, host)
            addresses += f"OpenAI   {running.enter_context(door).url}\n"
        terminal.keep_serving(server, f"{addresses}{_who_may(server)}\nCtrl-C stops the server.")


def _who_may(server: triton.Server) -> str:
    if server.open_control:
        return "control  open: any user of this machine can load models, and so run code as you"
    [[header, key], *_] = server.headers.items()
    return f"control  takes a key: curl -H '{header}: {key}'"


@app.command()
def ask(
    text: Annotated[str, typer.Argument(help="What to ask.")],
    stream: Annotated[bool, typer.Option("--stream", help="Show the answer as it is made.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of the answer.")] = 128,
    model: Annotated[str, typer.Option(help=f"The text model to ask: ensemble, {BASELINE}.")] = "ensemble",
    url: Annotated[
        str | None, typer.Option(help="host:port of gRPC, or http://host:port; by default a server is started.")
    ] = None,
) -> None:
    """Ask a running server, or one that is started for this question.

    Example: [bold]inflight ask "Name the capital of France."[/]
    """
    if url is not None:
        return _ask(url, model, text, max_tokens, stream)
    with TemporaryDirectory(prefix="inflight-ask-") as scratch:
        repo = _assemble(
            Path(scratch) / "repository", None, [f"decoupled_mode={str(stream).lower()}"], model == BASELINE
        )
        with terminal.server(repo) as server:
            _ask(server.grpc_url, model, text, max_tokens, stream)


def _ask(url: str, model: str, text: str, max_tokens: int, stream: bool) -> None:
    with triton.Client(url, model) as client:
        pieces = client.stream(text, max_tokens) if stream else client.ask(text, max_tokens).pieces
        for piece in pieces:
            print(piece, end="", flush=True)
    print()


# Course --------------------------------------------------------------------------------------------------------------


@app.command("run")
def run_command(
    lessons: Annotated[
        list[str] | None, typer.Argument(help="Lessons, such as 00 or 03_serve; all by default.")
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="http://host:port or host:port of a running server, for the lessons to use.")
    ] = None,
) -> None:
    """Execute notebooks and write readable copies to build/course.

    Example: [bold]inflight run 00 01[/]
    """
    from inflight.notebook.pages import execution
    from inflight.triton.address import URL

    if url is not None:
        os.environ[URL] = url
    checkpoints.fetch()
    execution.run(lessons or None, Path("build") / "course")


@app.command()
def slides(
    lesson: Annotated[str, typer.Argument(help="Lesson, such as 04 or 04_batching.")],
    output: Annotated[Path | None, typer.Option(help="File to write; by default NN_topic.slides.html here.")] = None,
) -> None:
    """Write slides made from a lesson's cells: one HTML file, with notes, that needs no network.

    They are reveal.js: the arrow keys turn the pages, s opens the presenter's window with the notes, f is full screen.

    Example: [bold]inflight slides 04[/]
    """
    from inflight.notebook.pages import slides as made_from

    print(made_from.write(lesson, output))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    lesson: Annotated[str | None, typer.Argument(help="Lesson to open, such as 03; by default the first.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start this lesson (or all) again; your old copy is kept.")
    ] = False,
    prepare_only: Annotated[bool, typer.Option("--prepare-only", help="Only copy the lessons.")] = False,
) -> None:
    """Copy the lessons to a folder of your own, and open JupyterLab there, on this machine only.

    The folder is `work` in the clone, or what INFLIGHT_WORK names. What is in it is kept. Other options, such as
    --no-browser or --port=9000, go to JupyterLab.

    Example: [bold]inflight lab 03[/]
    """
    from inflight.notebook.pages import workspace

    jupyters = context.args
    if lesson is not None and lesson.startswith("-"):  # an option of JupyterLab's without a lesson before it
        jupyters, lesson = [lesson, *jupyters], None
    folder = workspace.home()
    chosen, *_ = syllabus.select([Path(f"{one.name}.ipynb") for one in syllabus.read()], [lesson] if lesson else None)
    prepared = workspace.prepare(folder, fresh=(chosen.name[:2] if lesson else "all") if fresh else None)
    first = folder / "notebooks" / chosen
    if prepared.made:
        console.print(f"Copied {len(prepared.made)} notebooks to {escape(str(folder))}.", soft_wrap=True)
    if prepared.before:
        kept = ", ".join(str(path.relative_to(folder)) for path in prepared.before)
        console.print(f"What you had there is kept beside them: {escape(kept)}.", soft_wrap=True)
    if not prepare_only:
        workspace.open_lab(folder, first, jupyters)


app.command()(progress.progress)
app.add_typer(bench.app, name="bench")


# Shared ---------------------------------------------------------------------------------------------------------------


def _assemble(
    target: Path,
    engine_dir: Path | None,
    pairs: list[str] | None,
    with_llama_python: bool,
    contract: str = DEFAULT_CONTRACT,
    with_bls: bool = False,
) -> Path:
    """Make a repository of the engine and, if they are wanted, the baseline and the ensemble's second name."""
    values, names = terminal.values(pairs), (*PIPELINE, BLS) if with_bls else PIPELINE
    if with_llama_python:
        names = (*names, BASELINE)
        if not values.get("checkpoint_dir"):
            source = checkpoints.fetch()
            with terminal.progress("Preparing the Hugging Face folder (converted once, then kept)"):
                values["checkpoint_dir"] = str(models.huggingface.folder(source))
    engine_dir = engine_dir or terminal.cached_engine()
    return triton.repository.assemble(target, engine_dir, names, contract=contract, **values)


def _none(text: str) -> str | None:
    return None if text == NONE else text
