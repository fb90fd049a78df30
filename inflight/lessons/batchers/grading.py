"""Lab 06: batches on paper and within a budget, a batching library, an idle model, and a search's winner."""

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from inflight.bench import workload
from inflight.errors import CourseError
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers.batch_run import Arrival, Outcome
from inflight.lessons.batchers.batches_on_paper import batches_on_paper, in_figures
from inflight.notebook import progress
from inflight.notebook.checks import NOT_YET, Finding, Measured, grades
from inflight.triton import custom_batching, repository
from inflight.triton.server import Server

# Exercise 6.1: a rule, arrivals (ms), delay (ms) and most in a batch that need it, and what to say to who lacks it.
_RULES = (
    ("no delay", [0, 10, 21, 32, 43], 0, 8, "The first leaves alone; the next batch is what came meanwhile."),
    ("max_batch_size", list(range(12)), 0, 4, "No batch holds more than max_batch_size; the rest waits for the next."),
    ("the delay", [0, 30, 70, 300], 100, 8, "A delay counts from the arrival of the oldest one that waits."),
    ("a full batch", [*range(8), 20, 150], 100, 8, "A full batch does not wait for the delay."),
    ("a busy model", [0, 5, 50], 20, 8, "Who has waited long enough still waits for the model: one batch at a time."),
)


@grades("6.1", "While the model is busy a batch fills by itself: a delay matters only when it is idle.")
def _batch_sizes(sizes: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    at_random = [
        (
            # No two differ by a whole number: nobody arrives at the very moment at which a batch leaves.
            [number + place / 100 for place, number in enumerate(sorted(choose.sample(range(600), 24)), 1)],
            choose.choice((0, 33, 77)),
            choose.choice((2, 4, 8)),
            "Play it event by event.",
        )
        for _ in range(20)
    ]
    by_rule = {rule: [case] for rule, *case in _RULES} | {"any arrivals": at_random}

    def right_in(cases: list) -> Finding:
        for arrivals_ms, delay_ms, most, hint in cases:
            got = sizes(list(arrivals_ms), delay_ms, most, 40, 4)
            if got is None:
                return NOT_YET
            if list(got) != batches_on_paper(arrivals_ms, delay_ms, most, 40, 4)["size"].tolist():
                shown = ", ".join(f"{value:g}" for value in arrivals_ms[:6]) + (", …" if len(arrivals_ms) > 6 else "")
                run = f"Arrivals at {shown} ms, delay {delay_ms} ms, at most {most}"
                return f"{run}: your function says {list(got)}. {hint}"
        return None

    return {rule: lambda cases=cases: right_in(cases) for rule, cases in by_rule.items()}


# Exercise 6.2 ---------------------------------------------------------------------------------------------------------

LEAST_MEAN_BATCH, MOST_P95_MS, RATE = 3.0, 300, 30
MOST, DELAY = "max_batch_size", "dynamic_batching.max_queue_delay_microseconds"
_COURSES_OWN, _NOTHING = {MOST: 8, DELAY: 125_000}, {}


@grades("6.2", "A delay buys larger batches with the latency of the first in each: set it from the budget backwards.")
def _within_budget(settings: dict, choose: random.Random) -> Finding:
    if not settings:
        return NOT_YET
    others = sorted(set(settings) - {MOST, DELAY})
    if others:
        return (
            f"{others[0]!r} is not yours to set. There are {MOST!r} and {DELAY!r}; what a batch costs stays as it is."
        )
    try:
        values = {name: int(str(value)) for name, value in settings.items()}
    except ValueError:
        return f"The settings are {settings}: each is a whole number."
    if values.get(MOST, 8) < 1 or values.get(DELAY, 0) < 0:
        return f"The settings are {settings}: {MOST} is at least 1, and a delay at least 0."
    gaps = workload.poisson(2000, rate=RATE, seed=choose.randrange(10**6))
    arrivals_ms = [1000 * at_s for at_s in gaps]
    (mean, p95_ms), course, nothing = (_played(arrivals_ms, each) for each in (values, _COURSES_OWN, _NOTHING))
    alone_ms = [_played([0.0], each)[1] for each in (values, _COURSES_OWN, _NOTHING)]
    advice = "What lets a request wait for others, and how many may a batch hold?"
    return [
        Measured(
            "requests a batch",
            mean,
            at_least=LEAST_MEAN_BATCH,
            course=course[0],
            nothing=nothing[0],
            advice=advice,
        ),
        Measured(
            "P95",
            p95_ms,
            at_most=MOST_P95_MS,
            course=course[1],
            nothing=nothing[1],
            unit="ms",
            advice="At thirty a second, how long do you wait for two or three more?",
        ),
        Measured(
            "answer to a request that comes alone",
            alone_ms[0],
            at_most=MOST_P95_MS,
            course=alone_ms[1],
            nothing=alone_ms[2],
            unit="ms",
            advice="Where nobody else comes, a batch is never full, and the whole delay is waited.",
        ),
    ]


def _played(arrivals_ms: list[float], settings: dict[str, int]) -> tuple[float, float]:
    batches = batches_on_paper(arrivals_ms, settings.get(DELAY, 0) / 1000, settings.get(MOST, 8), 40, 4)
    figures = in_figures(arrivals_ms, batches)
    return figures.mean_batch, figures.p95_ms


# Exercise 6.3 ---------------------------------------------------------------------------------------------------------

LIMIT, MOST_IN_A_BATCH, REQUESTS = 24, 8, 32
_FRAGMENT = "dynamic_batching { max_queue_delay_microseconds: 200000 }"
_SILENCE_S = 8  # a library that never says yes has nobody answered
# What there is to do where the requests are a learner's own: to look at the library.
_UNANSWERED = {
    "See whether the model still works.": "A request that is alone may always join, or nobody ever serves it.",
    "Start it again.": "Look at your pointers: userp is what you wrote into *userp, and is freed once.",
}
# Stands before a library, and keeps in a file how many pieces of memory it has taken and not freed.
_COUNTED = """
#include <stdio.h>
#include <stdlib.h>
static long pieces_held;
static void* held(void* piece, long change)
{
  FILE* file = fopen("HELD", "w");
  if (piece) pieces_held += change;
  if (file) fprintf(file, "%ld", pieces_held), fclose(file);
  return piece;
}
#define malloc(size) held(malloc(size), 1)
#define calloc(number, size) held(calloc(number, size), 1)
#define free(piece) free(held(piece, -1))
#line 1 "batching.c"
"""
# What decides in the file as it is handed out: nothing is kept, and everybody joins.
_OPEN = ("*userp = NULL;  /* your code */", "*should_include = true;  /* your code */")


@grades(
    "6.3",
    "Triton asks a library about every request that could join, so a batch may be bounded by what it costs.",
    keeps="batching",
)
def _library(source: Path, choose: random.Random) -> Finding:
    source = Path(source)
    if not source.is_file():
        return NOT_YET
    written = source.read_text(encoding="utf-8", errors="replace")
    if all(line in written for line in _OPEN):
        return NOT_YET
    lengths = [choose.choice((1, 2, 3, 4, 6, 8, 12)) for _ in range(REQUESTS - 1)]
    lengths.insert(choose.randrange(8, REQUESTS), LIMIT + 1)
    with tempfile.TemporaryDirectory(prefix="inflight-check-") as folder:
        try:
            custom_batching.build(source, Path(folder) / "own.so")  # as it stands: errors name its lines
            counted = Path(folder) / "counted.c"
            counted.write_text(_COUNTED.replace("HELD", str(Path(folder) / "held")) + written, encoding="utf-8")
            library = custom_batching.build(counted, Path(folder) / "counted.so")
        except CourseError as error:
            return str(error)
        own = _batches(Path(folder), library, lengths)
        held = Path(folder) / "held"
        num_held = int(held.read_text() or 0) if held.exists() else 0
    if isinstance(own, str):
        return own
    queue = [length for batch in own for length in batch]
    ways = {"own": own, "course": _greedy(queue, LIMIT), "nothing": _greedy(queue, None)}
    over, away, number = (
        {name: count(batches) for name, batches in ways.items()} for count in (_over, _sent_away, len)
    )
    return [
        Measured(
            "batches over the limit",
            over["own"],
            exactly=0,
            course=over["course"],
            nothing=over["nothing"],
            advice="Number of requests times the longest, the newcomer among them.",
        ),
        Measured(
            "requests sent away though they fit",
            away["own"],
            at_most=1,
            course=away["course"],
            nothing=away["nothing"],
            advice="Compare with what the batch would be with the newcomer.",
        ),
        Measured(
            f"pieces of memory that are not freed, after {number['own']} batches",
            num_held,
            at_most=2,  # the batch that is open, and one for all batches
            course=0,
            nothing=0,
            advice="What a batch takes when it begins, ModelBatchFinalize gives back: it is called for each batch.",
        ),
        Measured("batches", number["own"], course=number["course"], nothing=number["nothing"]),
    ]


def _batches(folder: Path, library: Path, lengths: list[int]) -> list[list[int]] | str:
    """Lengths of the requests of each batch on a server of its own; or what has gone wrong."""
    log_path = folder / "executions.jsonl"
    repo = repository.assemble(
        folder / "repo",
        models=(repository.BATCH_COST,),
        batch_cost_fixed_ms=20,
        batch_cost_item_ms=0,
        execution_log_path=log_path,
    )
    repository.edit(repo, repository.BATCH_COST, _FRAGMENT, TRITON_BATCH_STRATEGY_PATH=library)
    try:
        progress.say("a Triton with your library is asked")
        with Server(repo) as server:
            arrivals = [Arrival(0.0, work=length) for length in lengths]
            return _lengths(batch_run.run(server, repository.BATCH_COST, arrivals, log_path, silence_s=_SILENCE_S))
    except CourseError as error:
        told, _, _ = str(error).partition(" Last lines")
        for words, what_to_try in _UNANSWERED.items():
            told = told.replace(words, what_to_try)
        return f"With this library the requests are not answered. {told}"


def _greedy(queue: list[int], limit: int | None) -> list[list[int]]:
    """Batches of these lengths in this order, each as large as may be."""
    batches: list[list[int]] = [[]]
    for length in queue:
        last = batches[-1]
        fits = limit is None or (len(last) + 1) * max([*last, length]) <= limit
        if last and (len(last) == MOST_IN_A_BATCH or not fits):
            batches.append([])
        batches[-1].append(length)
    return batches


def _lengths(outcome: Outcome) -> list[list[int]]:
    of_request = outcome.requests.set_index("request")["work"]
    return [[int(of_request[request]) for request in batch] for batch in outcome.executions["requests"]]


def _over(batches: list[list[int]]) -> int:
    return sum(len(batch) > 1 and len(batch) * max(batch) > LIMIT for batch in batches)


def _sent_away(batches: list[list[int]]) -> int:
    """How many begin a batch although they fitted into the one before."""
    return sum(
        len(batch) < MOST_IN_A_BATCH and (len(batch) + 1) * max([*batch, after[0]]) <= LIMIT
        for batch, after in zip(batches, batches[1:], strict=False)
    )


# Exercise 6.4 ---------------------------------------------------------------------------------------------------------

_HINTS = {
    "a gap in which somebody waits": "Between a batch and the next, while a request is in the queue.",
    "a gap in which nobody waits": "An idle model is no harm as long as nobody waits for it.",
    "two who wait at once": "A moment counts once, however many wait in it.",
    "somebody rejected": "A rejected request waits until its answer comes, and is in no batch.",
    "any run": "Look at every stretch between two neighbouring starts and ends.",
}


@grades("6.4", "A busy figure beside a queue figure is not enough: what hurts is idle time while somebody waits.")
def _idle(idle_ms: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {
        "a gap in which somebody waits": [([(0.0, 0.0), (0.1, 0.5)], [(0.0, 0.2), (0.5, 0.7)], [])],
        "a gap in which nobody waits": [([(0.0, 0.0), (0.5, 0.5)], [(0.0, 0.2), (0.5, 0.7)], [])],
        "two who wait at once": [([(0.0, 0.0), (0.1, 0.6), (0.15, 0.6)], [(0.0, 0.2), (0.6, 0.7)], [])],
        "somebody rejected": [([(0.0, 0.0), (0.6, 0.6)], [(0.0, 0.2), (0.6, 0.7)], [(0.3, 0.4), (0.1, 0.1)])],
        "any run": [_made_up(choose) for _ in range(12)],
    }

    def right_in(part: str) -> Finding:
        for answered, batches, rejected in cases[part]:
            requests, executions = _run_of(answered, batches, rejected)
            right = _idle_ms(answered, batches, rejected)
            got = idle_ms(requests.copy(), executions.copy())
            if got is None:
                return NOT_YET
            if not abs(float(got) - right) <= 1:
                return (
                    f"{len(requests)} requests in {len(executions)} batches: it was {right:.0f} ms, and your function "
                    f"says {float(got):.0f}. {_HINTS[part]}"
                )
        return None

    return {part: lambda part=part: right_in(part) for part in cases}


def _made_up(choose: random.Random) -> tuple[list, list, list]:
    """Spans (s) from arrival to the start of the batch, of the batches, and from arrival to a rejection."""
    answered, batches, rejected, now = [], [], [], 0.0
    for _ in range(choose.randrange(3, 7)):
        start = now + choose.choice((0.0, 0.01, 0.2, 0.4))
        end = start + choose.choice((0.05, 0.1))
        waits = [(max(0.0, start - choose.choice((0.0, 0.03, 0.1, 0.3))), start) for _ in range(choose.randrange(1, 4))]
        answered, batches, now = answered + waits, [*batches, (start, end)], end
        if choose.random() < 0.5:
            rejected.append((start, start + choose.choice((0.0, 0.05, 0.3))))
    return answered, batches, rejected


def _run_of(answered: list, batches: list, rejected: list) -> tuple[pd.DataFrame, pd.DataFrame]:
    executions = pd.DataFrame(
        [(number, *span) for number, span in enumerate(batches, 1)], columns=["execution", "start_s", "end_s"]
    )
    numbers = {start: (number, end) for number, (start, end) in enumerate(batches, 1)}
    rows = [(sent, numbers[start][1], "answered", numbers[start][0]) for sent, start in answered]
    rows += [(sent, until, "rejected", None) for sent, until in rejected]
    requests = pd.DataFrame(rows, columns=["sent_s", "answered_s", "outcome", "execution"])
    requests["execution"] = requests["execution"].astype("Int64")
    requests.insert(0, "request", range(1, len(requests) + 1))
    return requests, executions


def _idle_ms(answered: list, batches: list, rejected: list) -> float:
    """The same, by steps of a millisecond: every time here is a multiple of ten."""
    moments = (step / 1000 + 0.0005 for step in range(int(1000 * max(end for _, end in batches + rejected)) + 1))
    return sum(
        any(first < now < last for first, last in answered + rejected)
        and not any(first < now < last for first, last in batches)
        for now in moments
    )


# Exercise 6.5 ---------------------------------------------------------------------------------------------------------


@grades("6.5", "A search finds what was best in its few seconds: only a winner that wins again is one.")
def _winner(winner: Callable, choose: random.Random) -> dict[str, Callable[[], Finding]]:
    cases = {
        "the best of all is within": ("a", {"a": (90, 50), "b": (80, 40)}, {"a": (91, 55), "b": (70, 45)}),
        "the best of all is too late": ("b", {"a": (90, 150), "b": (80, 40)}, {"a": (95, 130), "b": (70, 45)}),
        "another one wins": ("none", {"a": (90, 50), "b": (80, 40)}, {"a": (81, 50), "b": (82, 45)}),
        "the winner is too late in the other": (
            "none",
            {"a": (90, 50), "b": (80, 40)},
            {"a": (95, 150), "b": (70, 45)},
        ),
        "none is within": ("none", {"a": (90, 150), "b": (80, 140)}, {"a": (90, 50), "b": (80, 40)}),
    }

    def right(wanted: str, first: dict, second: dict) -> Finding:
        reports = []
        for rows in (first, second):
            shuffled = choose.sample(sorted(rows), len(rows))
            names = {name: f"config_{name}{suffix}" for name in rows}
            reports.append(pd.DataFrame([(names[name], *rows[name]) for name in shuffled], columns=_REPORT))
        got = winner(*reports, 100)
        if got is None:
            return NOT_YET
        if got != (wanted if wanted == "none" else f"config_{wanted}{suffix}"):
            return f"Throughput and P99 are {first}, then {second}, the budget is 100 ms: you say {got!r}."
        return None

    suffix = choose.randrange(100)
    return {part: lambda case=case: right(*case) for part, case in cases.items()}


_REPORT = ["config", "throughput", "latency_ms_p99"]
