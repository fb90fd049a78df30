"""Lab 06: batches on paper and within a budget, the steps of sequences, and what became of all requests."""

import math
import random
from collections.abc import Callable

import pandas as pd

from inflight.bench.batch_run import QUEUE_FULL, TIMED_OUT, Outcome
from inflight.notebook.grading.checker import NOT_YET, grades
from inflight.triton.telemetry import Statistics

LEAST_MEAN_BATCH, MOST_P95_MS = 3.0, 300  # exercise 6.2


def _sizes_on_paper(arrivals_ms: list[float], delay_ms: float, most: int, fixed_ms: float, item_ms: float) -> list[int]:
    """Batches of one instance: it takes the next when free and the batch is full or its oldest has waited enough."""
    waiting, free_ms, sizes = sorted(arrivals_ms), 0.0, []
    while waiting:
        full_ms = waiting[most - 1] if len(waiting) >= most else math.inf
        leaves_ms = max(free_ms, min(waiting[0] + delay_ms, full_ms))
        sizes.append(sum(arrival <= leaves_ms for arrival in waiting[:most]))
        del waiting[: sizes[-1]]
        free_ms = leaves_ms + fixed_ms + item_ms * sizes[-1]
    return sizes


@grades("6.1")
def _batch_sizes(sizes: Callable) -> str | None:
    choose = random.Random(6)
    cases = [
        (
            ([0, 10, 21, 32, 43], 0, 8, 40, 4),
            "Without a delay the first leaves alone; the next batch is what came meanwhile.",
        ),
        ((list(range(12)), 0, 4, 40, 4), "No batch holds more than max_batch_size; the rest waits for the next."),
        (([0, 30, 70, 300], 100, 8, 40, 4), "A delay counts from the arrival of the oldest one that waits."),
        ((list(range(8)), 1000, 8, 40, 4), "A full batch does not wait for the delay."),
        (
            ([0, 5, 50], 20, 8, 100, 4),
            "Who has waited long enough still waits for the model: it computes one batch at a time.",
        ),
    ]
    for _ in range(20):
        arrivals_ms = [number + 0.5 for number in sorted(choose.sample(range(600), 24))]
        cases.append(
            ((arrivals_ms, choose.choice((0, 33, 77)), choose.choice((2, 4, 8)), 40, 4), "Play it event by event.")
        )
    for case, hint in cases:
        got, right = sizes(*case), _sizes_on_paper(*case)
        if got is None:
            return NOT_YET
        if list(got) != right:
            arrivals_ms, delay_ms, most, *_ = case
            shown = ", ".join(f"{value:g}" for value in arrivals_ms[:6]) + (", …" if len(arrivals_ms) > 6 else "")
            return (
                f"Arrivals at {shown} ms, delay {delay_ms} ms, at most {most}: your function says {list(got)}. {hint}"
            )
    return None


@grades("6.2")
def _within_budget(answer: tuple[dict, Outcome]) -> str | None:
    settings, outcome = answer
    if not settings:
        return NOT_YET
    rejected = (outcome.requests["outcome"] == "rejected").sum()
    if rejected:
        return f"{rejected} requests were rejected; everybody must be answered."
    p95_ms, mean_batch = outcome.requests["latency_ms"].quantile(0.95), outcome.statistics.mean_batch
    if mean_batch < LEAST_MEAN_BATCH:
        return (
            f"{mean_batch:.1f} requests a batch; at least {LEAST_MEAN_BATCH:g} are wanted. What lets a request wait "
            "for others, and how many may a batch hold?"
        )
    if p95_ms > MOST_P95_MS:
        return (
            f"The batches are large enough, but P95 is {p95_ms:.0f} ms, and the budget {MOST_P95_MS} ms. At thirty a "
            "second, how long do you wait for two or three more?"
        )
    return None


@grades("6.3")
def _steps(steps: Callable) -> str | None:
    choose = random.Random(63)
    cases = [[(1, 5)], [(1, 5), (1, 6)], [(1, 5), (2, 1), (1, 6), (2, 3), (1, 7)]]
    cases += [[(choose.randrange(1, 6), choose.randrange(9)) for _ in range(12)] for _ in range(10)]
    for messages in cases:
        got = steps(messages)
        if got is None:
            return NOT_YET
        if [(step.sequence, step.value) for step in got] != messages:
            return f"{messages}: the steps are not these messages in this order, one each."
        for place, (sequence, _) in enumerate(messages):
            others = [number for number, (other, _) in enumerate(messages) if other == sequence]
            for name, wanted in (("start", place == others[0]), ("end", place == others[-1])):
                if getattr(got[place], name) != wanted:
                    return (
                        f"{messages}: message {place + 1}, of sequence {sequence}, has {name}={not wanted}. START goes "
                        "to the first of its sequence alone, END to its last; one message may be both."
                    )
    return None


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


@grades("6.4")
def _account(account: Callable) -> str | None:
    hints = {
        "answered": "A rejected request comes back too, with a message.",
        "queue full": "Two messages mean that a request was rejected: batch_run.QUEUE_FULL is this one.",
        "timed out": "Two messages mean that a request was rejected: batch_run.TIMED_OUT is this one.",
        "not counted": "Triton counts a time-out as failed, and a request that found the queue full not at all.",
    }
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
            if got[name] != number:
                return (
                    f"{len(messages)} requests, of which {right['answered']} were answered, {refused} found the queue "
                    f"full and {right['timed out']} timed out: {name!r} is {got[name]}. {hints[name]}"
                )
    return None
