"""Two batching types, or two policies, of the engine alone: what they give where no server is in between.

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
from inflight.engine.config import BATCHING_TYPES, POLICIES, ExecutorConfig, Request
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
    kv_cache_tokens: int | None = None,
) -> dict:
    """Run `first` and `second` on one trace in turns, after one round that is not counted.

    The model is loaded once. Answers have the length that they are asked for: nothing ends them earlier.

    Parameters
    ----------
    first, second : str
        Batching types or policies; ratios are second over first.
    requests : list of TimedRequest
        The trace; all of them are there from the start.
    policy : str
        The `batch_scheduler_policy` of batching types.
    kv_cache_tokens : int, optional
        Most tokens in the KV cache; by default what memory has, and full slots can use.

    Returns
    -------
    dict
        `machine`, `devices`, `settings`; `rows`, one a way, medians over the rounds; `ratios`: `throughput`; between
        two types `throughput_measured_over_predicted` as well, and `predicted`: the same `throughput` from lengths and
        the cost of an iteration that was measured beside, see `compare.predicted`.

    Raises
    ------
    CourseError
        A type or policy that is not known, before anything is loaded; the engine cannot be loaded, or its cache would
        be too small for one longest request.
    """
    check(first, second, policy, rounds)
    info, tokenizer = engine.read(engine_dir), load_tokenizer(engine_dir)
    work = [Request(tokenizer.encode(tokenizer.chat(request.text)), request.max_tokens) for request in requests]
    progress("loading the engine")
    model = load(engine_dir)
    speeds: dict[str, list[float]] = {first: [], second: []}
    slots = info.build_config.max_batch_size
    is_predicted = first in BATCHING_TYPES and second in BATCHING_TYPES and kv_cache_tokens is None
    logs = _calibration(model, work, slots, progress) if is_predicted else []
    for number in range(rounds + 1):
        for name in (first, second) if number % 2 else (second, first):
            progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
            with Executor(model, _config(name, policy, kv_cache_tokens)) as executor:
                executor.generate(Request(work[0].input_ids, WARM_UP_TOKENS))
                speed = load_generator.tokens_per_s(executor, work)
            if number:
                speeds[name].append(speed)
    throughput = load_generator.ratio(speeds[second], speeds[first])
    result = {
        "machine": machine.describe(),
        "devices": dict.fromkeys(speeds, devices.of_engine(engine_dir)),
        "settings": {
            "requests": len(requests),
            "output_tokens": sum(request.max_tokens for request in requests),
            "policy": policy,
            "max_batch_size": slots,
            "kv_cache_tokens": kv_cache_tokens,
            "rounds": rounds,
            "warm_up_rounds": 1,
        },
        "rows": [{"way": f"{name}, in process", "tokens_per_s": median(values)} for name, values in speeds.items()],
        "ratios": {"throughput": throughput},
    }
    if is_predicted:  # with what was measured before and after: a machine is never quite the same for long
        logs += _calibration(model, work, slots, progress)
        predicted = served.predicted(requests, slots, (first, second), iteration_cost(pd.concat(logs)))
        result["predicted"] = predicted
        result["ratios"]["throughput_measured_over_predicted"] = {
            key: value / predicted["throughput"] for key, value in throughput.items()
        }
    return result


def check(first: str, second: str, policy: str, rounds: int) -> None:
    """Refuse what `compare` cannot do, with a CourseError."""
    ways = (*BATCHING_TYPES, *POLICIES)
    for name in (first, second):
        if name not in ways:
            raise CourseError(
                f"{name} does not run in process, where there are {', '.join(ways)}: name two of them, or leave out "
                "--in-process."
            )
    if first == second:
        raise CourseError(f"Both sides are {first}: name two different ones of {', '.join(ways)}.")
    if policy not in POLICIES:
        raise CourseError(f"The policy is {policy!r}; it must be {' or '.join(POLICIES)}.")
    if rounds < 1:
        raise CourseError(f"The number of rounds is {rounds}; it must be at least 1.")


def _config(way: str, policy: str, kv_cache_tokens: int | None) -> ExecutorConfig:
    chosen = {"batch_scheduler_policy": way} if way in POLICIES else {"gpt_model_type": way}
    return ExecutorConfig(
        **{"batch_scheduler_policy": policy, "max_tokens_in_paged_kv_cache": kv_cache_tokens, **chosen}
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
