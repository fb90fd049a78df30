"""The engine without a model: the same iterations as with one, whole or in leaps."""

import random

import pytest

from inflight.engine.config import BuildConfig
from inflight.engine.plan_rules import SchedulerError
from inflight.engine.play import Trial, TrialRequest
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, Plan, StaticBatching

LIMITS = BuildConfig(max_batch_size=4, max_input_len=150, max_seq_len=300, max_num_tokens=256)
SCHEDULERS = [StaticBatching, GuaranteedNoEvict, MaxUtilization]
SEED, NUM_TRACES = 31, 25


def any_trials():
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(NUM_TRACES):
        requests = []
        for _ in range(draw.randint(1, 12)):
            longest = draw.randint(1, 150)
            arrives = draw.choice([0, 0, draw.randint(1, 40)])
            requests.append(TrialRequest(draw.randint(1, 150), longest, draw.randint(1, longest), arrives))
        yield Trial(requests, draw.choice([10, 14, 60]), LIMITS)


def counts(trial, scheduler, leaps=False):
    return trial.counts(trial.play(scheduler, leaps))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_leaps_come_to_the_same_with_fewer_plans(scheduler):
    for trial in any_trials():
        one_by_one, leaping = (list(trial.play(scheduler(), leaps)) for leaps in (False, True))
        assert trial.counts(one_by_one) == trial.counts(leaping)
        blocks = [row.blocks_used for row in leaping for _ in range(row.repeats)]
        assert blocks == [row.blocks_used for row in one_by_one]
        assert len(leaping) <= len(one_by_one)


def test_an_iteration_tells_who_finished_and_the_blocks_that_were_held():
    trial = Trial([TrialRequest(30, 40, 40)] * 2, 6, BuildConfig(max_batch_size=2))
    rows = [(row.number, row.repeats, row.blocks_used, row.finished) for row in trial.play(GuaranteedNoEvict(), True)]
    assert rows == [(1, 1, 2, []), (2, 2, 2, []), (4, 32, 4, []), (36, 5, 6, [1, 2])]


def test_who_comes_later_waits_from_then_on():
    trial = Trial([TrialRequest(10, 50, 5), TrialRequest(10, 50, 3, arrives=90)], 60, LIMITS)
    assert counts(trial, GuaranteedNoEvict()).latencies == [5, 3]
    assert counts(trial, GuaranteedNoEvict(), leaps=True).latencies == [5, 3]


class Sleeper:
    def schedule(self, now):
        return Plan()


class Hoarder:
    """Lets everybody in and never pauses."""

    def schedule(self, now):
        admit = [one.id for one in list(now.waiting)[: now.max_batch_size - len(now.running)]]
        return Plan(admit, {one.id: 1 for one in now.running})


def test_one_that_does_nothing_or_breaks_a_rule_is_told():
    trial = Trial([TrialRequest(100, 150, 150)] * 4, 12, LIMITS)
    with pytest.raises(SchedulerError, match="Sleeper: schedule.. computed nothing 100 times in a row, and request 1"):
        counts(trial, Sleeper())
    with pytest.raises(SchedulerError, match="Hoarder: schedule.. needs 16 KV cache blocks, of which 12 are free"):
        counts(trial, Hoarder())


def test_what_fits_into_no_cache_waits_for_ever_and_is_told():
    trial = Trial([TrialRequest(20, 20, 20), TrialRequest(100, 300, 300)], 10, LIMITS)
    with pytest.raises(SchedulerError, match="computed nothing 100 times in a row, and request 2 waits"):
        counts(trial, GuaranteedNoEvict())
