"""Lab 06: batches on paper and within a budget, a batching library, what a tester leaves out, and a search's winner."""

import random
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pandas as pd

from inflight.bench import workload
from inflight.errors import CourseError
from inflight.lessons.batchers import batch_run, custom_batching
from inflight.lessons.batchers.batch_run import Arrival
from inflight.lessons.batchers.simulate import SimulatedBatches, simulate
from inflight.notebook import progress
from inflight.notebook.checks import grades
from inflight.notebook.checks.findings import NOT_YET, Case, Compared, Finding, Measured, Wrong, asked
from inflight.triton import repository
from inflight.triton.client.connection import NoAnswer, ServerGone
from inflight.triton.serving.server import Server

# Exercise 6.1: a rule, arrivals (ms), delay (ms) and most in a batch that need it, and what to say to who lacks it.
_RULES = (
    ("no delay", [0, 10, 21, 32, 43], 0, 8, "The first leaves alone; the next batch is what came meanwhile."),
    ("max_batch_size", list(range(12)), 0, 4, "No batch holds more than max_batch_size; the rest waits for the next."),
    ("the delay", [0, 80, 150, 400], 100, 8, "A delay counts from the arrival of the oldest request that waits."),
    ("a full batch", [*range(8), 20, 150], 100, 8, "A full batch does not wait for the delay."),
    ("a busy model", [0, 5, 50], 20, 8, "After its delay a request still waits for the model: one batch at a time."),
)


@grades("6.1", "While the model is busy a batch fills by itself: a delay matters only when it is idle.")
def _batch_sizes(sizes: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    def case(arrivals_ms: list[float], delay_ms: float, most: int, hint: str) -> Case:
        given = (arrivals_ms, delay_ms, most, 40, 4)
        return Case(given, simulate(*given).sizes, hint)

    at_random = [
        case(
            # No two differ by a whole number: no request arrives at the very moment at which a batch leaves.
            [number + place / 100 for place, number in enumerate(sorted(choose.sample(range(600), 24)), 1)],
            choose.choice((0, 33, 77)),
            choose.choice((2, 4, 8)),
            "Play it event by event.",
        )
        for _ in range(20)
    ]
    by_rule = {rule: [case(*given)] for rule, *given in _RULES} | {"any arrivals": at_random}
    return {rule: partial(asked, sizes, cases) for rule, cases in by_rule.items()}


# Exercise 6.2 ---------------------------------------------------------------------------------------------------------

LEAST_MEAN_BATCH, MOST_MS, RATE = 3.0, 300, 30
MOST, DELAY = "max_batch_size", "dynamic_batching.max_queue_delay_microseconds"
_COURSES_OWN = {MOST: 8, DELAY: 125_000}
TOO_SMALL = "What lets a request wait for others, and how many may a batch hold?"
TOO_LATE = "At thirty a second, how long do you wait for two or three more?"
TOO_LATE_ALONE = "Where no other request comes, a batch is never full, and the whole delay is waited."


@grades("6.2", "A delay buys larger batches with the latency of the first in each: set it from the budget backwards.")
def _within_budget(settings: dict, choose: random.Random) -> Finding:
    if not settings:
        return NOT_YET
    if others := sorted(set(settings) - {MOST, DELAY}):
        return Wrong(
            f"{others[0]!r} is not yours to set. There are {MOST!r} and {DELAY!r}; a batch costs what it costs."
        )
    try:
        values = {name: int(str(value)) for name, value in settings.items()}
    except ValueError:
        return Wrong(f"The settings are {settings}: each is a whole number.")
    if values.get(MOST, 8) < 1 or values.get(DELAY, 0) < 0:
        return Wrong(f"The settings are {settings}: {MOST} is at least 1, and a delay at least 0.")
    busy, alone = (
        Compared(*(_played(arrivals_s, each) for each in (values, _COURSES_OWN, {})))
        for arrivals_s in (workload.poisson(2000, rate=RATE, seed=choose.randrange(10**6)), [0.0])
    )
    late = {"at_most": MOST_MS, "unit": "ms"}
    return [
        busy.measured("mean_batch", "requests a batch", at_least=LEAST_MEAN_BATCH, advice=TOO_SMALL),
        busy.measured("p95_ms", "P95", advice=TOO_LATE, **late),
        alone.measured("p95_ms", "answer to a request that comes alone", advice=TOO_LATE_ALONE, **late),
    ]


def _played(arrivals_s: list[float], settings: dict) -> SimulatedBatches:
    arrivals_ms = [1000 * at_s for at_s in arrivals_s]
    return simulate(arrivals_ms, settings.get(DELAY, 0) / 1000, settings.get(MOST, 8), fixed_ms=40, item_ms=4)


# Exercise 6.3 ---------------------------------------------------------------------------------------------------------

LIMIT, MOST_IN_A_BATCH, REQUESTS = 24, 8, 32
_FRAGMENT = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
_ALONE = "A request that is alone may always join, or nobody ever serves it."
WITH_THE_NEWCOMER = "Number of requests times the longest, the newcomer among them."
WOULD_FIT = "Compare with what the batch would be with the newcomer."
_POINTER = "Look at your pointers and arrays: userp is what you wrote into *userp, and is freed once."
# What decides in the file as it is handed out: nothing is kept, and everybody joins.
_OPEN = ("*userp = NULL;  /* your code */", "*should_include = true;  /* your code */")


@grades(
    "6.3",
    "Triton asks a library about every request that could join, so a batch may be bounded by what it costs.",
    keeps="batching",
)
def _library(source: Path, choose: random.Random) -> Finding:
    source = Path(source)
    written = source.read_text(encoding="utf-8", errors="replace") if source.is_file() else ""
    if not written or all(line in written for line in _OPEN):
        return NOT_YET
    lengths = [choose.choice((1, 2, 3, 4, 6, 8, 12)) for _ in range(REQUESTS - 1)]
    lengths.insert(choose.randrange(8, REQUESTS), LIMIT + 1)
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as scratch:
        try:
            library = custom_batching.build(source, Path(scratch) / "own.so")
        except CourseError as error:
            return Wrong(str(error))
        own = _batches(Path(scratch), library, lengths)
    if isinstance(own, str):
        return Wrong(own)
    over = sum(len(batch) > 1 and len(batch) * max(batch) > LIMIT for batch in own)
    sent_away = sum(
        len(batch) < MOST_IN_A_BATCH and (len(batch) + 1) * max([*batch, after[0]]) <= LIMIT
        for batch, after in pairwise(own)
    )
    return [
        Measured("batches over the limit", over, exactly=0, advice=WITH_THE_NEWCOMER),
        Measured("requests sent away though they fit", sent_away, at_most=1, advice=WOULD_FIT),
    ]


def _batches(folder: Path, library: Path, lengths: list[int]) -> list[list[int]] | str:
    """Lengths of the requests of each batch, on a server of its own; or what went wrong."""
    log_path = folder / "executions.jsonl"
    repo = repository.assemble(
        folder / "repo",
        models=(repository.BATCH_COST,),
        batch_cost_fixed_ms=20,
        batch_cost_item_ms=0,
        execution_log_path=log_path,
    )
    repository.edit(repo, repository.BATCH_COST, _FRAGMENT, TRITON_BATCH_STRATEGY_PATH=library)
    arrivals = [Arrival(0.0, work=length) for length in lengths]
    try:
        progress.say("a Triton with your library is asked")
        with Server(repo) as server:
            outcome = batch_run.run(server, repository.BATCH_COST, arrivals, log_path)
    except CourseError as error:
        advice = _POINTER if isinstance(error, ServerGone) else _ALONE if isinstance(error, NoAnswer) else ""
        return f"With this library the requests are not answered. {error.what} {advice}".rstrip()
    of_request = outcome.requests.set_index("request")["work"]
    return [[int(of_request[request]) for request in batch] for batch in outcome.executions["requests"]]


# Exercise 6.4: latencies, and one every so many ms --------------------------------------------------------------------

_WAITS = {
    "an answer in time": ([(44, 100), (100, 100)], "No request was due while this one was under way."),
    "one left out": ([(250, 100), (200, 100)], "The next was due every_ms later, and was answered at the same moment."),
    "many": ([(1000, 100), (730, 33)], "Each next one was due every_ms later, so it waited that much less."),
    "the last of them": ([(390, 100), (199, 100)], "One that takes less than every_ms is not added."),
}


@grades("6.4", "A tester that waits for its answers leaves out the slow ones: count from when each request was due.")
def _left_out(left_out: Callable) -> dict[str, Callable[[], Finding]]:
    def case(latency_ms: int, every_ms: int, hint: str) -> Case:
        return Case((latency_ms, every_ms), list(range(latency_ms - every_ms, every_ms - 1, -every_ms)), hint)

    cases = {part: [case(*given, hint) for given in each] for part, (each, hint) in _WAITS.items()}
    return {part: partial(asked, left_out, each) for part, each in cases.items()}


# Exercise 6.5: rounds of (throughput, P99 in ms) by configuration, the winner within 100 ms, a hint ------------------

_SEARCHES = {
    "always the fastest": (
        [{"a": (90, 50), "b": (80, 40)}, {"a": (92, 55), "b": (81, 45)}],
        "a",
        "One is faster in its worst round than the other in its best.",
    ),
    "the fastest is too late": (
        [{"a": (90, 150), "b": (80, 40)}, {"a": (95, 130), "b": (70, 45)}],
        "b",
        "What exceeds the budget is out, and no rival any more.",
    ),
    "too late in one round": (
        [{"a": (90, 50), "b": (80, 40)}, {"a": (95, 150), "b": (70, 45)}],
        "b",
        "The budget holds in every round: once too late is out of all rounds.",
    ),
    "rounds that overlap": (
        [{"a": (90, 50), "b": (80, 40)}, {"a": (95, 50), "b": (91, 45)}],
        "none",
        "The worst round of one is slower than the best round of the other, so they cannot be told apart.",
    ),
    "three rounds": (
        [{"a": (90, 50), "b": (80, 40)}, {"a": (92, 55), "b": (81, 45)}, {"a": (70, 55), "b": (79, 45)}],
        "none",
        "All rounds count.",
    ),
    "none in time": ([{"a": (90, 150), "b": (80, 140)}, {"a": (90, 50), "b": (80, 40)}], "none", "Nobody is left."),
}


@grades(
    "6.5", "A search finds what was best in its few seconds: a winner is one whose worst round beats the others' best."
)
def _winner(winner: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    suffix = choose.randrange(100)

    def case(rounds: list[dict], wanted: str, hint: str) -> Case:
        columns = ["config", "throughput", "latency_ms_p99"]
        shuffled = [choose.sample(sorted(one), len(one)) for one in rounds]
        reports = [
            pd.DataFrame([(f"config_{name}{suffix}", *one[name]) for name in names], columns=columns)
            for names, one in zip(shuffled, rounds, strict=True)
        ]
        right = wanted if wanted == "none" else f"config_{wanted}{suffix}"
        return Case((reports, 100), right, hint, f"(throughput, P99 in ms) of each round {rounds}, budget 100 ms")

    return {part: partial(asked, winner, [case(*search)]) for part, search in _SEARCHES.items()}
