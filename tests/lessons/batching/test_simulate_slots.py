"""The slots of lesson 04 on paper: by hand, and as the engine's own scheduler gives them."""

import random

import pytest

from inflight.engine.scheduler import built_in
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import SimulatedRequest, Simulation
from inflight.lessons.batching.simulate import latencies, schedule


def test_static_takes_the_longest_of_each_batch():
    plan = schedule([4, 2, 3, 1], slots=2, gpt_model_type="V1")
    assert plan.stays[["slot", "first", "last", "answered"]].values.tolist() == [
        [1, 1, 4, 4],
        [2, 1, 2, 4],
        [1, 5, 7, 7],
        [2, 5, 5, 7],
    ]
    assert plan.iterations["answers"].tolist() == [0, 2, 1, 1, 0, 1, 1]
    assert plan.iterations["prompts"].tolist() == [2, 0, 0, 0, 2, 0, 0]
    assert plan.occupancy == 10 / 14


def test_in_flight_a_slot_is_taken_as_it_gets_free():
    plan = schedule([4, 2, 3, 1], slots=2, gpt_model_type="inflight_fused_batching")
    assert plan.stays[["slot", "first", "last", "answered"]].values.tolist() == [
        [1, 1, 4, 4],
        [2, 1, 2, 2],
        [2, 3, 5, 5],
        [1, 5, 5, 5],
    ]
    assert len(plan.iterations) == 5 and plan.occupancy == 1.0


@pytest.mark.parametrize("gpt_model_type", ["V1", "inflight_fused_batching"])
def test_paper_and_engine_agree_and_no_slot_is_taken_twice(gpt_model_type):
    draw = random.Random(3)
    lengths = [draw.randint(1, 40) for _ in range(50)]
    plan = schedule(lengths, 8, gpt_model_type)
    trial = Simulation([SimulatedRequest(1, length, length) for length in lengths], 1000, BuildConfig(max_batch_size=8))
    played = list(trial.run(built_in(ExecutorConfig(gpt_model_type=gpt_model_type))))
    began = {number: iteration.number for iteration in played for number in iteration.plan.admit}
    ended = {number: iteration.number for iteration in played for number in iteration.finished}
    assert plan.stays["first"].tolist() == [began[number] for number in range(1, 51)]
    assert plan.stays["last"].tolist() == [ended[number] for number in range(1, 51)]
    assert plan.iterations.sum(axis=1).tolist() == [iteration.num_tokens for iteration in played]
    for _, rows in plan.stays.sort_values("first").groupby("slot"):
        assert (rows["first"].iloc[1:].to_numpy() > rows["last"].iloc[:-1].to_numpy()).all()


def test_latency_counts_the_wait_and_static_answers_leave_together():
    lengths, arrivals = [4, 2, 3, 1, 5], [0, 1, 2, 3, 100]
    assert latencies(lengths, 2, "V1", arrivals) == [4, 6, 5, 5, 5]
    assert latencies(lengths, 2, "inflight_fused_batching", arrivals) == [4, 2, 4, 2, 5]
