"""What dynamic batching gains on a real model, beside what its cost per batch and per item says that it must gain.

    result = bench(huggingface.folder(checkpoint.fetch()), workdir)
    result["ratios"]["dynamic_over_none"]["median"], result["predicted"]["dynamic_over_none"]

The load is closed: as many texts are under way as fill two batches. So while one batch is computed the next one waits
already, and every batch is full. That makes the gain a matter of arithmetic: a full batch instead of as many single
ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from inflight import machine
from inflight.bench.targets import serving
from inflight.bench.turns import Progress, ratio, result, silent, take_turns
from inflight.errors import CourseError
from inflight.triton import client, repository, telemetry
from inflight.triton.client import Connection
from inflight.triton.server import Server
from inflight.triton.telemetry import Statistics

MODEL = repository.EMBEDDING
BATCHERS = {"none": False, "dynamic": True}
# What people type into a search box: 4 to 8 tokens each.
TEXTS = (
    "how tall is the eiffel tower",
    "cheap flights to lisbon",
    "best pasta near me",
    "what is a black hole",
    "weather in paris tomorrow",
    "train from oslo to bergen",
    "how to boil an egg",
    "who wrote moby dick",
)
WARM_UP_REQUESTS = 4
REPEATS, BATCHES = 3, 6  # measurements of a batch size, of which the median counts, and batches of each
TIMEOUT_S = 120


def bench(
    checkpoint_dir: str | Path,
    workdir: str | Path,
    rounds: int = 5,
    requests: int = 96,
    max_batch_size: int = 8,
    progress: Progress = silent,
) -> dict:
    """Throughput of text-embedding without and with dynamic batching, in turns, with a live reload before each.

    Each round measures three things: what one batch of 1, 2, 4, … texts costs, from requests with so many texts that no
    batcher puts together; and both batchers under the same load. From the cost alone follows the round's prediction.

    Parameters
    ----------
    checkpoint_dir : path
        Hugging Face folder with tokenizer.
    workdir : path
        Folder for the model repository.
    rounds : int
        Rounds that count; one before them warms up.
    requests : int
        Texts of a turn, one a request; `2 * max_batch_size` of them are under way at any time.
    max_batch_size : int
        Most texts in a batch.
    progress : callable, optional
        Called with what runs, and how many steps of all are done.

    Returns
    -------
    dict
        `machine`, `settings`; `rows`, one a batcher with medians over the rounds: texts_per_s, mean_batch,
        expected_batch; `cost`, medians of `fixed_ms` a batch and `item_ms` a text, and `batch_ms` by batch size;
        `ratios` (median, min and max over the rounds): `dynamic_over_none`, of throughput, and
        `measured_over_predicted`; `predicted`: the same `dynamic_over_none` from the costs.

    Raises
    ------
    CourseError
        A number below 1, or a `max_batch_size` below 2, before anything starts; a request that failed.
    """
    check(rounds, requests, max_batch_size)
    repo = repository.assemble(
        Path(workdir) / "repository",
        models=(MODEL,),
        checkpoint_dir=checkpoint_dir,
        embedding_max_batch_size=max_batch_size,
    )
    with serving(repo) as server, Connection(server.grpc_url) as connection:

        def turn(batcher: str) -> dict:
            """One batcher under load and, where there is none, the cost of a batch."""
            server.load(MODEL, dynamic_batching=BATCHERS[batcher])
            figures: dict = _loaded(server, connection, requests, 2 * max_batch_size)
            if not BATCHERS[batcher]:
                figures["batch_ms"] = batch_costs(connection, max_batch_size)
            return figures

        turns = take_turns({batcher: lambda batcher=batcher: turn(batcher) for batcher in BATCHERS}, rounds, progress)
    settings = {
        "device": machine.device_name(),
        "requests": requests,
        "in_flight": 2 * max_batch_size,
        "max_batch_size": max_batch_size,
        "rounds": len(turns["none"]),
    }
    return _result(settings, turns, requests, max_batch_size)


def check(rounds: int, requests: int, max_batch_size: int) -> None:
    """Refuse what `bench` cannot do, with a CourseError."""
    if rounds < 1:
        raise CourseError(f"The number of rounds is {rounds}; it must be at least 1.")
    if max_batch_size < 2:
        raise CourseError(f"The max_batch_size is {max_batch_size}; with less than 2 there is nothing to batch.")
    if requests < 2 * max_batch_size:
        raise CourseError(
            f"{requests} requests cannot keep {2 * max_batch_size} under way: give at least so many, or a "
            "smaller max_batch_size."
        )


def batch_costs(connection: Connection, max_batch_size: int) -> dict[int, float]:
    """Milliseconds that a batch of 1, 2, 4, … `max_batch_size` texts takes when one follows the other: medians.

    Each request is a batch: the model must have no batcher. Two are under way, so that the model is never idle, as
    under load: after a pause a batch costs more.
    """
    sizes = sorted({2**power for power in range(max_batch_size.bit_length())} | {max_batch_size})
    # Size by size in turns: when the machine gets slower for a while, all sizes get their part of it.
    turns = [{size: _batch_ms(connection, size) for size in sizes} for _ in range(REPEATS)]
    return {size: statistics.median(turn[size] for turn in turns) for size in sizes}


def line(batch_ms: dict[int, float]) -> tuple[float, float]:
    """The cost of a batch as (fixed_ms, item_ms): the line through `batch_ms` of least relative squares."""
    sizes, cost = np.array(list(batch_ms)), np.array(list(batch_ms.values()))
    item_ms, fixed_ms = np.polyfit(sizes, cost, 1, w=1 / cost)
    return float(fixed_ms), float(item_ms)


def expected_batches(requests: int, max_batch_size: int) -> list[int]:
    """Batches of a closed load that fills two of them: one of the first text alone, then full ones."""
    full, rest = divmod(requests - 1, max_batch_size)
    return [1] + [max_batch_size] * full + ([rest] if rest else [])


def predicted_gain(fixed_ms: float, item_ms: float, requests: int, max_batch_size: int) -> float:
    """Time of `requests` batches of one text over that of `expected_batches`."""
    alone = requests * (fixed_ms + item_ms)
    return alone / sum(fixed_ms + item_ms * size for size in expected_batches(requests, max_batch_size))


# Measuring ------------------------------------------------------------------------------------------------------------


def closed_loop(send: Callable[[int], object], number: int, in_flight: int) -> float:
    """Seconds for requests 0 … number − 1, `in_flight` of them at any time; an answer makes room for the next."""
    with ThreadPoolExecutor(in_flight) as pool:
        started = time.perf_counter()
        try:
            list(pool.map(send, range(number)))
        except BaseException:  # an interrupt, too: those that are under way end, and no other is sent
            pool.shutdown(cancel_futures=True)
            raise
        return time.perf_counter() - started


def _loaded(server: Server, connection: Connection, requests: int, in_flight: int) -> dict[str, float]:
    """One turn under load: what the clients saw and what Triton counted of it."""
    closed_loop(lambda number: embed(connection, _texts(number, 1)), WARM_UP_REQUESTS, 1)
    before = _counted(server, WARM_UP_REQUESTS)
    seconds = closed_loop(lambda number: embed(connection, _texts(number, 1)), requests, in_flight)
    done = _counted(server, WARM_UP_REQUESTS + requests) - before
    return {"texts_per_s": requests / seconds, "mean_batch": done.mean_batch}


def embed(connection: Connection, texts: list[str]) -> np.ndarray:
    """Embeddings of texts, float32 [texts, width], in one request; CourseError with the reason if there are none."""
    try:
        return connection.infer(MODEL, {"text_input": client.text(*texts)}, TIMEOUT_S).as_numpy("embedding")
    except CourseError as error:
        raise CourseError(f"{MODEL} did not answer: {error}") from error


def _batch_ms(connection: Connection, size: int) -> float:
    seconds = closed_loop(lambda number: embed(connection, _texts(number * size, size)), BATCHES, 2)
    return seconds / BATCHES * 1000


def _texts(first: int, number: int) -> list[str]:
    return [TEXTS[index % len(TEXTS)] for index in range(first, first + number)]


def _counted(server: Server, inferences: int) -> Statistics:
    """Triton's statistics since the model was loaded, as soon as they have `inferences` texts."""
    return telemetry.statistics_when(server.http_url, MODEL, lambda now: now.inferences >= inferences)


# Results --------------------------------------------------------------------------------------------------------------


def _result(settings: dict, turns: dict[str, list[dict]], requests: int, max_batch_size: int) -> dict:
    """Rows, costs and ratios of all rounds; each round is compared with the prediction of its own cost."""
    none, dynamic = ([turn["texts_per_s"] for turn in turns[batcher]] for batcher in BATCHERS)
    costs = [turn["batch_ms"] for turn in turns["none"]]
    lines = [line(batch_ms) for batch_ms in costs]
    gains = [predicted_gain(*cost, requests, max_batch_size) for cost in lines]
    measured = [one / other for one, other in zip(dynamic, none)]
    expected = len(expected_batches(requests, max_batch_size))
    rows = [
        {
            "batcher": batcher,
            **{
                name: statistics.median(turn[name] for turn in turns[batcher]) for name in ("texts_per_s", "mean_batch")
            },
            "expected_batch": requests / expected if BATCHERS[batcher] else 1.0,
        }
        for batcher in BATCHERS
    ]
    cost = {
        "fixed_ms": statistics.median(fixed for fixed, _ in lines),
        "item_ms": statistics.median(item for _, item in lines),
        "batch_ms": {size: statistics.median(batch_ms[size] for batch_ms in costs) for size in costs[0]},
    }
    ratios = {"dynamic_over_none": ratio(dynamic, none), "measured_over_predicted": ratio(measured, gains)}
    return result(settings, rows, ratios, cost=cost, predicted={"dynamic_over_none": statistics.median(gains)})
