"""Measure: the same requests through different ways, in one run, as ratios.

Times are shown, never judged: they belong to the machine they were taken on. Ratios of two ways that took turns in one run
are what can be compared.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inflight import machine, repository, tokenizer
from inflight.client import Client
from inflight.errors import CourseError
from inflight.executor import Executor, Request
from inflight.server import Server

TOPICS = ("rivers", "bridges", "clouds", "chess", "bread", "maps", "bees", "trains")
OUTPUT_LENGTHS = (8, 16, 16, 24, 32, 32, 64, 128)
NEVER = -1  # an end id that no token has: answers are exactly as long as asked for


def serving_tax(engine_dir: str | Path, workdir: str | Path, num_requests: int = 32, in_flight: int = 8, rounds: int = 5,
                seed: int = 0, progress: Callable[[str], None] = lambda step: None) -> dict:
    """Tokens/s through Triton over tokens/s of the engine alone in process: what serving costs.

    Parameters
    ----------
    workdir : path
        Folder for the model repository.
    num_requests : int
        Requests a round, the same for every way.
    in_flight : int
        How many are under way at any time.
    rounds : int
        Each round runs every way once; their order turns around from round to round. A round before them warms up
        and is not counted.

    Returns
    -------
    dict
        `machine`, `settings`, `rows` (way, tokens_per_s by round) and `ratios` (median, min, max over the rounds).
    """
    text = tokenizer.load(engine_dir)
    prompts, lengths = _requests(num_requests, seed)
    ids = [text.encode(text.chat(prompt)) for prompt in prompts]
    repo = repository.assemble(Path(workdir) / "repository", engine_dir)
    with Executor(engine_dir) as executor, Server(repo) as server, Client(server.grpc_url) as client:
        ways = {
            "engine in process": lambda i: executor.generate(Request(ids[i], lengths[i])),
            "Triton, tensorrt_llm": lambda i: client.ask_tokens(ids[i], lengths[i], exclude_input_in_output=True),
            "Triton, ensemble": lambda i: client.ask(prompts[i], lengths[i], end_id=NEVER),
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                progress(f"round {number} of {rounds}: {name}" if number else f"warm-up: {name}")
                elapsed = _closed_loop(ways[name], num_requests, in_flight)
                if number:
                    speeds[name].append(sum(lengths) / elapsed)
    alone = speeds["engine in process"]
    return {
        "machine": machine.describe(),
        "settings": {"num_requests": num_requests, "in_flight": in_flight, "rounds": rounds, "seed": seed,
                     "output_tokens": sum(lengths), "warm_up_rounds": 1},
        "rows": [{"way": name, **_spread("tokens_per_s", values)} for name, values in speeds.items()],
        "ratios": {
            "served_over_in_process": _ratio(speeds["Triton, ensemble"], alone),
            "served_tokens_over_in_process": _ratio(speeds["Triton, tensorrt_llm"], alone),
        },
    }


def _requests(number: int, seed: int) -> tuple[list[str], list[int]]:
    """Prompts of about equal length, and output lengths in tokens."""
    if number < 1:
        raise CourseError(f"The number of requests is {number}; it must be at least 1.")
    choose = random.Random(seed)
    prompts = [f"Tell me {index + 2} facts about {TOPICS[index % len(TOPICS)]}." for index in range(number)]
    return prompts, [choose.choice(OUTPUT_LENGTHS) for _ in range(number)]


def _closed_loop(send: Callable[[int], object], number: int, in_flight: int) -> float:
    """Seconds for requests 0 … number − 1, `in_flight` of them at any time; an answer makes room for the next."""
    with ThreadPoolExecutor(in_flight) as pool:
        started = time.perf_counter()
        list(pool.map(send, range(number)))
        return time.perf_counter() - started


def _ratio(values: list[float], base: list[float]) -> dict[str, float]:
    ratios = [value / reference for value, reference in zip(values, base)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def _spread(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}_median": statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}
