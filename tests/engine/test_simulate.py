"""The engine without a model: what an iteration tells, who comes when, and what ends a trial."""

import pytest

from inflight.engine.own.plan_rules import SchedulerError
from inflight.engine.scheduler import GuaranteedNoEvict, Plan
from inflight.engine.settings import BuildConfig
from inflight.engine.simulate import SimulatedRequest, Simulation

LIMITS = BuildConfig(max_batch_size=4, max_input_len=150, max_seq_len=300, max_num_tokens=256)


def counts(trial, scheduler):
    return trial.counts(trial.run(scheduler))


def test_an_iteration_tells_who_finished_and_the_blocks_that_were_held():
    trial = Simulation([SimulatedRequest(30, 40, 40)] * 2, 6, BuildConfig(max_batch_size=2))
    rows = list(trial.run(GuaranteedNoEvict()))
    assert [row.number for row in rows] == list(range(1, 41))
    assert [row.blocks_used for row in rows] == [2] * 3 + [4] * 32 + [6] * 5
    assert [row.finished for row in rows] == [[]] * 39 + [[1, 2]]


def test_who_comes_later_waits_from_then_on():
    trial = Simulation([SimulatedRequest(10, 50, 5), SimulatedRequest(10, 50, 3, arrives=90)], 60, LIMITS)
    assert counts(trial, GuaranteedNoEvict()).latencies == [5, 3]


class Sleeper:
    def schedule(self, now):
        return Plan()


class Hoarder:
    """Lets everybody in and never pauses."""

    def schedule(self, now):
        admit = [one.id for one in list(now.waiting)[: now.max_batch_size - len(now.running)]]
        return Plan(admit, {one.id: 1 for one in now.running})


def test_one_that_does_nothing_or_breaks_a_rule_is_told():
    trial = Simulation([SimulatedRequest(100, 150, 150)] * 4, 12, LIMITS)
    with pytest.raises(SchedulerError, match="Sleeper: schedule.. computed nothing 100 times in a row, and request 1"):
        counts(trial, Sleeper())
    with pytest.raises(SchedulerError, match="Hoarder: schedule.. needs 16 KV cache blocks, of which 12 are free"):
        counts(trial, Hoarder())


def test_what_fits_into_no_cache_waits_for_ever_and_is_told():
    trial = Simulation([SimulatedRequest(20, 20, 20), SimulatedRequest(100, 300, 300)], 10, LIMITS)
    with pytest.raises(SchedulerError, match="computed nothing 100 times in a row, and request 2 waits"):
        counts(trial, GuaranteedNoEvict())
