"""`inflight bench sweep` and `inflight bench honesty`: at which load a server breaks; whether the figures are true."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from inflight import bench, checkpoint, engine, notebook
from inflight.bench.arrivals import BURSTS_CV, DAY_S, DAY_SWING
from inflight.bench.names import RATED
from inflight.cli import bench as benches
from inflight.cli import terminal, traffic_options
from inflight.cli.terminal import ENGINE_DIR, console, progress_console
from inflight.errors import CourseError

if TYPE_CHECKING:
    from inflight.bench.sweep import Aim
    from inflight.bench.sweep_file import SweepFile

USERS = 8  # under way while a server whose slots are not known is warmed up


def sweep(
    url: Annotated[str | None, benches.URL] = None,
    api: Annotated[str, traffic_options.API] = "auto",
    model: Annotated[str, typer.Option(help="The text model to ask.")] = "ensemble",
    dataset: Annotated[str, benches.DATASET] = "dataset",
    max_input_len: Annotated[int | None, benches.MAX_INPUT_LEN] = None,
    arrivals: Annotated[str | None, typer.Option(help=f"{', '.join(RATED)} or trace; by default poisson.")] = None,
    cv: Annotated[float, traffic_options.CV] = BURSTS_CV,
    day_s: Annotated[float, traffic_options.DAY_S] = DAY_S,
    day_swing: Annotated[float, traffic_options.DAY_SWING] = DAY_SWING,
    trace: Annotated[str | None, traffic_options.TRACE] = None,
    output_lengths: Annotated[
        str, typer.Option(help="dataset, normal:MEAN,STDEV or histogram:8=6,16=2,256=1.")
    ] = "dataset",
    let_end: Annotated[bool, traffic_options.LET_END] = False,
    system_prompt: Annotated[int | None, traffic_options.SYSTEM_PROMPT] = None,
    turns: Annotated[int, traffic_options.TURNS] = 1,
    think_s: Annotated[float, traffic_options.THINK_S] = 0.0,
    objective: Annotated[str | None, traffic_options.OBJECTIVE] = None,
    share: Annotated[float, typer.Option(help="Share of requests that must meet it for a rate to keep it.")] = 0.95,
    rates: Annotated[
        str | None, typer.Option(help="Requests a second, as 1,2,4; by default found, up to the limit.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long requests arrive in a round.")] = 20.0,
    rounds: Annotated[int, typer.Option(help="Rounds at each rate.")] = 3,
    stream: Annotated[bool, typer.Option("--stream/--whole", help="Answers in pieces, or whole.")] = True,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    values: Annotated[list[str] | None, traffic_options.SET] = None,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    results: Annotated[Path | None, typer.Option(help="File that is whole after each round.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the file of --results.")] = False,
    csv: Annotated[Path | None, typer.Option(help="File for one line a request, of every round.")] = None,
    picture: Annotated[Path | None, typer.Option(help="HTML file for the picture, with the knee marked.")] = None,
    as_json: Annotated[bool, benches.AS_JSON] = False,
) -> None:
    """Raise the rate of arrivals until the server is over its limit: latency, goodput and capacity by load.

    Example: [bold]inflight bench sweep --objective ttft=500,itl=40 --results sweep.json --picture sweep.html[/]

    Ctrl-C ends it, and [bold]... --resume[/] with the same options takes it up again.
    """
    if arrivals == "all-at-once":
        raise CourseError(f"A sweep raises the rate of arrivals: give --arrivals {', '.join(RATED)} or --trace.")
    arrivals = bench.plan.arrivals(arrivals or ("poisson" if trace is None else None), 1.0, None, output_lengths, trace)
    limits = bench.objective.Objective() if objective is None else bench.objective.parse(objective)
    limits.check_streaming(stream)
    aim = bench.sweep.Aim(limits, share, bench.sweep.parse_rates(rates), seconds, rounds)
    values = terminal.values(values)
    bench.plan.check_target(url, model, api, values)
    traffic = bench.traffic.Traffic(
        arrivals,
        dataset,
        max_input_len,
        None,
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
    settings = {
        "url": url,
        "api": api,
        "model": model,
        **traffic.settings(),
        "objective": objective,
        "share": share,
        "rates": rates,
        "seconds": seconds,
        "rounds": rounds,
        "stream": stream,
        "set": values,
        "engine_dir": engine_dir and str(engine_dir),
    }
    bench.report.check_writable(*(path for path in (csv, picture) if path is not None))
    kept = bench.sweep_file.open_file(results, settings, resume)
    engine_dir = engine_dir or terminal.cached_engine()
    tokenizer, build = checkpoint.load_tokenizer(engine_dir), engine.read(engine_dir).build_config
    some = traffic.requests(tokenizer, build, None, terminal.tell)
    device = benches.device_of(url, engine_dir)

    def make(rate: float, number: int, turn: int) -> list:
        number = number if trace is None else min(number, len(some))  # its times end with its last request
        chosen = bench.traffic.repeated(some, number, tokenizer)
        bench.plan.check_fit(chosen, build)
        return traffic.timed(chosen, rate, seed + turn - 1)

    rows = bench.sweep_rows.SweepRows(csv, resume)
    with (
        _ended(kept, aim, device, as_json, picture),
        bench.plan.target(
            url,
            model,
            engine_dir,
            stream,
            terminal.server,
            api=api,
            probe=some[0],
            exact=not let_end,
            remember=traffic.shares_prefixes,
            values=values,
        ) as (send, log),
        progress_console.status("Warming up") as status,
    ):
        users = build.max_batch_size if url is None else USERS
        tell = status.update
        sent, base = bench.sweep.warm_up(send, some, users, tell)
        kept.warm_up_requests = sent
        if not kept.rounds:
            bench.sweep.check_alone(send, some, limits, tell)
        calibrate: Callable[[], None] = lambda: None
        if log is not None:

            def calibrate() -> None:
                kept.costs.append(bench.sweep.calibrate(send.client, some, users, log, stream, tell))
                kept.save()

            calibrate()
        kept.base_per_s = kept.base_per_s or base
        kept.save()
        bench.sweep.measure(kept, make, send, aim, log, tell, rows.keep)
        calibrate()  # again: a machine is never quite the same for long


@contextlib.contextmanager
def _ended(kept: SweepFile, aim: Aim, device: str, as_json: bool, picture: Path | None) -> Iterator[None]:
    """Show what there is however the block ends: a CourseError, Ctrl-C and SIGTERM, come after it."""
    trouble: CourseError | None = None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        trouble = CourseError("The sweep was interrupted.")
    except CourseError as error:
        trouble = error
    if kept.rates:
        result = bench.sweep.summary(kept, aim, device)
        if picture is not None:
            figure = notebook.charts.load_sweep(result)
            bench.report.write(picture, notebook.charts.display.page(figure))
        _print(result, as_json)
    if trouble is not None:
        where = f" What was measured is in {kept.path}; --resume goes on." if kept.path and kept.rounds else ""
        raise CourseError(f"{trouble}{where}") from trouble


def _print(result: dict, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result, indent=2))
        return
    # Seven columns of short words: they fit a narrow terminal. Times are P99, in milliseconds.
    table = Table("come /s", "answered /s", "goodput /s", "meet it", "TTFT P99", "ITL P99", "end P99")
    for row in result["rows"]:
        note = " over" if row["over_limit"] else " knee" if row["rate"] == result["knee"] else ""
        times = [row[f"{name}_p99_median"] for name in ("ttft_ms", "itl_ms", "latency_ms")]
        table.add_row(
            f"{row['rate']:.3g}{note}",
            f"{row['served_per_s_median']:.2f}",
            "{goodput_per_s_median:.2f} ({goodput_per_s_min:.2f} to {goodput_per_s_max:.2f})".format(**row),
            f"{100 * row['met_share_median']:.0f} %",
            *("-" if value is None else f"{value:,.0f}" for value in times),
        )
    console.print(table)
    console.print("Times in milliseconds; goodput: median of the rounds, least and most.", highlight=False)
    console.print(escape(bench.sweep.in_words(result)), highlight=False, soft_wrap=True)
    benches.print_machine(result["machine"], result["devices"])


def honesty(
    loads: Annotated[str, typer.Option(help="Arrivals a second times seconds of service, each below 1.")] = "0.3,0.8",
    service_ms: Annotated[float, typer.Option(help="Milliseconds that each request is served.")] = 100.0,
    requests: Annotated[int, typer.Option(help="At each load.")] = 200,
    engine_dir: Annotated[Path | None, ENGINE_DIR] = None,
    as_json: Annotated[bool, benches.AS_JSON] = False,
) -> None:
    """What `bench load` measures of a server whose figures theory knows: one queue, one time of service (M/D/1).

    Example: [bold]inflight bench honesty --loads 0.3,0.8[/]
    """
    try:
        shares = [float(part) for part in loads.split(",")]
    except ValueError:
        raise CourseError(f"--loads {loads}: write numbers with commas between, as 0.3,0.8.") from None
    bench.md1.check(shares, service_ms / 1000, requests)
    tokenizer = checkpoint.load_tokenizer(engine_dir or terminal.cached_engine())
    with progress_console.status("Starting") as status:
        result = bench.md1.bench(shares, service_ms / 1000, requests, tokenizer, status.update)
    benches.print_benchmark(result, as_json)
