"""The checks of lab 06 find the mistakes that learners make, and say which."""

import re

import numpy as np
import pandas as pd
import pytest

from inflight.notebook.checks import check
from inflight.notebook.parts import COURSES_OWN
from inflight.paths import COURSE
from tools import lessons

MOST, DELAY = "max_batch_size", "dynamic_batching.max_queue_delay_microseconds"


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise; the hidden cases are the same in each test run."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", "48151")


def right_sizes(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """One arrival after the other, as another than the solution might write it."""
    batches, free_ms, place = [], 0, 0
    while place < len(arrivals_ms):
        leaves_ms = max(free_ms, arrivals_ms[place] + delay_ms)
        last = place + max_batch_size - 1
        if last < len(arrivals_ms) and arrivals_ms[last] < leaves_ms:
            leaves_ms = max(free_ms, arrivals_ms[last])
        size = 1
        while size < max_batch_size and place + size < len(arrivals_ms) and arrivals_ms[place + size] <= leaves_ms:
            size += 1
        batches.append(size)
        place, free_ms = place + size, leaves_ms + fixed_ms + item_ms * size
    return batches


def changed(**fixed):
    """`right_sizes` with some of its parameters taken for something else."""
    names = ("arrivals_ms", "delay_ms", "max_batch_size", "fixed_ms", "item_ms")
    return lambda *values: right_sizes(**{**dict(zip(names, values, strict=True)), **fixed})


def right_idle(requests, executions):
    """As intervals, not as moments: what of the waiting is left when the batches are cut out of it."""
    spans = executions.set_index("execution")["start_s"]
    waits = []
    for row in requests.itertuples():
        waits.append((row.sent_s, row.answered_s if pd.isna(row.execution) else spans[row.execution]))
    joined = []
    for begin, end in sorted(waits):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([begin, end])
    idle_s = 0.0
    for begin, end in joined:
        idle_s += end - begin
        for row in executions.itertuples():
            idle_s -= max(0.0, min(end, row.end_s) - max(begin, row.start_s))
    return 1000 * idle_s


def waits_out_the_delay(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """A batch waits for its delay also where it is full."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        leaves_ms = max(free_ms, waiting[0] + delay_ms)
        size = min(max_batch_size, sum(arrival <= leaves_ms for arrival in waiting))
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


def misses_a_tie(arrivals_ms, delay_ms, max_batch_size, fixed_ms, item_ms):
    """A request that comes at the very moment at which a batch leaves is not in it."""
    waiting, free_ms, sizes = list(arrivals_ms), 0, []
    while waiting:
        full_ms = waiting[max_batch_size - 1] if len(waiting) >= max_batch_size else waiting[0] + delay_ms
        leaves_ms = max(free_ms, min(full_ms, waiting[0] + delay_ms))
        is_full = leaves_ms == full_ms and len(waiting) >= max_batch_size
        size = max_batch_size if is_full else max(1, sum(arrival < leaves_ms for arrival in waiting))
        size = min(size, max_batch_size)
        sizes, waiting, free_ms = [*sizes, size], waiting[size:], leaves_ms + fixed_ms + item_ms * size
    return sizes


def gaps(requests, executions):
    return 1000 * (executions["start_s"] - executions["end_s"].shift()).clip(lower=0).sum()


def without_the_rejected(requests, executions):
    return right_idle(requests[requests["outcome"] == "answered"], executions)


def each_for_itself(requests, executions):
    return sum(right_idle(requests[requests["request"] == number], executions) for number in requests["request"])


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


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("6.1", right_sizes),
        ("6.1", lambda *case: np.array(right_sizes(*case), float)),
        ("6.1", misses_a_tie),
        ("6.2", {DELAY: 120_000}),
        ("6.2", {DELAY: np.float64(120_000), MOST: np.int64(8)}),
        ("6.2", {MOST: "16", DELAY: "140000"}),
        ("6.4", right_idle),
        ("6.5", right_winner),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    result = check(exercise, answer)
    assert result.status == "done", result


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("6.1", lambda arrivals, *_: [1] * len(arrivals), "a busy model not right yet"),
        ("6.1", changed(max_batch_size=99), "max_batch_size not right yet"),
        ("6.1", changed(delay_ms=0), "the delay not right yet"),
        ("6.1", changed(fixed_ms=0, item_ms=0), "not right yet"),
        ("6.1", waits_out_the_delay, "the delay ✓, a full batch not right yet"),
        ("6.1", lambda arrivals, *_: [arrivals[99]], "IndexError"),
        ("6.1", leaves_with_the_newest, "the delay not right yet"),
        ("6.2", {DELAY: 0}, "at least 3"),
        ("6.2", {DELAY: 400_000}, "P95: "),
        ("6.2", {DELAY: 86_400_000_000}, "comes alone"),
        ("6.2", {"item_ms": 0, DELAY: 125_000}, "'item_ms'"),
        ("6.2", {DELAY: "long"}, ""),
        ("6.2", {MOST: 0}, "at least 1"),
        ("6.4", lambda *_: 300, "300"),
        ("6.4", gaps, "nobody waits not right yet"),
        ("6.4", without_the_rejected, ""),
        ("6.4", each_for_itself, ""),
        ("6.4", lambda requests, executions: right_idle(requests, executions) / 1000, "somebody waits not right yet"),
        ("6.5", lambda *_: "none", "'none'"),
        ("6.5", lambda rounds, budget_ms: best_of(rounds[0], budget_ms), "too late in one round not right yet"),
        ("6.5", wins_each_round, "rounds that overlap not right yet"),
        ("6.5", by_the_mean, "rounds that overlap not right yet"),
        ("6.5", without_a_budget, "the fastest is too late not right yet"),
        ("6.5", late_ones_are_rivals, "the fastest is too late not right yet"),
        ("6.5", winner_of_two, "three rounds not right yet"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, says):
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and says in repr(result), result


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [("6.1", lambda *_: None), ("6.2", {}), ("6.4", lambda *_: None), ("6.5", lambda *_: None)],
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


# Exercise 6.3: the library --------------------------------------------------------------------------------------------

WRITES = "%%writefile {workdir.name}/batching.c\n"
COURSES = (COURSES_OWN / "batching.c").read_text(encoding="utf-8")
RULE = re.compile(r"\*should_include = batch->num_requests == 0.*?;", re.S)


def cell_of(kind):
    """The library as a cell of the solution or of the lab writes it."""
    [cell] = [one for one in lessons.source(COURSE / "lessons/06_batchers", kind).cells if WRITES in one.source]
    return cell.source.removeprefix(WRITES)


def library(tmp_path, text):
    path = tmp_path / "batching.c"
    path.write_text(text, encoding="utf-8")
    return path


# Batches in a table that is never emptied: right for the first sixty-four.
OF_A_TABLE = (
    COURSES.replace("} Batch;", "} Batch;\nstatic Batch* table[64];\nstatic int used;", 1)
    .replace("*userp = calloc(1, sizeof(Batch));", "table[used] = calloc(1, sizeof(Batch));\n  *userp = table[used++];")
    .replace("*userp == NULL", "used > 64 || *userp == NULL")
    .replace("  free(userp);\n", "  free(userp);\n")
)


def with_rule(rule):
    assert RULE.search(COURSES)
    return RULE.sub(f"*should_include = {rule};", COURSES)


def test_the_solution_is_the_part_that_the_course_uses():
    written = cell_of("solutions")
    code = COURSES[COURSES.index("#include <stdlib.h>") :]
    assert written[written.index("#include <stdlib.h>") :].strip() == code.strip()


def test_the_file_as_it_is_handed_out_is_not_done_yet(tmp_path):
    path = library(tmp_path, cell_of("labs"))
    assert check("6.3", path).status == "not done yet"
    assert check("6.3", tmp_path / "nothing.c").status == "not done yet"


@pytest.mark.server
def test_the_courses_library_is_right_on_a_real_server_with_a_comment_of_the_lab_left_in_it(tmp_path):
    result = check("6.3", library(tmp_path, COURSES.replace("free(userp);", "free(userp);  /* your code */")))
    assert result.status == "done", result
    over, away, held = result.figures
    assert over.value == 0 and away.value <= 1 and held.value <= 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (COURSES.replace("calloc(1, sizeof(Batch));", "calloc(1, sizeof(Batch))"), "batching.c, line"),
        (COURSES.replace("TRITONBACKEND_ModelBatchFinalize", "finalize"), "ModelBatchFinalize"),
    ],
    ids=["no C", "three functions"],
)
def test_what_is_no_library_is_told_before_a_server_starts(tmp_path, text, says):
    result = check("6.3", library(tmp_path, text))
    assert result.status == "wrong" and says in repr(result), result


# Each check starts a Triton of its own: one wrong rule of each kind is in the gate, the others are slow.
@pytest.mark.server
@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(with_rule("batch->num_requests < 8"), "batches over the limit: ", id="by number"),
        pytest.param(with_rule("batch->num_requests == 0"), "requests sent away though they fit: ", id="alone"),
        *(
            pytest.param(text, says, id=name, marks=pytest.mark.slow)
            for name, text, says in (
                ("always", with_rule("true"), "batches over the limit: "),
                (
                    "without the newcomer",
                    with_rule("batch->longest * (batch->num_requests + 1) <= LIMIT"),
                    "batches over the limit: ",
                ),
                (
                    "less",
                    with_rule("batch->num_requests == 0 || longest * (batch->num_requests + 1) < LIMIT"),
                    "sent away",
                ),
                ("never", with_rule("false"), "alone"),
                ("keeps", COURSES.replace("  free(userp);\n", "  (void)userp;\n"), "not freed"),
                ("a table that fills up", OF_A_TABLE, "not all of 2,000 batches in a row"),
                ("a pointer", COURSES.replace("*userp = calloc(1, sizeof(Batch));", "*userp = (void*)8;"), "answered"),
            )
        ),
    ],
)
def test_a_wrong_library_is_told_by_what_its_batches_are(tmp_path, text, says):
    result = check("6.3", library(tmp_path, text))
    assert result.status == "wrong" and says in repr(result), result
