"""Lab 06: batches on paper and within a budget, the steps of sequences, and what became of all requests."""

import random
from collections.abc import Callable

import pandas as pd

from inflight.bench.batch_run import QUEUE_FULL, TIMED_OUT, Outcome
from inflight.bench.batches_on_paper import batches_on_paper
from inflight.notebook.grading.checker import grades
from inflight.notebook.grading.finding import NOT_YET, Finding
from inflight.triton.telemetry import Statistics

LEAST_MEAN_BATCH, MOST_P95_MS = 3.0, 300  # exercise 6.2


# Exercise 6.1: a rule, arrivals (ms), delay (ms) and most in a batch that need it, and what to say to who lacks it.
_RULES = (
    ("no delay", [0, 10, 21, 32, 43], 0, 8, "The first leaves alone; the next batch is what came meanwhile."),
    ("max_batch_size", list(range(12)), 0, 4, "No batch holds more than max_batch_size; the rest waits for the next."),
    ("the delay", [0, 30, 70, 300], 100, 8, "A delay counts from the arrival of the oldest one that waits."),
    ("a full batch", list(range(8)), 1000, 8, "A full batch does not wait for the delay."),
    ("a busy model", [0, 5, 50], 20, 8, "Who has waited long enough still waits for the model: one batch at a time."),
)


@grades("6.1", "While the model is busy a batch fills by itself: a delay matters only when it is idle.")
def _batch_sizes(sizes: Callable, _choose: random.Random) -> dict[str, Callable[[], Finding]]:
    choose = random.Random(6)
    at_random = [
        (
            [number + 0.5 for number in sorted(choose.sample(range(600), 24))],
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


@grades("6.2", "A delay buys larger batches with the latency of the first in each: set it from the budget backwards.")
def _within_budget(answer: tuple[dict, Outcome], _choose: random.Random) -> dict[str, Finding] | Finding:
    settings, outcome = answer
    if not settings:
        return NOT_YET
    rejected = (outcome.requests["outcome"] == "rejected").sum()
    p95_ms, mean_batch = outcome.requests["latency_ms"].quantile(0.95), outcome.statistics.mean_batch
    few = (
        f"{mean_batch:.1f} requests a batch; at least {LEAST_MEAN_BATCH:g} are wanted. What lets a request wait for "
        "others, and how many may a batch hold?"
    )
    late = (
        f"P95 is {p95_ms:.0f} ms, and the budget {MOST_P95_MS} ms. At thirty a second, how long do you wait for two or "
        "three more?"
    )
    return {
        "everybody answered": f"{rejected} requests were rejected; everybody must be answered." if rejected else None,
        "requests a batch": few if mean_batch < LEAST_MEAN_BATCH else None,
        "P95": None if p95_ms <= MOST_P95_MS else late,
    }


@grades("6.3", "From START to END a sequence keeps its place, so a forgotten END keeps everybody else waiting.")
def _steps(steps: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    choose = random.Random(63)
    cases = [[(1, 5)], [(1, 5), (1, 6)], [(1, 5), (2, 1), (1, 6), (2, 3), (1, 7)]]
    cases += [[(choose.randrange(1, 6), choose.randrange(9)) for _ in range(12)] for _ in range(10)]
    findings: dict[str, Finding] = {"messages": None, "start": None, "end": None}
    for messages in cases:
        got = steps(messages)
        if got is None:
            return NOT_YET
        if [(step.sequence, step.value) for step in got] != messages:
            return f"{messages}: the steps are not these messages in this order, one each."
        for place, (sequence, _) in enumerate(messages):
            others = [number for number, (other, _) in enumerate(messages) if other == sequence]
            for name, wanted in (("start", place == others[0]), ("end", place == others[-1])):
                if findings[name] is None and getattr(got[place], name) != wanted:
                    findings[name] = (
                        f"{messages}: message {place + 1}, of sequence {sequence}, has {name}={not wanted}. START goes "
                        "to the first of its sequence alone, END to its last; one message may be both."
                    )
    return findings


def _flood(messages: list[str]) -> Outcome:
    """A run whose requests came back with these messages, and what Triton counts of it: in batches of two."""
    answered, refused = messages.count(""), messages.count(QUEUE_FULL)
    requests = pd.DataFrame(
        {
            "request": range(1, len(messages) + 1),
            "latency_ms": 50.0,
            "message": messages,
            "outcome": ["rejected" if message else "answered" for message in messages],
        }
    )
    counted = Statistics(
        answered, -(-answered // 2), answered, len(messages) - answered - refused, 0.0, 0.0, pd.Series(dtype=int)
    )
    return Outcome(requests, pd.DataFrame({"size": [2] * counted.executions}), counted)


@grades("6.4", "A dashboard made of the server's statistics misses exactly those whom a full queue turned away.")
def _account(account: Callable, _choose: random.Random) -> dict[str, Finding] | Finding:
    hints = {
        "answered": "A rejected request comes back too, with a message.",
        "queue full": "Two messages mean that a request was rejected: batch_run.QUEUE_FULL is this one.",
        "timed out": "Two messages mean that a request was rejected: batch_run.TIMED_OUT is this one.",
        "not counted": "Triton counts a time-out as failed, and a request that found the queue full not at all.",
    }
    findings: dict[str, Finding] = dict.fromkeys(hints)
    choose = random.Random(64)
    cases = [[""] * 6, ["", "", TIMED_OUT, "", TIMED_OUT, TIMED_OUT], ["", QUEUE_FULL, "", QUEUE_FULL]]
    cases += [choose.choices(("", QUEUE_FULL, TIMED_OUT), (3, 5, 2), k=40) for _ in range(5)]
    for messages in cases:
        got = account(_flood(messages))
        if got is None:
            return NOT_YET
        refused = messages.count(QUEUE_FULL)
        right = dict(zip(hints, (messages.count(""), refused, messages.count(TIMED_OUT), refused), strict=True))
        if got.keys() != right.keys():
            return f"The keys are to be {', '.join(right)}; yours are {', '.join(map(str, got)) or 'none'}."
        for name, number in right.items():
            if findings[name] is None and got[name] != number:
                findings[name] = (
                    f"{len(messages)} requests, of which {right['answered']} were answered, {refused} found the queue "
                    f"full and {right['timed out']} timed out: {name!r} is {got[name]}. {hints[name]}"
                )
    return findings
