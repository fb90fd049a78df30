"""The checks of lab 09: right answers that differ pass, wrong ones are told why, and luck does not help."""

import contextlib
import math
import random

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.lessons.capstone import grading as capstone
from inflight.lessons.capstone import service
from inflight.notebook.checks import check

REUSE = {"enable_kv_cache_reuse": True}
INT8 = {"kv_cache_quant_algo": "INT8"}
SHED = {"max_queue_size": 4}

# Promises what is really free: a block that several hold counts once, so more users fit.
SHARING = """
from inflight.engine import Plan

class Scheduler:
    def schedule(self, now):
        plan, room, blocks = Plan(), now.max_num_tokens, now.free_blocks
        for request in now.running:
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
            blocks -= now.blocks_for(request.max_tokens) - request.num_blocks
        for request in list(now.waiting)[:now.max_batch_size - len(now.running)]:
            needed = now.blocks_for(request.max_tokens)
            if needed > blocks or request.pending_tokens > room:
                break
            plan.admit.append(request.id)
            plan.compute[request.id] = request.pending_tokens
            room -= request.pending_tokens
            blocks -= needed
        return plan
"""
NEVER = (
    "class Scheduler:\n    def schedule(self, now):\n        from inflight.engine import Plan\n        return Plan()\n"
)
BROKEN = "class Scheduler:\n    def schedule(self, now):\n        return 5\n"


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise; the hidden runs are the same in each test run, and their seed is shown."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", "48151")


def right_goodput(table, ttft, itl):
    met = 0
    for row in table.itertuples():
        met += not row.error and row.ttft_ms <= ttft and (math.isnan(row.itl_ms) or row.itl_ms <= itl)
    return met / (max(table["last_s"]) - min(table["sent_s"]))


def right_users(memory, bytes_per_token, prompt, answer, shared, block):
    blocks, common = memory // (bytes_per_token * block), shared // block
    users = 0
    while common + (users + 1) * (math.ceil((prompt + answer) / block) - common) <= blocks:
        users += 1
    return users


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("9.1", right_goodput),
        ("9.2", right_users),
        ("9.1", lambda *run: np.float64(right_goodput(*run)).round(2)),
        ("9.2", lambda *case: float(right_users(*case))),
        ("9.3", REUSE | INT8),
        ("9.3", REUSE | INT8 | {"scheduler_path": None, "max_queue_size": np.int64(0)}),
        ("9.4", REUSE | INT8 | SHED),
    ],
)
def test_another_right_way_is_done(exercise, answer):
    result = check(exercise, answer)
    assert result.status == "done", result


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "22", "333"])
def test_whatever_runs_are_hidden_the_course_keeps_the_contract_and_one_knob_does_not(seed, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", seed)
    assert check("9.3", REUSE | INT8).status == "done"
    assert check("9.3", REUSE).status == "wrong"


def test_a_scheduler_of_ones_own_is_judged_as_any_setting(tmp_path):
    path = tmp_path / "scheduler.py"
    path.write_text(SHARING)
    own, policy = check("9.3", REUSE | {"scheduler_path": path}), check("9.3", REUSE)
    assert own.figures[0].value > policy.figures[0].value, own
    assert check("9.3", REUSE | INT8 | {"scheduler_path": path}).status == "done"


def of_all_that_came(table, ttft, itl):
    return len(table) / (table["last_s"].max() - table["sent_s"].min())


@pytest.mark.parametrize(
    ("exercise", "answer", "says"),
    [
        ("9.1", of_all_that_came, ""),
        ("9.1", lambda table, ttft, itl: right_goodput(table[table["error"] == ""], ttft, itl) * 1.01, "all in time"),
        ("9.1", lambda table, ttft, itl: right_goodput(table.dropna(subset="itl_ms"), ttft, itl), "single token"),
        ("9.1", lambda table, ttft, itl: right_goodput(table[table["error"] == ""], ttft, itl), "without an answer"),
        ("9.1", lambda table, ttft, itl: right_goodput(table, ttft, math.inf), "some of them late"),
        ("9.1", lambda table, ttft, itl: "much", "str"),
        ("9.1", lambda table, ttft, itl: right_goodput(table, ttft / 1000, itl / 1000), "in milliseconds"),
        ("9.2", lambda *_: 8, "fit"),
        ("9.2", lambda m, b, p, a, s, n: m // b // (p + a), "blocks"),
        ("9.2", lambda m, b, p, a, s, n: right_users(m, b, p, a, 0, n), "shared"),
        ("9.2", lambda m, b, p, a, s, n: right_users(m, b, p, a, s, n) + 1, "fit"),
        ("9.3", {"max_batch_size": 16}, "first tokens"),
        ("9.3", {"max_queue_size": 1}, "no answer"),
        ("9.3", REUSE | INT8 | {"max_batch_size": 1}, "late"),
        ("9.3", REUSE, "first tokens"),
        ("9.3", INT8, ""),
        ("9.3", REUSE | INT8 | {"max_batch_size": 2}, "late"),
        ("9.3", {"cache_tokens": 10**6}, "no knob"),
        ("9.3", {"max_num_tokens": 128}, "enable_chunked_context"),
        ("9.3", {"max_batch": 16}, "'max_batch'"),
        ("9.3", {"max_batch_size": 0}, "at least 1"),
        ("9.3", {"scheduler_path": "nowhere.py"}, ""),
        ("9.3", 16, ""),
        ("9.4", REUSE | INT8 | {"max_batch_size": 16}, ""),
        ("9.4", REUSE | {"max_queue_size": 4}, ""),
        ("9.4", {"max_queue_size": 1}, "no answer"),
    ],
)
def test_a_mistake_is_told_by_its_cause(exercise, answer, says, monkeypatch):
    monkeypatch.setattr(capstone, "RUNS", 4)  # enough to see what is as wrong as this
    result = check(exercise, answer)
    assert result.status in ("wrong", "partly") and says in repr(result), result


@pytest.mark.parametrize(
    ("exercise", "answer"), [("9.1", lambda *_: None), ("9.2", lambda *_: None), ("9.3", {}), ("9.4", {})]
)
def test_an_untouched_exercise_is_not_done_yet(exercise, answer):
    assert check(exercise, answer).status == "not done yet"


def test_the_same_seed_gives_the_same_figures_beside_the_courses_and_the_defaults():
    one, other = (check("9.3", REUSE | INT8) for _ in range(2))
    assert [figure.value for figure in one.figures] == [figure.value for figure in other.figures]
    assert one.seed == 48151 and all(None not in (each.course, each.nothing) for each in one.figures)


def test_whatever_is_set_is_taken_or_refused_in_a_sentence():
    choose = random.Random(7)
    values = (None, True, -1, 0, 3.5, "x", [], {}, 10**30)
    for _ in range(200):
        name, value = choose.choice(list(vars(service.Deployment()))), choose.choice(values)
        with contextlib.suppress(CourseError):  # any other error fails the test
            chosen = service.deployment({name: value})
            chosen.executor_config(64, 46080), chosen.build_config
