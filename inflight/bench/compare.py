"""Two ways of serving on the same requests, taking turns in one run; and what arithmetic says should come out.

    result = compare("V1", "inflight_fused_batching", engine_dir, workload.trace("skewed", tokenizer), workdir)
    result["ratios"]["throughput"]["median"], result["predicted"]["throughput"]

A way is a `gpt_model_type` of the engine behind `ensemble`, or a model of the repository: `ensemble`, `llama-python`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pandas as pd

from inflight import engine, machine
from inflight.bench import devices, load_generator, report, trace_run
from inflight.bench.names import MODELS, WAYS
from inflight.bench.trace_run import TraceRun
from inflight.bench.workload import NUMBERS, TimedRequest, alike_until, opening
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BATCHING_TYPES, POLICIES, ExecutorConfig, Request
from inflight.engine.executor import Executor
from inflight.engine.prediction import IterationCost, iteration_cost, schedule
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client
from inflight.triton.server import Server

WARM_UP_TOKENS = 8


def compare(
    first: str,
    second: str,
    engine_dir: str | Path,
    requests: list[TimedRequest],
    workdir: str | Path,
    policy: str = "guaranteed_no_evict",
    rounds: int = 5,
    checkpoint_dir: str | Path | None = None,
    progress: Callable[[str], None] = lambda step: None,
    mix_devices: bool = False,
) -> dict:
    """Run `first` and `second` on one trace in turns, after one round that is not counted.

    Parameters
    ----------
    first, second : str
        Ways of serving; ratios are second over first.
    requests : list of TimedRequest
        The trace. Sent at their `at_s`; for the prediction all of them are there from the start.
    workdir : path
        Folder for repository and iteration log.
    policy : str
        The engine's `batch_scheduler_policy`.
    checkpoint_dir : path, optional
        Hugging Face folder, which `llama-python` needs.
    mix_devices : bool
        Compare ways that compute on different devices, too.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`, `rows` (one a way), `ratios` (median, min and max over the rounds) and,
        between two batching types, `predicted`: the same ratios from lengths and the measured cost of an iteration.

    Raises
    ------
    CourseError
        A way or policy that is not known, or different devices, before anything starts; a request that failed.
    """
    check(first, second, policy, rounds)
    # The baseline computes where the machine's tier is; the engine where it was built for.
    of_engine = devices.of_engine(engine_dir)
    sides = {name: machine.device_name() if name == repository.BASELINE else of_engine for name in (first, second)}
    devices.check(sides, mix_devices)
    slots = engine.read(engine_dir).build_config.max_batch_size
    batching = first in BATCHING_TYPES and second in BATCHING_TYPES
    log_path = Path(workdir) / "iterations.jsonl"
    with_python = repository.BASELINE in (first, second)
    repo = repository.assemble(
        Path(workdir) / "repository",
        engine_dir,
        batch_scheduler_policy=policy,
        iteration_log_path=log_path,
        **(
            {"models": (*repository.PIPELINE, repository.BASELINE), "checkpoint_dir": checkpoint_dir}
            if with_python
            else {}
        ),
    )
    trials: dict[str, list[TraceRun]] = {first: [], second: []}
    alone = []
    with Server(repo) as server, Client(server.grpc_url) as client:
        calibration = calibrate(client, requests, slots, log_path, progress) if batching else []
        for number in range(rounds + 1):
            for name in (first, second) if number % 2 else (second, first):
                progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
                one = _turn(server, client, name, policy, requests, log_path)
                if number:
                    trials[name].append(one)
            if batching and number:
                progress(f"round {number} of {rounds}: engine in process")
                alone.append(_in_process(engine_dir, second, policy, requests))
        if batching:  # before and after: a machine is never quite the same for long
            _switch(server, "inflight_fused_batching", policy)
            calibration += calibrate(client, requests, slots, log_path, progress)
    result = _result(trials, alone)
    settings = {
        "requests": len(requests),
        "output_tokens": sum(request.max_tokens for request in requests),
        "policy": policy,
        "max_batch_size": slots,
        "rounds": rounds,
        "warm_up_rounds": 1,
    }
    if batching:
        result["predicted"] = predicted(requests, slots, (first, second), iteration_cost(pd.concat(calibration)))
        for name in ("throughput", "mean_latency"):
            expected = result["predicted"][name]
            result["ratios"][f"{name}_measured_over_predicted"] = {
                key: value / expected for key, value in result["ratios"][name].items()
            }
    return {"machine": machine.describe(), "devices": sides, "settings": settings, **result}


def predicted(requests: list[TimedRequest], slots: int, types: tuple[str, str], cost: IterationCost) -> dict:
    """Ratios second over first that lengths and the cost of an iteration lead to, without a run of the trace.

    Returns
    -------
    dict
        `throughput`, `mean_latency`; of each type `iterations` and `seconds`; and the cost, as in `IterationCost`.
    """
    lengths = [request.max_tokens for request in requests]
    prompt_tokens = sum(request.input_len for request in requests) / len(requests)
    plans = [schedule(lengths, slots, name) for name in types]
    seconds = [cost.seconds(plan, prompt_tokens) for plan in plans]
    latencies = [cost.latencies_s(plan, prompt_tokens).mean() for plan in plans]
    return {
        "throughput": seconds[0] / seconds[1],
        "mean_latency": latencies[1] / latencies[0],
        "seconds": dict(zip(types, seconds)),
        "answers_ms": cost.answers_ms.round(2).to_dict(),
        "prompt_token_ms": round(cost.prompt_token_ms, 3),
        "iterations": {name: len(plan.iterations) for name, plan in zip(types, plans)},
    }


def check(first: str, second: str, policy: str, rounds: int) -> None:
    """Refuse what `compare` cannot do, with a CourseError."""
    for name in (first, second):
        if name not in WAYS:
            raise CourseError(f"There is no way of serving called {name!r} to compare. There are: {', '.join(WAYS)}.")
    if first == second:
        raise CourseError(f"Both sides are {first}: name two different ones of {', '.join(WAYS)}.")
    if policy not in POLICIES:
        raise CourseError(f"The policy is {policy!r}; it must be {' or '.join(POLICIES)}.")
    if rounds < 1:
        raise CourseError(f"The number of rounds is {rounds}; it must be at least 1.")


def _turn(
    server: Server, client: Client, name: str, policy: str, requests: list[TimedRequest], log_path: Path
) -> TraceRun:
    """One run of the trace one way."""
    if name in BATCHING_TYPES:
        _switch(server, name, policy)
    model = name if name in MODELS else "ensemble"
    trace_run.run(client, [replace(requests[0], max_tokens=WARM_UP_TOKENS, at_s=0.0)], log_path, model)
    return trace_run.run(client, requests, log_path, model)


def _switch(server: Server, gpt_model_type: str, policy: str) -> None:
    server.load("tensorrt_llm", gpt_model_type=gpt_model_type, batch_scheduler_policy=policy)


def calibrate(
    client: Client,
    requests: list[TimedRequest],
    slots: int,
    log_path: str | Path,
    progress: Callable[[str], None] = lambda step: None,
    stream: bool = False,
) -> list[pd.DataFrame]:
    """Iteration logs of 1, 2, … `slots` requests at once, for `engine.iteration_cost`; the engine must batch in flight.

    An iteration costs more the longer the texts in it are: each answer's whole past is read. So these requests have
    prompts like the first of `requests`, and answers so long that their middle is where a token of `requests` has its
    place on average: the sum of squared lengths over the sum of lengths. With `stream` they are asked for in pieces,
    whose sending is part of an iteration's cost then.

    No two prompts are alike, but for what all of `requests` begin with: an engine that finds prompts in its KV cache
    would compute next to nothing of them, and what a token of a prompt costs would be read from a handful.
    """
    lengths, shared = [request.max_tokens for request in requests], alike_until(request.text for request in requests)
    middle = max(2, round(sum(n * n for n in lengths) / sum(lengths)))

    def prompts(number: int, max_tokens: int) -> list[TimedRequest]:
        like = replace(requests[0], max_tokens=max_tokens, at_s=0.0, after=None)
        return [replace(like, text=opening(like.text, next(NUMBERS), shared)) for _ in range(number)]

    trace_run.run(client, prompts(1, WARM_UP_TOKENS), log_path, stream=stream)
    logs = []
    for number in range(1, slots + 1):
        progress(f"cost of an iteration with {number} of {slots} answers")
        logs.append(trace_run.run(client, prompts(number, middle), log_path, stream=stream).log)
    return logs


def _in_process(engine_dir: Path, gpt_model_type: str, policy: str, requests: list[TimedRequest]) -> float:
    """Tokens/s of the engine alone on the trace."""
    tokenizer = load_tokenizer(engine_dir)
    work = [Request(tokenizer.encode(tokenizer.chat(request.text)), request.max_tokens) for request in requests]
    config = ExecutorConfig(gpt_model_type=gpt_model_type, batch_scheduler_policy=policy)
    with Executor.load(engine_dir, config) as executor:
        executor.generate(replace(work[0], request_output_len=WARM_UP_TOKENS))
        return load_generator.tokens_per_s(executor, work)


def _result(trials: dict[str, list[TraceRun]], alone: list[float]) -> dict:
    first, second = trials
    figures = {name: pd.DataFrame([report.summary(one.run) for one in turns]) for name, turns in trials.items()}
    columns = {"throughput": "tokens_per_s", "mean_latency": "latency_ms_mean", "p99_latency": "latency_ms_p99"}
    ratios = {
        name: load_generator.ratio(figures[second][column].tolist(), figures[first][column].tolist())
        for name, column in columns.items()
    }
    rows = [
        {
            "way": name,
            "tokens_per_s": median(figures[name]["tokens_per_s"]),
            "mean_latency_ms": median(figures[name]["latency_ms_mean"]),
            "p99_latency_ms": median(figures[name]["latency_ms_p99"]),
            "iterations": median(len(one.log) for one in turns) or None,  # the baseline has none
            "most_in_an_iteration": max(int(one.log["scheduled"].max()) if len(one.log) else 1 for one in turns),
        }
        for name, turns in trials.items()
    ]
    if alone:
        rows.append({**dict.fromkeys(rows[0]), "way": f"{second}, in process", "tokens_per_s": median(alone)})
        ratios["served_over_in_process"] = load_generator.ratio(figures[second]["tokens_per_s"].tolist(), alone)
    return {"rows": rows, "ratios": ratios}
