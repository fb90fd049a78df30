"""Lab 06's answers: batches on paper, settings for a budget, a library in C, what a tester leaves out, a winner."""

import operator
import re
from functools import partial

import numpy as np
import pandas as pd

from inflight.notebook.checks.parts import COURSES_OWN
from tests.lessons.answers import SERVER, SLOW, Answer, File, of_the_lab, replaced, written
from tests.lessons.table import *  # noqa: F403

MOST, DELAY = "max_batch_size", "dynamic_batching.max_queue_delay_microseconds"


def as_hdr_histogram(latency_ms, every_ms):
    """Backwards, as an array: from the shortest that is added to the longest."""
    return np.arange(latency_ms % every_ms + every_ms, latency_ms, every_ms)[::-1]


def batches(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms, full_leaves=True, is_in=operator.le):
    """Batch by batch; who comes at the very moment at which a batch leaves is in it where `is_in` says so."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        full_ms = waiting[max_batch_size - 1 : max_batch_size] if full_leaves else []
        leaves_ms = max(free_ms, min([waiting[0] + delay_ms, *full_ms]))
        size = max(1, sum(is_in(arrival, leaves_ms) for arrival in waiting[:max_batch_size]))
        if full_ms and full_ms[0] <= leaves_ms:
            size = max_batch_size
        sizes, waiting, free_ms = [*sizes, size], waiting[size:], leaves_ms + fixed_ms + item_ms * size
    return sizes


def leaves_with_the_newest(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """The delay counts from the newest request: each that comes makes the batch wait anew."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        size, leaves_ms = 1, max(free_ms, waiting[0] + delay_ms)
        while size < min(max_batch_size, len(waiting)) and waiting[size] <= leaves_ms:
            leaves_ms, size = max(leaves_ms, waiting[size] + delay_ms), size + 1
        sizes, waiting, free_ms = [*sizes, size], waiting[size:], leaves_ms + fixed_ms + item_ms * size
    return sizes


def down_to(least):
    """What is left out, down to another limit than `every_ms`."""
    return lambda latency_ms, every_ms: list(range(latency_ms - every_ms, least(every_ms) - 1, -every_ms))


def right_winner(rounds, budget_ms):
    """Without pandas, row by row."""
    speeds, late = {}, set()
    for report in rounds:
        for row in report.itertuples():
            speeds.setdefault(row.config, []).append(row.throughput)
            late |= {row.config} if row.latency_ms_p99 > budget_ms else set()
    left = {config: each for config, each in speeds.items() if config not in late}
    for config, own in left.items():
        if all(min(own) > max(other) for name, other in left.items() if name != config):
            return config
    return "none"


def best_of(report, budget_ms):
    kept = report[report["latency_ms_p99"] <= budget_ms]
    return kept.loc[kept["throughput"].idxmax(), "config"] if len(kept) else "none"


def wins_each_round(rounds, budget_ms):
    names = {best_of(report, budget_ms) for report in rounds}
    return names.pop() if len(names) == 1 else "none"


def by_the_mean(rounds, budget_ms):
    means = pd.concat(rounds).groupby("config")[["throughput", "latency_ms_p99"]].mean()
    means = means[means["latency_ms_p99"] <= budget_ms]
    return means["throughput"].idxmax() if len(means) else "none"


def without_a_budget(rounds, budget_ms):
    return right_winner(rounds, 10**9)


def late_ones_are_rivals(rounds, budget_ms):
    name = right_winner(rounds, 10**9)
    return name if name == right_winner(rounds, budget_ms) else "none"


def winner_of_two(rounds, budget_ms):
    return right_winner(rounds[:2], budget_ms)


# Exercise 6.3: the library --------------------------------------------------------------------------------------------

FAR_FROM_BUDGET = {"6.3": {"requests sent away": "a Triton a row: only the coarse faults are there"}}
COURSES = COURSES_OWN["batching"].read_text(encoding="utf-8")
RULE = re.search(r"\*should_include = batch->num_requests == 0.*?;", COURSES, re.S)[0]


def library(*changes):
    return File(replaced(COURSES, *changes), "batching.c")


def with_rule(rule):
    return library((RULE, f"*should_include = {rule};"))


ANSWERS = [
    *of_the_lab("batchers", {"6.1": "batch_sizes", "6.2": "settings", "6.4": "left_out", "6.5": "winner"}),
    Answer("6.1", "batch by batch", batches),
    Answer("6.1", "an array of floats", lambda *case: np.array(batches(*case), float)),
    Answer("6.1", "misses a tie", partial(batches, is_in=operator.lt)),
    Answer("6.1", "no batches", lambda arrivals, *_: [1] * len(arrivals), "wrong", "a busy model not right yet"),
    Answer("6.1", "no limit", lambda arrivals, delay, _, *cost: batches(arrivals, delay, 99, *cost), "partly", "max_batch_size not right yet"),
    Answer("6.1", "no delay", lambda arrivals, _, *rest: batches(arrivals, 0, *rest), "partly",
           "no delay ✓, max_batch_size ✓, the delay not right yet, a full batch not right yet, a busy "),
    Answer("6.1", "a model that is never busy", lambda *case: batches(*case[:3], 0, 0), "partly", "no delay not right yet, max_batch_size not right yet"),
    Answer("6.1", "a full batch waits", partial(batches, full_leaves=False), "partly", "the delay ✓, a full batch not right yet"),
    Answer("6.1", "the newest decides", leaves_with_the_newest, "partly", "the delay not right yet"),

    Answer("6.2", "a delay alone", {DELAY: 120_000}),
    Answer("6.2", "numbers of NumPy", {DELAY: np.float64(120_000), MOST: np.int64(8)}),
    Answer("6.2", "strings", {MOST: "16", DELAY: "140000"}),
    Answer("6.2", "batch, just inside", {DELAY: 65_000}),
    Answer("6.2", "batch, just outside", {DELAY: 62_000}, "wrong", "requests a batch: 2.96, where at least 3"),
    Answer("6.2", "P95, just inside", {DELAY: 236_000}),
    Answer("6.2", "P95, just outside", {DELAY: 240_000}, "wrong", "P95: 303 ms, where at most 300 ms"),
    Answer("6.2", "alone, just inside", {DELAY: 256_000}, "wrong", "alone: yours 300 ms"),
    Answer("6.2", "alone, just outside", {DELAY: 257_000}, "wrong", "alone: yours 301 ms"),
    Answer("6.2", "no delay", {DELAY: 0}, "wrong", "at least 3"),
    Answer("6.2", "a delay of a day", {DELAY: 86_400_000_000}, "wrong", "comes alone"),
    Answer("6.2", "another setting", {"item_ms": 0, DELAY: 125_000}, "wrong", "'item_ms'"),
    Answer("6.2", "a word", {DELAY: "long"}, "wrong", "each is a whole number"),
    Answer("6.2", "no batch", {MOST: 0}, "wrong", "at least 1"),

    Answer("6.3", "the solution", File(written("batchers", "solutions", "batching.c"), "batching.c"), marks=[SERVER]),
    Answer("6.3", "as handed out", File(written("batchers", "labs", "batching.c"), "batching.c"), "not done yet"),
    Answer("6.3", "a comment of the lab is left", library(("free(userp);", "free(userp);  /* your code */")),
           marks=[SERVER]),
    Answer("6.3", "no file", "nothing.c", "not done yet"),
    Answer("6.3", "no C", library(("calloc(1, sizeof(Batch));", "calloc(1, sizeof(Batch))")), "wrong", "batching.c, line"),
    Answer("6.3", "three functions", library(("TRITONBACKEND_ModelBatchFinalize", "finalize")), "wrong",
           "ModelBatchFinalize"),
    Answer("6.3", "by number", with_rule("batch->num_requests < 8"), "wrong", "batches over the limit: ", [SERVER]),
    Answer("6.3", "alone", with_rule("batch->num_requests == 0"), "wrong", "sent away though they fit: ", [SERVER]),
    Answer("6.3", "always", with_rule("true"), "wrong", "batches over the limit: ", [SERVER, SLOW]),
    Answer("6.3", "without the newcomer", with_rule("batch->longest * (batch->num_requests + 1) <= LIMIT"), "wrong",
           "batches over the limit: ", [SERVER, SLOW]),
    Answer("6.3", "less", with_rule("batch->num_requests == 0 || longest * (batch->num_requests + 1) < LIMIT"), "wrong",
           "sent away", [SERVER, SLOW]),
    Answer("6.3", "never", with_rule("false"), "wrong", "may always join", [SERVER, SLOW]),
    Answer("6.3", "a pointer", library(("*userp = calloc(1, sizeof(Batch));", "*userp = (void*)8;")), "wrong",
           "answered", [SERVER, SLOW]),

    Answer("6.4", "in NumPy, backwards", as_hdr_histogram),
    Answer("6.4", "nothing", lambda *_: [], "partly", "an answer in time ✓, one left out not right yet"),
    Answer("6.4", "with the one measured", lambda latency, every: [latency, *as_hdr_histogram(latency, every)], "wrong",
           "an answer in time not right yet"),
    Answer("6.4", "down to zero", down_to(lambda every: 1), "partly", "the last of them not right yet"),
    Answer("6.4", "one alone", lambda latency, every: [latency - every][: latency >= 2 * every], "partly",
           "one left out ✓, many not right yet"),
    Answer("6.4", "all as slow", lambda latency, every: [latency] * (latency // every - 1), "partly",
           "one left out not right yet"),
    Answer("6.4", "in the other order", lambda *given: as_hdr_histogram(*given)[::-1], "partly", "many not right yet"),

    Answer("6.5", "row by row", right_winner),
    Answer("6.5", "none", lambda *_: "none", "partly", "'none'"),
    Answer("6.5", "of one round", lambda rounds, budget_ms: best_of(rounds[0], budget_ms), "partly",
           "too late in one round not right yet"),
    Answer("6.5", "wins each round", wins_each_round, "partly", "rounds that overlap not right yet"),
    Answer("6.5", "by the mean", by_the_mean, "partly", "rounds that overlap not right yet"),
    Answer("6.5", "no budget", without_a_budget, "partly", "the fastest is too late not right yet"),
    Answer("6.5", "late ones are rivals", late_ones_are_rivals, "partly", "the fastest is too late not right yet"),
    Answer("6.5", "of two rounds", winner_of_two, "partly", "three rounds not right yet"),
]  # fmt: skip
