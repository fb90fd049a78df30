"""A trial against the engine's own parts: the same requests, with blocks and a model without weights."""

import random

import pytest

from inflight.engine.config import BuildConfig
from inflight.engine.dry_run import dry_run
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Plan, StaticBatching
from inflight.engine.trial import TrialRequest, trial
from tests.engine.test_scheduler import Arrival, play

LIMITS = BuildConfig(max_batch_size=4, max_input_len=150, max_seq_len=300, max_num_tokens=256)
SCHEDULERS = [StaticBatching, GuaranteedNoEvict, MaxUtilization]
SEED, NUM_TRACES = 31, 25


def any_requests(draw, whole):
    rows = []
    for _ in range(draw.randint(1, 12)):
        longest = draw.randint(1, 150)
        ends = longest if whole else draw.randint(1, longest)
        rows.append(TrialRequest(draw.randint(1, 150), longest, ends, draw.choice([0, 0, draw.randint(1, 40)])))
    return sorted(rows, key=lambda row: row.arrives)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_it_is_what_the_engine_does(scheduler):
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(NUM_TRACES):
        requests, num_blocks = any_requests(draw, whole=True), draw.choice([10, 14, 60])
        requests = [TrialRequest(row.prompt_tokens, row.max_answer_tokens, row.answer_tokens) for row in requests]
        came = trial(scheduler(), requests, num_blocks, LIMITS)
        trace = [Arrival(0, (3,) * row.prompt_tokens, row.answer_tokens, None) for row in requests]
        plans = play(scheduler(), trace, num_blocks, LIMITS).plans
        assert came.iterations == len(plans) == max(came.latencies)
        assert came.computed == sum(sum(plan.compute.values()) for _, plan in plans)
        assert came.pauses == sum(len(plan.pause) for _, plan in plans)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_answers_that_end_early_are_those_of_the_dry_run(scheduler):
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(NUM_TRACES):
        requests, num_blocks = any_requests(draw, whole=False), draw.choice([10, 14, 60])
        requests = [TrialRequest(row.prompt_tokens, row.max_answer_tokens, row.answer_tokens) for row in requests]
        came = trial(scheduler(), requests, num_blocks, LIMITS)
        lengths = [(row.prompt_tokens, row.max_answer_tokens) for row in requests]
        ends = [row.answer_tokens for row in requests]
        dry = dry_run(lengths, scheduler(), num_blocks, 4, max_num_tokens=256, at_the_start=len(requests), ends=ends)
        assert (came.iterations, came.pauses, came.twice) == (dry.iterations, dry.pauses, dry.tokens_twice)


def test_who_comes_later_waits_from_then_on():
    [first, second] = trial(
        GuaranteedNoEvict(), [TrialRequest(10, 50, 5), TrialRequest(10, 50, 3, arrives=90)], 60, LIMITS
    ).latencies
    assert (first, second) == (5, 3)


class Sleeper:
    def schedule(self, now):
        return Plan()


class Hoarder:
    """Lets everybody in and never pauses."""

    def schedule(self, now):
        admit = [one.id for one in list(now.waiting)[: now.max_batch_size - len(now.running)]]
        return Plan(admit, {one.id: 1 for one in now.running})


def test_one_that_does_nothing_or_breaks_a_rule_is_told():
    requests = [TrialRequest(100, 150, 150)] * 4
    with pytest.raises(SchedulerError, match="Sleeper: schedule.. computed nothing 100 times in a row, and request 1"):
        trial(Sleeper(), requests, 12, LIMITS)
    with pytest.raises(SchedulerError, match="Hoarder: schedule.. needs 16 KV cache blocks, of which 12 are free"):
        trial(Hoarder(), requests, 12, LIMITS)
    with pytest.raises(SchedulerError, match="takes too long"):
        trial(GuaranteedNoEvict(), requests, 12, LIMITS, within_s=-1)
