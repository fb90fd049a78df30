"""Two servers that run already, on the same requests, taking turns in one run: another version, machine, or engine.

result = bench(("127.0.0.1:8001", "127.0.0.1:9001"), workload.trace("mild", tokenizer))
result["ratios"]["throughput"]["median"]        # second over first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

import pandas as pd

from inflight import machine
from inflight.bench import load_generator, report
from inflight.bench.load_generator import Run
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.triton.attached import Address
from inflight.triton.client import Client

WARM_UP_TOKENS = 8
RATIOS = {"throughput": "tokens_per_s", "mean_latency": "latency_ms_mean", "p99_latency": "latency_ms_p99"}


def check(urls: Sequence[str], rounds: int) -> None:
    """Refuse what cannot be compared: not two servers, one and the same, no round, something that is no address."""
    if len(urls) != 2:
        raise CourseError(f"There is {len(urls)} --url: give it twice, once for each server.")
    first, second = map(Address.at, urls)
    if first == second:
        raise CourseError(f"Both sides are {urls[0]}: name two different servers.")
    if rounds < 1:
        raise CourseError(f"The number of rounds is {rounds}; it must be at least 1.")


def bench(
    urls: Sequence[str],
    requests: list[TimedRequest],
    model: str = "ensemble",
    stream: bool = False,
    rounds: int = 5,
    progress: Callable[[str], None] = lambda step: None,
) -> dict:
    """Send the trace to each server in turns, after one round that is not counted.

    Parameters
    ----------
    urls : two str
        Of each "host:port" (gRPC) or "http://host:port"; ratios are second over first.
    model : str
        The text model that both have.
    stream : bool
        Ask for answers in pieces, which both models must give.

    Returns
    -------
    dict
        `machine` (the client's), `settings`, `rows` (one a server, medians over the rounds), `ratios`: `throughput`,
        `mean_latency`, `p99_latency` with median, min and max over the rounds.

    Raises
    ------
    CourseError
        What `check` refuses; a server that does not answer or has no such model; a request that failed.
    """
    check(urls, rounds)
    runs: dict[str, list[Run]] = {url: [] for url in urls}
    with ExitStack() as opened:
        clients = {url: opened.enter_context(Client(url, model)) for url in urls}
        for url, client in clients.items():
            if not client.is_ready():
                raise CourseError(
                    f"No server at {url} is ready with a model {model}. Look at its log, and its address."
                )
        for number in range(rounds + 1):
            for url in urls if number % 2 else reversed(urls):
                progress(f"round {number} of {rounds}: {url}" if number else f"warm-up: {url}")
                run = _turn(clients[url], requests, model, stream)
                if number:
                    runs[url].append(run)
    settings = {
        "urls": list(urls),
        "model": model,
        "requests": len(requests),
        "output_tokens": sum(request.max_tokens for request in requests),
        "stream": stream,
        "rounds": rounds,
        "warm_up_rounds": 1,
    }
    return {"machine": machine.describe(), "settings": settings, **_result(runs)}


def _turn(client: Client, requests: list[TimedRequest], model: str, stream: bool) -> Run:
    """One run of the trace, in which every request was answered; a short request goes before."""
    for trace in ([replace(requests[0], max_tokens=WARM_UP_TOKENS, at_s=0.0)], requests):
        with load_generator.sender(client, model, stream) as send:
            run = load_generator.load(send, trace)
        errors = run.requests["error"][run.requests["error"] != ""]
        if run.stopped or len(errors):
            raise CourseError(f"{client.url}: {run.stopped or errors.iloc[0]}")
    return run


def _result(runs: dict[str, list[Run]]) -> dict:
    figures = {url: pd.DataFrame([report.summary(run) for run in turns]) for url, turns in runs.items()}
    rows = [
        {
            "server": url,
            "tokens_per_s": median(table["tokens_per_s"]),
            "mean_latency_ms": median(table["latency_ms_mean"]),
            "p99_latency_ms": median(table["latency_ms_p99"]),
        }
        for url, table in figures.items()
    ]
    first, second = figures.values()
    ratios = {name: load_generator.ratio(second[key].tolist(), first[key].tolist()) for name, key in RATIOS.items()}
    return {"rows": rows, "ratios": ratios}
