"""`inflight bench`: every benchmark prints a table, or one JSON object, with the machine it was taken on."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inflight import engine
from inflight.bench import compare as ways
from inflight.bench import load_generator, perf_analyzer, report, workload
from inflight.bench.load_generator import Run, Sender
from inflight.bench.workload import TimedRequest
from inflight.checkpoint import tokenizer
from inflight.checkpoint.sources import DEFAULT
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.cli import terminal
from inflight.cli.terminal import ENGINE_DIR, console, progress_console
from inflight.engine.config import BATCHING_TYPES, POLICIES, BuildConfig
from inflight.errors import CourseError
from inflight.models import huggingface
from inflight.triton import repository, telemetry
from inflight.triton.client import Client

ARRIVALS = ("all-at-once", "constant", "poisson", "recorded")

DATASET = typer.Option(help=f"{', '.join(workload.TRACES)}, dataset (the course's own), or a file in MLPerf's layout.")
NUM_REQUESTS = typer.Option("--requests", help="So many of its first requests; by default all.")
URL = typer.Option(help="host:port (gRPC) or http://host:port; by default a server for the occasion.")
STREAM = typer.Option("--stream", help="Ask for answers in pieces, which gives TTFT and ITL.")
WARM_UP = typer.Option(help="Requests before it that are not counted; by default two for each of the engine's seats.")
WAY = typer.Argument(help=f"{', '.join((*BATCHING_TYPES, *ways.MODELS))}.")
AS_JSON = typer.Option("--json", help="One JSON object instead of a table.")

bench = typer.Typer(no_args_is_help=True, help="Benchmarks: load and latencies, and ratios measured in one run.")


@bench.command("serving-tax")
def serving_tax(
    requests: Annotated[int, typer.Option(help="Requests a round.")] = 32,
    in_flight: Annotated[int, typer.Option(help="Requests under way at any time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds that count.")] = 5,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Tokens/s through Triton over tokens/s of the engine alone in process.

    Example: [bold]inflight bench serving-tax --json[/]
    """
    folder = engine_dir or terminal.cached_engine()
    with (
        tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch,
        progress_console.status("Starting") as status,
    ):
        result = load_generator.serving_tax(folder, scratch, requests, in_flight, rounds, progress=status.update)
    print_benchmark(result, as_json)


@bench.command()
def load(
    url: Annotated[str | None, URL] = None,
    model: Annotated[str, typer.Option(help="The text model to ask.")] = "ensemble",
    dataset: Annotated[str, DATASET] = "dataset",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    arrivals: Annotated[str | None, typer.Option(help=f"{', '.join(ARRIVALS)}; by default all at once.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, for constant and poisson.")] = None,
    recorded: Annotated[
        Path | None, typer.Option(help="CSV of an earlier run: its times and lengths once more.")
    ] = None,
    output_lengths: Annotated[
        str, typer.Option(help="dataset, normal:MEAN,STDEV or histogram:8=6,16=2,256=1.")
    ] = "dataset",
    concurrency: Annotated[
        int | None,
        typer.Option(help=f"Most requests under way at any time; by default {load_generator.MOST_UNDER_WAY}."),
    ] = None,
    stream: Annotated[bool, STREAM] = False,
    warm_up: Annotated[int | None, WARM_UP] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    csv: Annotated[Path | None, typer.Option(help="File for one line a request.")] = None,
    op_stats_csv: Annotated[
        Path | None, typer.Option(help="File to which a line of statistics is added, unless the run ends early.")
    ] = None,
    perfetto: Annotated[Path | None, typer.Option(help="File for a trace that ui.perfetto.dev opens.")] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Send many requests, and show throughput, TTFT, ITL and latency.

    Example: [bold]inflight bench load --arrivals poisson --rate 4 --stream --csv run.csv[/]
    """
    files = _Files(csv, op_stats_csv, perfetto)
    arrivals = _arrivals(arrivals, rate, recorded, output_lengths)
    _check_target(url, model)
    engine_dir = engine_dir or terminal.cached_engine()
    build = engine.read(engine_dir).build_config
    text = tokenizer.load(engine_dir)
    if recorded is not None:
        requests = _first(workload.recorded(recorded).requests(text), num_requests, f"The recorded run {recorded}")
    else:
        requests = _requests(dataset, num_requests, text, build, seed)
        requests = _at(_with_lengths(requests, output_lengths, seed), arrivals, rate, seed)
    _check_fit(requests, build)
    warm_up = _warm_up(warm_up, build)
    with _target(url, model, engine_dir, stream) as (send, log):
        _warm(send, requests, warm_up)
        run = _run(send, requests, concurrency)
        iterations = telemetry.iterations(log) if log is not None and log.exists() else None
    settings = {
        "url": url,
        "model": model,
        "dataset": None if recorded else dataset,
        "requests": len(requests),
        "arrivals": arrivals,
        "rate": rate,
        "recorded": recorded and str(recorded),
        "output_lengths": None if recorded else output_lengths,
        "concurrency": concurrency,
        "stream": stream,
        "warm_up_requests": warm_up,
        "seed": seed,
    }
    _print_runs({"bench load": run}, settings, as_json)
    files.write(run, iterations)
    _report_trouble(run, files)


@bench.command()
def compare(
    first: Annotated[str, WAY],
    second: Annotated[str, WAY],
    dataset: Annotated[str, DATASET] = "skewed",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    policy: Annotated[str, typer.Option(help=f"{' or '.join(POLICIES)}.")] = POLICIES[0],
    max_batch_size: Annotated[int, typer.Option(help="Seats of the engine.")] = BuildConfig.max_batch_size,
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Two ways of serving on the same requests, taking turns: ratios, second over first, with their spread.

    Example: [bold]inflight bench compare V1 inflight_fused_batching[/] or [bold]... compare llama-python ensemble
    --dataset dataset --requests 16 --rounds 3[/]
    """
    ways.check(first, second, policy, rounds)
    source = terminal.fetch(DEFAULT)
    with progress_console.status("Preparing"):
        engine_dir = engine.cached(source, BuildConfig(max_batch_size=max_batch_size))
        checkpoint_dir = huggingface.folder(source) if repository.BASELINE in (first, second) else None
    build = engine.read(engine_dir).build_config
    requests = _requests(dataset, num_requests, tokenizer.load(engine_dir), build, seed)
    _check_fit(requests, build)
    with (
        tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch,
        progress_console.status("Starting") as status,
    ):
        result = ways.compare(
            first, second, engine_dir, requests, scratch, policy, rounds, checkpoint_dir, status.update
        )
    result["settings"] |= {"dataset": dataset, "seed": seed}
    print_benchmark(result, as_json)


@bench.command("perf-analyzer")
def perf_analyzer_command(
    url: Annotated[str | None, typer.Option(help="host:port (gRPC); by default a server for the occasion.")] = None,
    model: Annotated[str, typer.Option(help="The text model to ask.")] = "ensemble",
    dataset: Annotated[str, DATASET] = "mild",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    concurrency: Annotated[int, typer.Option(help="Requests under way at any time.")] = 8,
    stream: Annotated[bool, STREAM] = False,
    warm_up: Annotated[int | None, WARM_UP] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Triton's Performance Analyzer and `bench load`, one after the other, on the same requests and the same server.

    Example: [bold]inflight bench perf-analyzer --concurrency 4 --stream[/]
    """
    perf_analyzer.find()
    _check_target(url, model)
    engine_dir = engine_dir or terminal.cached_engine()
    build = engine.read(engine_dir).build_config
    requests = _requests(dataset, num_requests, tokenizer.load(engine_dir), build, seed)
    _check_fit(requests, build)
    perf_analyzer.check(requests, concurrency, url)
    warm_up = _warm_up(warm_up, build)
    with _target(url, model, engine_dir, stream) as (send, _):
        if url is not None and send.client.is_decoupled() != stream:
            raise CourseError(
                f"{model} at {url} {'does not stream: leave out' if stream else 'is decoupled: add'} --stream."
            )
        _warm(send, requests, warm_up)
        run = _run(send, requests, concurrency)
        if not run.stopped:
            with progress_console.status("Performance Analyzer"):
                theirs = perf_analyzer.run(send.client.url, requests, concurrency, model)
    runs = {"bench load": run} if run.stopped else {"bench load": run, "perf_analyzer": theirs}
    settings = {
        "url": url,
        "model": model,
        "dataset": dataset,
        "requests": len(requests),
        "concurrency": concurrency,
        "stream": stream,
        "warm_up_requests": warm_up,
        "seed": seed,
    }
    _print_runs(runs, settings, as_json)
    _report_trouble(run, _Files())


@contextlib.contextmanager
def _progress(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows what runs, and how much of all is done, as a bar; `first` stands there before it is called."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task(first, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@bench.command("gpt2")
def gpt2_command(
    checkpoint: Annotated[str, typer.Option(help="A GPT-2: see `inflight gpt2 race`.")] = "gpt2-124m-random",
    streams: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds; ratios are of one round each.")] = 3,
    save: Annotated[bool, typer.Option("--save", help="Keep the result in assets/results, by machine.")] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """GPT-2 behind Triton: batch after batch, a token at a time, and with a KV cache. It takes minutes.

    Example: [bold]inflight bench gpt2 --streams 8 --tokens 64[/]
    """
    from inflight import machine
    from inflight.bench import gpt2_serving
    from inflight.models import gpt2_checkpoint

    path = gpt2_serving.result_path(Path(checkpoint).name, machine.describe())
    if save:
        report.check_writable(path)
    with progress_console.status(f"Preparing the checkpoint {checkpoint}"):
        folder = gpt2_checkpoint.find(checkpoint)
    with (
        tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch,
        _progress("Loading the checkpoint") as progress,
    ):
        result = gpt2_serving.bench(folder, scratch, streams, tokens, rounds, progress=progress)
    result["settings"]["checkpoint"] = Path(checkpoint).name
    print_benchmark(result, as_json)
    if save:
        report.write(path, json.dumps(result, indent=2) + "\n")
        progress_console.print(f"Kept in {path}", highlight=False, soft_wrap=True)


@bench.command("batchers")
def batchers_command(
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    requests: Annotated[int, typer.Option(help="Texts of a turn, one a request.")] = 96,
    max_batch_size: Annotated[int, typer.Option(help="Most texts in a batch; twice so many are under way.")] = 8,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32; auto: the faster one here.")] = "auto",
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Throughput of text-embedding without and with dynamic batching, and the gain that the cost of its batches predicts.

    Example: [bold]inflight bench batchers --rounds 3[/]
    """
    from inflight.bench import dynamic_batching

    dynamic_batching.check(rounds, requests, max_batch_size)
    with progress_console.status("Preparing the checkpoint"):
        folder = huggingface.folder(terminal.fetch(DEFAULT))
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch, _progress("Starting") as progress:
        result = dynamic_batching.bench(folder, scratch, rounds, requests, max_batch_size, dtype, progress=progress)
    print_benchmark(result, as_json)
    if not as_json:
        cost = result["cost"]
        console.print(
            f"A batch costs {cost['fixed_ms']:.1f} ms and {cost['item_ms']:.1f} ms for each text in it.",
            highlight=False,
        )


# Requests -------------------------------------------------------------------------------------------------------------


def _requests(
    dataset: str, number: int | None, text: ChatTokenizer, build: BuildConfig, seed: int
) -> list[TimedRequest]:
    """The first requests of a named trace or a dataset, all at once."""
    if dataset in workload.TRACES:
        return workload.trace(dataset, text, seed, number)
    path = workload.MINI_CNN_EVAL if dataset == "dataset" else Path(dataset)
    requests = workload.from_dataset(workload.read_dataset(path), text, build.max_input_len)
    if requests.num_dropped:
        progress_console.print(
            f"{requests.num_dropped} prompts of {path} are longer than the engine's max_input_len "
            f"({build.max_input_len} tokens) and are left out.",
            highlight=False,
        )
    return _first(requests, number, f"The dataset {path}")


def _first(requests: list[TimedRequest], number: int | None, source: str) -> list[TimedRequest]:
    if number is not None and not 1 <= number <= len(requests):
        raise CourseError(
            f"{source} has {len(requests)} requests and --requests asks for {number}: name a number from 1 to "
            f"{len(requests)}."
        )
    return requests[:number]


def _with_lengths(requests: list[TimedRequest], spec: str, seed: int) -> list[TimedRequest]:
    """The same prompts, with answers of the lengths that --output-lengths asks for."""
    if spec == "dataset":
        return requests
    kind, _, values = spec.partition(":")
    try:
        if kind == "normal":
            mean, stdev = map(float, values.split(","))
            lengths = workload.normal_lengths(len(requests), mean, stdev, seed)
        elif kind == "histogram":
            pairs = [pair.split("=") for pair in values.split(",")]
            lengths = workload.histogram_lengths(
                {int(length): int(times) for length, times in pairs}, len(requests), seed
            )
        else:
            raise ValueError(kind)
    except ValueError:
        raise CourseError(
            f"--output-lengths {spec}: write dataset, normal:MEAN,STDEV as normal:60,20, or histogram with "
            "LENGTH=TIMES as histogram:8=6,16=2,256=1."
        ) from None
    return workload.with_lengths(requests, lengths)


def _arrivals(name: str | None, rate: float | None, recorded: Path | None, output_lengths: str) -> str:
    """The arrival process, when the options that belong to it are there and no others."""
    name = name or ("all-at-once" if recorded is None else "recorded")
    if name not in ARRIVALS:
        raise CourseError(f"--arrivals is {name!r}; it must be one of {', '.join(ARRIVALS)}.")
    if (name == "recorded") != (recorded is not None):
        raise CourseError("--arrivals recorded and --recorded FILE belong together: give both, or the file alone.")
    if recorded is not None and output_lengths != "dataset":
        raise CourseError("A recorded run has lengths of its own: leave out --output-lengths, or --recorded.")
    if (name in ("constant", "poisson")) != (rate is not None):
        raise CourseError(
            "--rate belongs to --arrivals constant or poisson, and they need it: requests a second, such as --rate 4."
        )
    return name


def _at(requests: list[TimedRequest], arrivals: str, rate: float | None, seed: int) -> list[TimedRequest]:
    """The requests with the times of their arrival."""
    number = len(requests)
    if arrivals == "constant":
        times = workload.constant(number, rate)
    elif arrivals == "poisson":
        times = workload.poisson(number, rate, seed)
    else:
        times = workload.all_at_once(number)
    return workload.with_times(requests, times)


def _check_fit(requests: list[TimedRequest], build: BuildConfig) -> None:
    """An answer that reaches the engine's `max_seq_len` ends there, and would be counted as longer than it is."""
    for number, request in enumerate(requests):
        if request.input_len + request.max_tokens > build.max_seq_len:
            raise CourseError(
                f"Request {number} has {request.input_len} tokens and asks for {request.max_tokens} more, but the "
                f"engine's max_seq_len is {build.max_seq_len}: ask for shorter answers, or build an engine "
                "with a larger one."
            )


# Runs -----------------------------------------------------------------------------------------------------------------


def _check_target(url: str | None, model: str) -> None:
    if url is None and model != "ensemble":
        raise CourseError(
            f"The server for the occasion has no {model}: name a running server with --url, or leave out --model."
        )


@contextlib.contextmanager
def _target(url: str | None, model: str, engine_dir: Path, stream: bool) -> Iterator[tuple[Sender, Path | None]]:
    """A sender to the server at `url`; or to one of its own, with the path of its iteration log."""
    if url is not None:
        with Sender(Client(url, model), stream) as send:
            yield send, None
        return
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch:
        log = Path(scratch) / "iterations.jsonl"
        repo = repository.assemble(
            Path(scratch) / "repository", engine_dir, decoupled_mode=stream, iteration_log_path=log
        )
        with terminal.server(repo) as server, Sender(Client(server.grpc_url, model), stream) as send:
            yield send, log


def _warm_up(number: int | None, build: BuildConfig) -> int:
    if number is not None and number < 0:
        raise CourseError(f"--warm-up is {number}; it must be 0 or more.")
    return 2 * build.max_batch_size if number is None else number


def _warm(send: Sender, requests: list[TimedRequest], number: int) -> None:
    if number > 0:
        with progress_console.status(f"Warming up: {number} requests that are not counted"):
            load_generator.warm_up(send, requests, number)


def _run(send: Sender, requests: list[TimedRequest], concurrency: int | None) -> Run:
    """`load_generator.load` with a progress bar."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task("requests", total=len(requests))
        return load_generator.load(send, requests, concurrency, lambda done, total: bar.update(task, completed=done))


class _Files:
    """Where the results of a run go. Refuses a path that cannot be written before anything is measured."""

    def __init__(self, csv: Path | None = None, op_stats_csv: Path | None = None, perfetto: Path | None = None):
        self.csv, self.op_stats_csv, self.perfetto = csv, op_stats_csv, perfetto
        report.check_writable(*(path for path in (csv, op_stats_csv, perfetto) if path is not None))
        if op_stats_csv is not None:
            report.check_op_stats(op_stats_csv)

    def write(self, run: Run, iterations) -> None:
        if self.csv is not None:
            report.write(self.csv, report.requests_csv(run))
        if self.perfetto is not None:
            report.write(self.perfetto, json.dumps(report.trace(run, iterations)))
        if self.op_stats_csv is not None and not run.stopped:
            report.write(self.op_stats_csv, report.with_op_stats(self.op_stats_csv, run))

    def __str__(self) -> str:
        return " and ".join(str(path) for path in (self.csv, self.perfetto) if path is not None)


def _report_trouble(run: Run, files: _Files) -> None:
    """One sentence, after the results, when not every request was answered."""
    if run.stopped:
        kept = f"They are in {files}." if str(files) else "They are above; --csv keeps them in a file."
        raise CourseError(f"{run.stopped} {kept}")
    failed = run.requests[run.requests["error"] != ""]
    if len(failed):
        raise CourseError(
            f"{len(failed)} of {len(run.requests)} requests failed, the first with: {failed['error'].iloc[0]}"
        )


# Printing -------------------------------------------------------------------------------------------------------------


def print_benchmark(result: dict, as_json: bool) -> None:
    """A benchmark's result as one JSON object, or as a table of its rows, its ratios, and the machine."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print_rows(result["rows"])
    if "rows_by_length" in result:
        _print_rows(result["rows_by_length"], "One token of one sequence, in process")
    if "floor" in result:
        console.print(
            "the floor: {weight_mb:.0f} MB of weights, read at {read_gb_per_s:.1f} GB/s, take {ms:.1f} ms".format(
                **result["floor"]
            ),
            highlight=False,
        )
    expected = result.get("predicted", {})
    for name, ratio in result["ratios"].items():
        beside = f", predicted {expected[name]:.2f}" if name in expected else ""
        console.print(
            f"{name}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}){beside}", highlight=False
        )
    _print_machine(result["machine"])


def _print_rows(rows: list[dict], title: str | None = None) -> None:
    # Blanks, where a narrow terminal breaks lines.
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title, title_justify="left")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    console.print(table)


def _cell(value: float | str | None) -> str:
    """A figure with one decimal, a large one with none: seven columns fit a narrow terminal."""
    if isinstance(value, float):
        return f"{value:.{1 if abs(value) < 1000 else 0}f}"
    return "-" if value is None else str(value)


def _print_runs(runs: dict[str, Run], settings: dict, as_json: bool) -> None:
    """Figures of loads side by side: one column each."""
    result = report.result(runs, settings)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    columns = [report.labelled(row) for row in result["rows"]]
    table = Table("", *runs)
    for title in columns[0]:
        if any(column[title] != "-" for column in columns):
            table.add_row(title, *(column[title] for column in columns))
    console.print(table)
    console.print(f"{settings['warm_up_requests']} warm-up requests went before and are not counted.", highlight=False)
    _print_machine(result["machine"])


def _print_machine(facts: dict) -> None:
    parts = [
        facts["cpu"],
        f"{facts['cores']} cores",
        f"{facts['memory_gib']} GiB",
        facts["gpu"] or "no GPU",
        facts["os"],
        f"Python {facts['python']}",
        *(f"{name} {version}" for name, version in facts["versions"].items()),
    ]
    console.print(escape("on " + ", ".join(parts)), highlight=False)
