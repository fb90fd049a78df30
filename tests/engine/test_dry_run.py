"""The dry run against the engine's own parts: the same lengths, with sequences, blocks and a model without weights."""

import random

import pytest

from inflight.engine.config import BuildConfig
from inflight.engine.dry_run import dry_run
from inflight.engine.prediction import schedule
from inflight.engine.scheduler import GuaranteedNoEvict, MaxUtilization, StaticBatching
from inflight.errors import CourseError
from tests.engine.test_scheduler import Arrival, play

LIMITS = BuildConfig(max_batch_size=4, max_input_len=150, max_seq_len=300, max_num_tokens=256)
ENOUGH = 1000  # blocks
NUM_TRACES = 40


def lengths_of(draw):
    return [(draw.randint(1, 150), draw.randint(1, 150)) for _ in range(draw.randint(1, 12))]


@pytest.mark.parametrize("scheduler", [StaticBatching, GuaranteedNoEvict, MaxUtilization])
def test_it_decides_what_the_engine_decides(scheduler):
    seed = 15
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(NUM_TRACES):
        lengths, num_blocks, at_the_start = lengths_of(draw), draw.choice([10, 14, 20, 60]), draw.choice([1, 12])
        trace = [
            Arrival(0 if number < at_the_start else 1, tuple([3] * prompt), answer, None)
            for number, (prompt, answer) in enumerate(lengths)
        ]
        plans = play(scheduler(), trace, num_blocks, LIMITS).plans
        dry = dry_run(lengths, scheduler(), num_blocks, 4, max_num_tokens=256, at_the_start=at_the_start)
        assert dry.iterations == len(plans), lengths
        assert dry.pauses == sum(len(plan.pause) for _, plan in plans), lengths
        computed = sum(sum(plan.compute.values()) for _, plan in plans)
        assert computed == sum(prompt + answer - 1 for prompt, answer in lengths) + dry.tokens_twice, lengths
        waiting = [stretch.waiting for stretch in dry.stretches for _ in range(stretch.number)]
        assert waiting == [len(now.waiting) - sum(view.id in plan.admit for view in now.waiting) for now, plan in plans]


def test_with_blocks_for_all_it_is_the_schedule_from_the_lengths():
    lengths = [8, 8, 64, 16, 8, 32, 8, 8, 100, 8]
    for scheduler, kind in ((StaticBatching(), "V1"), (GuaranteedNoEvict(), "inflight_fused_batching")):
        dry = dry_run([(20, answer) for answer in lengths], scheduler, ENOUGH, slots=4)
        assert dry.iterations == len(schedule(lengths, 4, kind).iterations)
        assert (dry.pauses, dry.tokens_twice) == (0, 0)


def test_blocks_in_use_are_those_of_who_runs_and_never_more_than_there_are():
    dry = dry_run([(30, 40), (30, 40)], GuaranteedNoEvict(), 6, slots=2, at_the_start=2)
    assert [(stretch.first, stretch.number, stretch.blocks_used) for stretch in dry.stretches] == [
        (1, 1, 2),
        (2, 2, 2),
        (4, 32, 4),
        (36, 5, 6),
    ]
    tight = dry_run([(100, 100)] * 6, MaxUtilization(), 12, slots=4)
    assert tight.pauses > 0 and max(stretch.blocks_used for stretch in tight.stretches) == 12


def test_what_could_only_wait_for_ever_is_refused():
    with pytest.raises(CourseError, match="prompt of 100 and an answer of 300 tokens fit into no engine of 10 blocks"):
        dry_run([(20, 20), (100, 300)], MaxUtilization(), 10, slots=4)
    with pytest.raises(CourseError, match="256 tokens an iteration"):
        dry_run([(300, 20)], MaxUtilization(), 20, slots=4, max_num_tokens=256)
