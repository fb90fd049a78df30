"""`inflight bench`: every benchmark prints a table, or one JSON object, with the machine it was taken on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.markup import escape

from inflight import bench, engine, models
from inflight import checkpoint as checkpoints
from inflight.cli import terminal
from inflight.cli.terminal import ENGINE_DIR, console
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError
from inflight.triton.repository.layout import BASELINE

URL = typer.Option(help="A Triton's host:port or http://host:port; or openai:URL. By default one is started.")
MODEL = typer.Option(help="The text model to ask.")
DATASET = typer.Option(help="mild, skewed, rewrite, edit, summary, chat, dataset (the course's), or MLPerf's layout.")
CSV = typer.Option(help="Write a line per request to this file.")
CHECKPOINT = typer.Option(help="Name, Hugging Face id, GGUF file or folder.")
ROUNDS = typer.Option(help="Rounds to measure.")
AS_JSON = typer.Option("--json", help="Print one JSON object, not a table.")

WARM_UP_REQUESTS = 16  # before a load; they are not counted

app = typer.Typer(
    no_args_is_help=True,
    help="Benchmarks: load, latencies, and ratios measured in one run. What dynamic batching and a KV cache gain, "
    "lectures 06 and 08 measure: [bold]inflight run 06 08[/].",
)


@app.command("load")
def load_command(
    url: Annotated[str | None, URL] = None,
    model: Annotated[str, MODEL] = "ensemble",
    dataset: Annotated[str, DATASET] = "dataset",
    requests: Annotated[int | None, typer.Option(help="How many of the requests to send; by default all.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second; by default all at once.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Not a rate, but users who each wait for an answer.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Stream the answers, which gives TTFT and TPOT.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    csv: Annotated[Path | None, CSV] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Send many requests: throughput, TTFT, TPOT and latency, counted from when each request was due.

    Example: [bold]inflight bench load --rate 4 --stream --csv run.csv[/]
    """
    check_writable(csv)
    if concurrency is not None and rate is not None:
        raise CourseError("With --concurrency each user sends a request after an answer: leave out --rate.")
    engine_dir = engine_dir or terminal.cached_engine()
    tokenizer, build = checkpoints.load_tokenizer(engine_dir), engine.read(engine_dir).build_config
    asked = bench.workload.named(dataset, tokenizer, build, terminal.tell, requests, rate, seed)
    with terminal.progress("starting") as show, bench.targets.target(url, engine_dir, stream, model) as send:
        show("warming up", 0, 1)
        bench.load.warm_up(send, asked, WARM_UP_REQUESTS)
        run = bench.load.send_all(send, asked, concurrency, lambda done, total: show("requests answered", done, total))
    if csv is not None:
        bench.report.write(csv, run.requests)
    settings = {
        "url": url,
        "model": model,
        "device": bench.targets.device(url, engine_dir),
        "dataset": dataset,
        "rate": rate,
        "seed": seed,
        "requests": len(asked),
        "concurrency": concurrency,
        "loop": "open" if concurrency is None else "closed",
        "stream": stream,
    }
    row = bench.report.summary(run)
    row |= {"late": bench.report.lateness(run), "stopped": run.stopped}
    print_benchmark(bench.turns.result(settings, [row], {}), as_json, upright=True)
    terminal.finish(run.trouble)


@app.command("compare")
def compare_command(
    first: Annotated[
        str,
        typer.Argument(
            help="in-process, V1, inflight_batching, inflight_fused_batching, ngram, ensemble, llama-python; the "
            "address of a Triton; openai:URL."
        ),
    ],
    second: Annotated[str, typer.Argument(help="The second way; ratios are second over first.")],
    dataset: Annotated[str, DATASET] = "skewed",
    requests: Annotated[int | None, typer.Option(help="How many of its requests to send; by default all.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Users; by default all requests at once.")] = None,
    max_batch_size: Annotated[int, typer.Option(help="Slots of the engine.")] = BuildConfig.max_batch_size,
    rounds: Annotated[int, ROUNDS] = 3,
    checkpoint: Annotated[str, CHECKPOINT] = checkpoints.DEFAULT,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Compare two ways to serve the same requests, in turns: ratios, second over first, with their spread.

    Example: [bold]inflight bench compare V1 inflight_fused_batching[/] or [bold]... compare in-process ensemble
    --dataset mild --concurrency 8[/]

    Another server with the same model and as many slots, without a memory of earlier prompts:
    [bold]... compare openai:http://127.0.0.1:8080 ensemble[/]
    """
    bench.compare.validate(first, second, rounds)
    source = checkpoints.fetch(checkpoint)
    with terminal.progress("Preparing the engine (built once, then kept)"):
        engine_dir = engine.cached(source, BuildConfig(max_batch_size=max_batch_size))
        checkpoint_dir = models.huggingface.folder(source) if BASELINE in (first, second) else None
    tokenizer, build = checkpoints.load_tokenizer(engine_dir), engine.read(engine_dir).build_config
    asked = bench.workload.named(dataset, tokenizer, build, terminal.tell, requests)
    with TemporaryDirectory(prefix="inflight-bench-") as scratch, terminal.progress("starting") as show:
        result = bench.compare.compare(
            first, second, engine_dir, asked, scratch, concurrency, rounds, checkpoint_dir, show
        )
    result["settings"] |= {"dataset": dataset, "checkpoint": source.name}
    print_benchmark(result, as_json)
    terminal.finish()


@app.command("quality")
def quality_command(
    checkpoint: Annotated[str, CHECKPOINT] = checkpoints.DEFAULT,
    tokens: Annotated[int, typer.Option(help="Tokens of the lessons' prose, in windows of 256.")] = 5120,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Compare the builds of a checkpoint: perplexity and size, each figure of quality ± its 95 % interval.

    Example: [bold]inflight bench quality --tokens 5120 --json[/]
    """
    source = checkpoints.fetch(checkpoint)
    with TemporaryDirectory(prefix="inflight-bench-") as scratch, terminal.progress("Preparing the engines") as show:
        folders = bench.quality.engines(source, scratch, tokens, show)
        result = bench.quality.bench(source, folders, tokens, show)
    print_benchmark(result if as_json else result | {"rows": bench.quality.in_words(result["rows"])}, as_json)
    terminal.finish()


# Printing -------------------------------------------------------------------------------------------------------------


def print_benchmark(result: dict, as_json: bool, upright: bool = False) -> None:
    """Print a benchmark's result as one JSON object, or as tables of its rows, its ratios, and the machine.

    Parameters
    ----------
    upright : bool
        Print one row of many figures as lines.
    """
    if as_json:
        print(json.dumps(result, indent=2))
        return
    rows = result["rows"]
    if upright:
        rows = [{"": name, "value": value} for name, value in rows[0].items() if value not in (None, "")]
    # A name with blanks is broken there in a narrow terminal.
    shown = [{name.replace("_", " "): _cell(name, value) for name, value in row.items()} for row in rows]
    terminal.show(shown, whole_names=True)
    for name, ratio in result["ratios"].items():
        console.print(f"{name}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})", highlight=False)
    facts = result["machine"]
    parts = [facts["cpu"], f"{facts['cores']} cores", f"{facts['memory_gib']} GiB", facts["gpu"] or "no GPU"]
    if device := result["settings"].get("device"):
        console.print(escape(f"computed on {device}"), highlight=False)
    console.print(escape(f"on {', '.join(parts)}, {facts['os']}, Python {facts['python']}"), highlight=False)
    chosen = facts["precision"]
    on_cpu = f"precision on the CPU: {chosen['engine']} in engines, {chosen['pytorch']} in PyTorch ({chosen['why']})"
    console.print(escape(on_cpu), highlight=False)


def _cell(name: str, value: object) -> str:
    """Print a figure with one decimal, a large one with none: seven columns fit a narrow terminal. A ratio has two."""
    if isinstance(value, float):
        decimals = 2 if {"over", "share", "rate", "/s"} & set(name.replace("_", " ").split()) else 1
        return f"{value:.{decimals if abs(value) < 1000 else 0}f}"
    return "-" if value is None else str(value)


def check_writable(path: Path | None) -> None:
    """Refuse, before a benchmark, a file that could not be written after it."""
    if path is not None:
        folder = path.absolute().parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise CourseError(f"{path} cannot be written: name a file in a folder that exists and is yours to write.")
