"""`inflight bench`: every benchmark prints a table, or one JSON object, with the machine it was taken on."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from inflight import bench, checkpoint, engine, files, models, triton
from inflight.bench.arrivals import BURSTS_CV, DAY_S, DAY_SWING
from inflight.bench.names import ARRIVALS, MOST_UNDER_WAY, RATED, TRACES, WAYS
from inflight.cli import terminal, traffic_options
from inflight.cli.terminal import ENGINE_DIR, console, progress_console
from inflight.engine import trtllm_commands
from inflight.engine.config import POLICIES, BuildConfig
from inflight.errors import CourseError
from inflight.triton.repository.layout import BASELINE

if TYPE_CHECKING:
    from inflight.bench.load_generator import Run, Sends
    from inflight.bench.objective import Objective
    from inflight.bench.workload import TimedRequest

DATASET = typer.Option(help=f"{', '.join(TRACES)}, dataset (the course's own), or a file in MLPerf's layout.")
NUM_REQUESTS = typer.Option("--requests", help="So many of its first requests; by default all.")
MAX_INPUT_LEN = typer.Option(
    min=1, help="Leave out requests whose prompt has more tokens; by default as many as the engine takes."
)
URL = typer.Option(help="host:port (gRPC) or http://host:port; by default a server for the occasion.")
STREAM = typer.Option("--stream", help="Ask for answers in pieces, which gives TTFT and ITL.")
WARM_UP = typer.Option(help="Requests before it that are not counted; by default two for each of the engine's slots.")
WAY = typer.Argument(help=f"{', '.join(WAYS)}.", show_default=False)
CHECKPOINT = typer.Option(help="Name, Hugging Face repository, or path of a GGUF file or a folder.")
SAVE = typer.Option("--save", help="Keep the result in assets/results, by model and device.")
TIER = typer.Option(help="What the engine is built for, cpu or cuda; by default as this machine is.")
MIX_DEVICES = typer.Option("--mix-devices", help="Compare sides that compute on different devices, too.")
AS_JSON = typer.Option("--json", help="One JSON object instead of a table.")
PEER_HELP = f"""\
Any server with OpenAI's endpoints and ours on the same requests, taking turns: ratios, ours over theirs.

Start the other with the same model, as many slots, and no memory of earlier prompts; on this machine, on loopback:

[bold]llama.cpp[/]: llama-server -m MODEL.gguf --host 127.0.0.1 --port 8080 --parallel 8 --ctx-size 16384
(2,048 tokens a slot; MODEL.gguf is what `inflight fetch` names)

[bold]vLLM[/]: vllm serve MODEL_FOLDER --host 127.0.0.1 --port 8080 --max-num-seqs 8 --no-enable-prefix-caching

[bold]TensorRT-LLM[/]: {trtllm_commands.serve_openai().line}

Then: [bold]inflight bench peer --url http://127.0.0.1:8080 --slots 8[/]

It is asked at /v1/completions, or at /v1/chat/completions if it has only that, greedily, for answers of a fixed
length (max_tokens, ignore_eos, min_tokens). Tokens are those of our tokenizer in the text that came; what the
server says of itself is shown beside them. A key it wants goes into the environment variable INFLIGHT_PEER_API_KEY.
"""

app = typer.Typer(no_args_is_help=True, help="Benchmarks: load and latencies, and ratios measured in one run.")


@app.command("serving-tax")
def serving_tax(
    requests: Annotated[int, typer.Option(help="Requests a round.")] = 32,
    in_flight: Annotated[int, typer.Option(help="Requests under way at any time.")] = 8,
    rounds: Annotated[int, typer.Option(help="Rounds that count.")] = 5,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Tokens/s through Triton over tokens/s of the engine alone in process.

    Example: [bold]inflight bench serving-tax --json[/]
    """
    folder = engine_dir or terminal.cached_engine()
    keep = _keeper(save, "serving-tax", engine_dir=folder)
    with (
        files.temporary("inflight-bench-") as scratch,
        progress_console.status("Starting") as status,
    ):
        result = bench.load_generator.serving_tax(folder, scratch, requests, in_flight, rounds, progress=status.update)
    print_benchmark(result, as_json)
    keep(result)


@app.command()
def load(
    url: Annotated[str | None, URL] = None,
    api: Annotated[str, traffic_options.API] = "auto",
    model: Annotated[str, typer.Option(help="The text model to ask.")] = "ensemble",
    dataset: Annotated[str, DATASET] = "dataset",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    max_input_len: Annotated[int | None, MAX_INPUT_LEN] = None,
    arrivals: Annotated[str | None, typer.Option(help=f"{', '.join(ARRIVALS)}; by default all at once.")] = None,
    rate: Annotated[
        float | None, typer.Option(help=f"Requests a second, for {', '.join(RATED)}; stretches the times of a trace.")
    ] = None,
    cv: Annotated[float, traffic_options.CV] = BURSTS_CV,
    day_s: Annotated[float, traffic_options.DAY_S] = DAY_S,
    day_swing: Annotated[float, traffic_options.DAY_SWING] = DAY_SWING,
    recorded: Annotated[
        Path | None, typer.Option(help="CSV of an earlier run: its times and lengths once more.")
    ] = None,
    trace: Annotated[str | None, traffic_options.TRACE] = None,
    output_lengths: Annotated[
        str, typer.Option(help="dataset, normal:MEAN,STDEV or histogram:8=6,16=2,256=1.")
    ] = "dataset",
    let_end: Annotated[bool, traffic_options.LET_END] = False,
    system_prompt: Annotated[int | None, traffic_options.SYSTEM_PROMPT] = None,
    turns: Annotated[int, traffic_options.TURNS] = 1,
    think_s: Annotated[float, traffic_options.THINK_S] = 0.0,
    concurrency: Annotated[
        int | None,
        typer.Option(help=f"Most requests under way at any time; by default {MOST_UNDER_WAY}."),
    ] = None,
    loop: Annotated[
        str | None,
        typer.Option(
            help="open: requests are due at their times; closed: one is due when one of --concurrency users has an "
            "answer. By default closed where all are there at once and --concurrency is given."
        ),
    ] = None,
    objective: Annotated[str | None, traffic_options.OBJECTIVE] = None,
    stream: Annotated[bool, STREAM] = False,
    stop_after_ms: Annotated[
        int | None, typer.Option(min=0, help="End every answer so many milliseconds after it was asked for.")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(help="Name the requests ID-1, ID-2, …, warm-up included; by default each has a new name."),
    ] = None,
    warm_up: Annotated[int | None, WARM_UP] = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    values: Annotated[list[str] | None, traffic_options.SET] = None,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    csv: Annotated[Path | None, typer.Option(help="File for one line a request.")] = None,
    op_stats_csv: Annotated[
        Path | None, typer.Option(help="File to which a line of statistics is added, unless the run ends early.")
    ] = None,
    perfetto: Annotated[Path | None, typer.Option(help="File for a trace that ui.perfetto.dev opens.")] = None,
    tokenizer_type: Annotated[str | None, terminal.TOKENIZER_TYPE] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Send many requests, and show throughput, TTFT, ITL and latency, counted from when each request was due.

    Example: [bold]inflight bench load --arrivals poisson --rate 4 --stream --csv run.csv[/]

    Any server with OpenAI's endpoints: [bold]... load --url http://127.0.0.1:8080 --stream --trace small --rate 2[/]
    """
    terminal.note_tokenizer_type(tokenizer_type)
    files = bench.result_files.ResultFiles(csv, op_stats_csv, perfetto)
    arrivals = bench.plan.arrivals(arrivals, rate, recorded, output_lengths, trace)
    closed = bench.plan.is_closed(loop, arrivals, concurrency)
    wanted = None if objective is None else bench.objective.parse(objective)
    if wanted is not None:
        wanted.check_streaming(stream)
    values = terminal.values(values)
    bench.plan.check_target(url, model, api, values)
    traffic = bench.traffic.Traffic(
        arrivals,
        dataset,
        max_input_len,
        recorded,
        trace,
        output_lengths,
        cv,
        day_s,
        day_swing,
        system_prompt,
        turns,
        think_s,
        let_end,
        seed,
    )
    engine_dir = engine_dir or terminal.cached_engine()
    build = engine.read(engine_dir).build_config
    requests = traffic.requests(checkpoint.load_tokenizer(engine_dir), build, num_requests, terminal.tell)
    requests = traffic.timed(requests, rate, seed)
    warm_up = bench.plan.warm_up_requests(warm_up, build)
    stop = None
    if stop_after_ms is not None:
        count = partial(bench.openai_server.count_tokens, checkpoint.load_tokenizer(engine_dir))
        stop = bench.load_generator.Stop(stop_after_ms / 1000, count)
    with bench.plan.target(
        url,
        model,
        engine_dir,
        stream,
        terminal.server,
        stop,
        request_id,
        api,
        probe=requests[0],
        exact=not let_end,
        remember=traffic.shares_prefixes,
        values=values,
    ) as (send, log):
        _warm(send, requests, warm_up)
        run = _run(send, requests, concurrency, closed)
        iterations = triton.telemetry.iterations(log) if log is not None and log.exists() else None
        files.write(run, iterations)  # now: whatever becomes of the server and the terminal, it is kept
    settings = {
        "url": url,
        "api": api,
        "model": model,
        "requests": len(requests),
        "rate": rate,
        **traffic.settings(),
        "concurrency": concurrency,
        "loop": "closed" if closed else "open",
        "objective": objective,
        "stream": stream,
        "stop_after_ms": stop_after_ms,
        "warm_up_requests": warm_up,
        "set": values,
    }
    _print_runs({"bench load": run}, settings, device_of(url, engine_dir), as_json, wanted)
    bench.result_files.check_answered(run, files)


@app.command()
def compare(
    first: Annotated[str, WAY] = "",
    second: Annotated[str, WAY] = "",
    url: Annotated[
        list[str] | None,
        typer.Option(help="Twice, in place of the two ways: host:port (gRPC) or http://host:port of running servers."),
    ] = None,
    model: Annotated[str, typer.Option(help="The text model to ask at --url.")] = "ensemble",
    stream: Annotated[bool, STREAM] = False,
    dataset: Annotated[str, DATASET] = "skewed",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    max_input_len: Annotated[int | None, MAX_INPUT_LEN] = None,
    policy: Annotated[str, typer.Option(help=f"{' or '.join(POLICIES)}.")] = POLICIES[0],
    max_batch_size: Annotated[int, typer.Option(help="Slots of the engine.")] = BuildConfig.max_batch_size,
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    checkpoint: Annotated[str, CHECKPOINT] = checkpoint.DEFAULT,
    tier: Annotated[str | None, TIER] = None,
    in_process: Annotated[
        bool,
        typer.Option("--in-process", help=f"The engine alone, without a server; also two of {', '.join(POLICIES)}."),
    ] = False,
    kv_cache_tokens: Annotated[
        int | None,
        typer.Option(help="With --in-process: tokens of the KV cache, as many as the longest request may have."),
    ] = None,
    mix_devices: Annotated[bool, MIX_DEVICES] = False,
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Two ways of serving on the same requests, taking turns: ratios, second over first, with their spread.

    Example: [bold]inflight bench compare V1 inflight_fused_batching[/] or [bold]... compare llama-python ensemble
    --dataset dataset --requests 16 --rounds 3[/]

    Two servers that run already, wherever: [bold]... compare --url 127.0.0.1:8001 --url 127.0.0.1:9001[/]
    """
    if url:
        return _compare_servers(first, url, model, stream, dataset, num_requests, max_input_len, rounds, seed, as_json)
    (bench.in_process if in_process else bench.compare).check(first, second, policy, rounds)
    source = terminal.fetch(checkpoint)
    with progress_console.status("Preparing"):
        engine_dir = engine.cached(source, _build_config(max_batch_size, kv_cache_tokens), tier)
        checkpoint_dir = models.huggingface.folder(source) if BASELINE in (first, second) else None
    keep = _keeper(save, f"compare-{'in-process-' * in_process}{first}-{second}", engine_dir=engine_dir)
    requests = _requests(dataset, num_requests, engine_dir, seed, max_input_len)
    bench.plan.check_fit(requests, engine.read(engine_dir).build_config)
    with (
        files.temporary("inflight-bench-") as scratch,
        progress_console.status("Starting") as status,
    ):
        if in_process:
            result = bench.in_process.compare(
                first, second, engine_dir, requests, policy, rounds, status.update, kv_cache_tokens
            )
        else:
            result = bench.compare.compare(
                first, second, engine_dir, requests, scratch, policy, rounds, checkpoint_dir, status.update, mix_devices
            )
    result["settings"] |= {"dataset": dataset, "seed": seed}
    print_benchmark(result, as_json)
    keep(result)


def _compare_servers(
    way: str,
    urls: list[str],
    model: str,
    stream: bool,
    dataset: str,
    num_requests: int | None,
    max_input_len: int | None,
    rounds: int,
    seed: int,
    as_json: bool,
) -> None:
    if way:
        raise CourseError("Compare two ways of serving, or two servers with --url: leave one out.")
    bench.compare_servers.check(urls, rounds)
    requests = _requests(dataset, num_requests, terminal.cached_engine(), seed, max_input_len)
    with progress_console.status("Starting") as status:
        result = bench.compare_servers.bench(urls, requests, model, stream, rounds, status.update)
    result["settings"] |= {"dataset": dataset, "seed": seed}
    print_benchmark(result, as_json)


@app.command("perf-analyzer")
def perf_analyzer_command(
    url: Annotated[str | None, typer.Option(help="host:port (gRPC); by default a server for the occasion.")] = None,
    model: Annotated[str, typer.Option(help="The text model to ask.")] = "ensemble",
    dataset: Annotated[str, DATASET] = "mild",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    max_input_len: Annotated[int | None, MAX_INPUT_LEN] = None,
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
    bench.perf_analyzer.find()
    bench.plan.check_target(url, model)
    engine_dir = engine_dir or terminal.cached_engine()
    build = engine.read(engine_dir).build_config
    requests = _requests(dataset, num_requests, engine_dir, seed, max_input_len)
    bench.plan.check_fit(requests, build)
    bench.perf_analyzer.check(requests, concurrency, url)
    warm_up = bench.plan.warm_up_requests(warm_up, build)
    with bench.plan.target(url, model, engine_dir, stream, terminal.server) as (send, _):
        if url is not None:
            bench.plan.check_streaming(send.client, stream)
        _warm(send, requests, warm_up)
        run = _run(send, requests, concurrency, closed=True)
        if not run.stopped:
            with progress_console.status("Performance Analyzer"):
                theirs = bench.perf_analyzer.run(send.client.url, requests, concurrency, model)
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
    _print_runs(runs, settings, device_of(url, engine_dir), as_json)
    bench.result_files.check_answered(run)


@app.command("gpt2")
def gpt2_command(
    checkpoint: Annotated[str, typer.Option(help="A GPT-2: see `inflight gpt2 race`.")] = "gpt2-124m-random",
    streams: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds; ratios are of one round each.")] = 3,
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """GPT-2 behind Triton: batch after batch, a token at a time, and with a KV cache. It takes minutes.

    Example: [bold]inflight bench gpt2 --streams 8 --tokens 64[/]
    """
    keep = _keeper(save, "gpt2", Path(checkpoint).name)
    with progress_console.status(f"Preparing the checkpoint {checkpoint}"):
        folder = models.gpt2_checkpoint.find(checkpoint)
    with (
        files.temporary("inflight-bench-") as scratch,
        terminal.progress("Loading the checkpoint") as progress,
    ):
        result = bench.gpt2_serving.bench(folder, scratch, streams, tokens, rounds, progress=progress)
    result["settings"]["checkpoint"] = Path(checkpoint).name
    print_benchmark(result, as_json)
    keep(result)


@app.command("batchers")
def batchers_command(
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    requests: Annotated[int, typer.Option(help="Texts of a turn, one a request.")] = 96,
    max_batch_size: Annotated[int, typer.Option(help="Most texts in a batch; twice so many are under way.")] = 8,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16 or float32; auto: the faster one here.")] = "auto",
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Throughput of text-embedding without and with dynamic batching, and the gain that the cost of a batch predicts.

    Example: [bold]inflight bench batchers --rounds 3[/]
    """
    bench.dynamic_batching.check(rounds, requests, max_batch_size)
    keep = _keeper(save, "batchers", checkpoint.DEFAULT)
    with progress_console.status("Preparing the checkpoint"):
        folder = models.huggingface.folder(terminal.fetch(checkpoint.DEFAULT))
    with files.temporary("inflight-bench-") as scratch, terminal.progress("Starting") as progress:
        result = bench.dynamic_batching.bench(
            folder, scratch, rounds, requests, max_batch_size, dtype, progress=progress
        )
    print_benchmark(result, as_json)
    if not as_json:
        cost = result["cost"]
        console.print(
            f"A batch costs {cost['fixed_ms']:.1f} ms and {cost['item_ms']:.1f} ms for each text in it.",
            highlight=False,
        )
    keep(result)


@app.command("quality")
def quality_command(
    checkpoint: Annotated[str, CHECKPOINT] = checkpoint.DEFAULT,
    tokens: Annotated[int, typer.Option(help="Tokens of the lessons' prose to read, in windows of 256.")] = 5120,
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """What each build of a checkpoint loses of its words, with its size and speed; each figure ± its 95 % interval.

    Example: [bold]inflight bench quality --tokens 5120 --json[/]
    """
    bench.quality.check(tokens)
    source = terminal.fetch(checkpoint)
    keep = _keeper(save, "quality", source.name)
    with files.temporary("inflight-bench-") as scratch, terminal.progress("Preparing the engines") as progress:
        folders = bench.quality.engines(source, scratch, tokens, progress)
        result = bench.quality.bench(source, folders, tokens, progress)
    if as_json:
        print_benchmark(result, as_json)
    else:
        print_benchmark(result | {"rows": bench.quality.in_words(result["rows"])}, as_json)
    keep(result)


@app.command("peer", help=PEER_HELP)
def peer_command(
    url: Annotated[str, typer.Option(help="http://host:port of the other server.")],
    api: Annotated[str, typer.Option(help="How it is asked: openai.")] = "openai",
    dataset: Annotated[str, DATASET] = "mild",
    num_requests: Annotated[int | None, NUM_REQUESTS] = None,
    slots: Annotated[int, typer.Option(help="Slots of our engine; start the other with as many.")] = 8,
    concurrency: Annotated[
        int | None, typer.Option(help=f"Most requests under way at any time; by default {MOST_UNDER_WAY}.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    stream: Annotated[
        bool, typer.Option("--stream/--whole", help="Answers in pieces (TTFT and ITL), or whole.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Its name there; by default the first that it lists.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Most seconds for one of its answers.")] = 300,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    tier: Annotated[str | None, TIER] = None,
    their_device: Annotated[
        str | None, typer.Option(help="What it computes on; needed unless it is here, and this machine has no GPU.")
    ] = None,
    mix_devices: Annotated[bool, MIX_DEVICES] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    bench.peer.check(api, rounds)
    if engine_dir is None:
        source = terminal.fetch(checkpoint.DEFAULT)
        with progress_console.status("Preparing the engine (built once, then kept)"):
            engine_dir = engine.cached(source, BuildConfig(max_batch_size=slots), tier)
    requests = _requests(dataset, num_requests, engine_dir, seed)
    bench.plan.check_fit(requests, engine.read(engine_dir).build_config)
    with files.temporary("inflight-bench-") as scratch, progress_console.status("Starting") as status:
        result = bench.peer.bench(
            url,
            engine_dir,
            requests,
            scratch,
            rounds,
            stream,
            model,
            concurrency,
            timeout,
            status.update,
            their_device,
            mix_devices,
        )
    result["settings"] |= {"dataset": dataset, "seed": seed}
    print_benchmark(result, as_json)


@app.command("floor")
def floor_command(
    rounds: Annotated[int, typer.Option(help="Rounds that count; one before them warms up.")] = 5,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    checkpoint: Annotated[str, CHECKPOINT] = checkpoint.DEFAULT,
    tier: Annotated[str | None, TIER] = None,
    save: Annotated[bool, SAVE] = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Time of an iteration over the time to read what it needs from memory, and where it goes by kind of layer.

    Example: [bold]inflight bench floor --rounds 3[/]
    """
    source = terminal.fetch(checkpoint)
    with progress_console.status("Preparing the engine (built once, then kept)"):
        engine_dir = engine.cached(source, BuildConfig(max_batch_size=max(bench.floor.BATCHES)), tier)
    keep = _keeper(save, "floor", engine_dir=engine_dir)
    with progress_console.status("Starting") as status:
        result = bench.floor.bench(engine_dir, source, rounds, seed=seed, progress=status.update)
    print_benchmark(result, as_json)
    keep(result)


# Runs -----------------------------------------------------------------------------------------------------------------


def _build_config(max_batch_size: int, kv_cache_tokens: int | None) -> BuildConfig:
    """An engine whose longest request fits into a KV cache of so many tokens."""
    if kv_cache_tokens is None:
        return BuildConfig(max_batch_size=max_batch_size)
    return BuildConfig(
        max_batch_size=max_batch_size, max_input_len=max(1, kv_cache_tokens // 2), max_seq_len=kv_cache_tokens
    )


def _requests(
    dataset: str, number: int | None, engine_dir: Path, seed: int, max_input_len: int | None = None
) -> list[TimedRequest]:
    """`plan.requests` for an engine; says when prompts are left out."""
    tokenizer, build = checkpoint.load_tokenizer(engine_dir), engine.read(engine_dir).build_config
    return bench.plan.requests(dataset, number, tokenizer, build, seed, terminal.tell, max_input_len)


def _warm(send: Sends, requests: list[TimedRequest], number: int) -> None:
    if number > 0:
        with progress_console.status(f"Warming up: {number} requests that are not counted"):
            bench.load_generator.warm_up(send, requests, number)


def _run(send: Sends, requests: list[TimedRequest], concurrency: int | None, closed: bool) -> Run:
    """`load_generator.load` with a progress bar."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console, transient=True, disable=not progress_console.is_terminal) as bar:
        task = bar.add_task("requests", total=len(requests))
        return bench.load_generator.load(
            send, requests, concurrency, lambda done, total: bar.update(task, completed=done), closed=closed
        )


# Printing -------------------------------------------------------------------------------------------------------------


def _keeper(
    wanted: bool, benchmark: str, model: str | None = None, engine_dir: Path | None = None
) -> Callable[[dict], None]:
    """What keeps a result in assets/results if it is wanted; whether it can is seen now, before anything is measured.

    The model is that of the engine, and the device too, where one is given.
    """
    from inflight import machine

    if not wanted:
        return lambda result: None
    device = machine.device_name()
    if engine_dir is not None:
        info = engine.read(engine_dir)
        model, device = info.pretrained_config["checkpoint"]["name"], machine.device_name(info.device)
    assert model is not None
    bench.recorded.check(benchmark, model, device)

    def keep(result: dict) -> None:
        path = bench.recorded.save(result, benchmark, model)
        progress_console.print(f"Kept in {path}", highlight=False, soft_wrap=True)

    return keep


def device_of(url: str | None, engine_dir: Path) -> str:
    """What a load's server computes on: the engine's device, where the server is for the occasion."""
    return bench.devices.of_engine(engine_dir) if url is None else bench.devices.of_server(url)


def print_benchmark(result: dict, as_json: bool) -> None:
    """A benchmark's result as one JSON object, or as a table of its rows, its ratios, and the machine."""
    if as_json:
        print(json.dumps(result, indent=2))
        return
    _print_rows(result["rows"])
    if "rows_by_length" in result:
        _print_rows(result["rows_by_length"], "One token of one sequence, in process")
    if "rows_by_kind" in result:
        _print_rows(result["rows_by_kind"], "Where it goes, by kind of layer")
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
    print_machine(result["machine"], result["devices"])


def _print_rows(rows: list[dict], title: str | None = None) -> None:
    # Blanks, where a narrow terminal breaks lines.
    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title, title_justify="left")
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*map(_cell, row, row.values()))
    console.print(table)


def _cell(name: str, value: float | str | None) -> str:
    """A figure with one decimal, a large one with none: seven columns fit a narrow terminal. A ratio has two."""
    if isinstance(value, float):
        decimals = 2 if "over" in name.split("_") else 1 if abs(value) < 1000 else 0
        return f"{value:.{decimals}f}"
    return "-" if value is None else str(value)


def _print_runs(
    runs: dict[str, Run], settings: dict, device: str, as_json: bool, objective: Objective | None = None
) -> None:
    """Figures of loads side by side: one column each."""
    result = bench.report.result(runs, settings, device, objective)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    columns = [bench.report.labelled(row) for row in result["rows"]]
    table = Table("", *runs)
    for title in columns[0]:
        if any(column[title] != "-" for column in columns):
            table.add_row(title, *(column[title] for column in columns))
    console.print(table)
    for late in filter(None, (row.get("late") for row in result["rows"])):
        console.print(escape(late), highlight=False, soft_wrap=True)
    console.print(f"{settings['warm_up_requests']} warm-up requests went before and are not counted.", highlight=False)
    print_machine(result["machine"], result["devices"])


def print_machine(facts: dict, devices: dict[str, str]) -> None:
    """What a benchmark was computed on, below its figures."""
    sides = [f"{side} on {device}" for side, device in devices.items()]
    computed = next(iter(devices.values())) if len(set(devices.values())) == 1 else "; ".join(sides)
    console.print(escape(f"computed on {computed}"), highlight=False)
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
