"""Two batching types of the engine alone, in this process: what batching gives where no server is in between.

result = compare("V1", "inflight_fused_batching", engine_dir, workload.trace("skewed", tokenizer))
result["ratios"]["throughput"]["median"], result["predicted"]["throughput"]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import pandas as pd

from inflight import engine, machine
from inflight.bench import compare as served
from inflight.bench import devices, load_generator
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.config import BATCHING_TYPES, ExecutorConfig, Request
from inflight.engine.executor import Executor
from inflight.engine.model import Model, load
from inflight.engine.prediction import iteration_cost
from inflight.errors import CourseError

WARM_UP_TOKENS = 8


def compare(
    first: str,
    second: str,
    engine_dir: str | Path,
    requests: list[TimedRequest],
    policy: str = "guaranteed_no_evict",
    rounds: int = 5,
    progress: Callable[[str], None] = lambda step: None,
) -> dict:
    """Run `first` and `second` on one trace in turns, after one round that is not counted.

    The model is loaded once. Answers have the length that they are asked for: nothing ends them earlier.

    Parameters
    ----------
    first, second : str
        Batching types; ratios are second over first.
    requests : list of TimedRequest
        The trace; all of them are there from the start.
    policy : str
        The engine's `batch_scheduler_policy`.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`; `rows`, one a type, medians over the rounds; `ratios`: `throughput` and
        `throughput_measured_over_predicted`; `predicted`: the same `throughput` from lengths and the cost of an
        iteration that was measured beside, see `compare.predicted`.

    Raises
    ------
    CourseError
        A type or policy that is not known, before anything is loaded; the engine cannot be loaded.
    """
    check(first, second, policy, rounds)
    info, tokenizer = engine.read(engine_dir), load_tokenizer(engine_dir)
    work = [Request(tokenizer.encode(tokenizer.chat(request.text)), request.max_tokens) for request in requests]
    progress("loading the engine")
    model = load(engine_dir)
    speeds: dict[str, list[float]] = {first: [], second: []}
    slots = info.build_config.max_batch_size
    logs = _calibration(model, work, slots, progress)
    for number in range(rounds + 1):
        for name in (first, second) if number % 2 else (second, first):
            progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
            with Executor(model, ExecutorConfig(gpt_model_type=name, batch_scheduler_policy=policy)) as executor:
                executor.generate(Request(work[0].input_ids, WARM_UP_TOKENS))
                speed = load_generator.tokens_per_s(executor, work)
            if number:
                speeds[name].append(speed)
    logs += _calibration(model, work, slots, progress)  # before and after: a machine is never quite the same for long
    predicted = served.predicted(requests, slots, (first, second), iteration_cost(pd.concat(logs)))
    throughput = load_generator.ratio(speeds[second], speeds[first])
    return {
        "machine": machine.describe(),
        "devices": dict.fromkeys(speeds, devices.of_engine(engine_dir)),
        "settings": {
            "requests": len(requests),
            "output_tokens": sum(request.max_tokens for request in requests),
            "policy": policy,
            "max_batch_size": slots,
            "rounds": rounds,
            "warm_up_rounds": 1,
        },
        "rows": [
            {
                "way": f"{name}, in process",
                "tokens_per_s": median(values),
                "iterations": predicted["iterations"][name],
                "predicted_s": predicted["seconds"][name],
            }
            for name, values in speeds.items()
        ],
        "ratios": {
            "throughput": throughput,
            "throughput_measured_over_predicted": {
                key: value / predicted["throughput"] for key, value in throughput.items()
            },
        },
        "predicted": predicted,
    }


def check(first: str, second: str, policy: str, rounds: int) -> None:
    """Refuse what `compare` cannot do, with a CourseError."""
    served.check(first, second, policy, rounds)
    for name in (first, second):
        if name not in BATCHING_TYPES:
            raise CourseError(
                f"{name} is no batching type of the engine, which is all that runs in process: name two of "
                f"{', '.join(BATCHING_TYPES)}, or leave out --in-process."
            )


def _calibration(model: Model, work: list[Request], slots: int, progress: Callable[[str], None]) -> list[pd.DataFrame]:
    """Iteration logs of 1, 2, … `slots` requests at once, as `compare.calibrate` has them from a server."""
    lengths = [request.request_output_len for request in work]
    request = Request(work[0].input_ids, max(2, round(sum(n * n for n in lengths) / sum(lengths))))
    logs = []
    with Executor(model, ExecutorConfig(gpt_model_type="inflight_fused_batching")) as executor:
        executor.generate(Request(work[0].input_ids, WARM_UP_TOKENS))
        for number in range(1, slots + 1):
            progress(f"cost of an iteration with {number} of {slots} answers")
            executor.iteration_stats.clear()
            executor.generate_all([request] * number)
            logs.append(pd.DataFrame([asdict(stats) for stats in executor.iteration_stats]))
    return logs
