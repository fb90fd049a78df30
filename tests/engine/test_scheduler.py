"""The built-in schedulers: what each promises, whatever comes; and the rules that every plan keeps."""

import random
from dataclasses import replace

import pytest

from inflight.engine.own.plan_rules import broken_rule
from inflight.engine.scheduler import (
    GuaranteedNoEvict,
    MaxUtilization,
    Now,
    Plan,
    RequestView,
    StaticBatching,
    built_in,
    tokens_to_compute,
)
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import SimulatedRequest, Simulation

LIMITS = BuildConfig(max_batch_size=4, max_input_len=48, max_seq_len=96, max_num_tokens=64)
BLOCKS_OF_ONE = 3  # a longest request's
NUM_TRIALS = 40


def any_trial(seed: int) -> Simulation:
    draw = random.Random(seed)
    requests = []
    for _ in range(draw.randint(1, 12)):
        longest = draw.randint(1, 48)
        arrives = draw.choice([0, 0, draw.randint(1, 40)])
        requests.append(SimulatedRequest(draw.randint(1, 48), longest, draw.randint(1, longest), arrives))
    num_blocks = draw.choice([BLOCKS_OF_ONE, 7, 12])
    return Simulation(requests, num_blocks, LIMITS, draw.choice([False, True]), draw.choice([False, True]))


@pytest.mark.parametrize("scheduler", [StaticBatching, GuaranteedNoEvict, MaxUtilization])
def test_max_utilization_alone_pauses_and_nobody_joins_a_static_batch(scheduler):
    pauses = joined = 0
    for seed in range(NUM_TRIALS):
        for iteration in any_trial(seed).run(scheduler()):
            pauses += len(iteration.plan.pause)
            joined += bool(iteration.running and iteration.plan.admit)
    assert (pauses > 0) == (scheduler is MaxUtilization)
    assert (joined > 0) == (scheduler is not StaticBatching)


def test_a_paused_request_longer_than_an_iteration_comes_back_in_parts():
    """48 + 30 tokens are more than max_num_tokens; computed whole or not at all, it would never be."""
    iterations = Simulation([SimulatedRequest(48, 48, 48)] * 2, 5, LIMITS).run(MaxUtilization())
    assert max(tokens for row in iterations for tokens in row.plan.compute.values()) == LIMITS.max_num_tokens


def test_short_prompts_do_not_overtake_a_long_one_for_ever():
    """With three others under way a prompt of 48 does not fit into 50 tokens; nobody is admitted before it."""
    stream = [SimulatedRequest(1, 9, 9, arrives=3 * number) for number in range(20)]
    trial = Simulation([*stream, SimulatedRequest(48, 2, 2, arrives=10)], 12, replace(LIMITS, max_num_tokens=50))
    assert trial.counts(trial.run(GuaranteedNoEvict())).latencies[-1] <= 9 + 2  # the others' answers, then its own


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (ExecutorConfig(), GuaranteedNoEvict),
        (ExecutorConfig(batch_scheduler_policy="max_utilization"), MaxUtilization),
        (ExecutorConfig(gpt_model_type="V1"), StaticBatching),
        (ExecutorConfig(gpt_model_type="V1", batch_scheduler_policy="max_utilization"), StaticBatching),
    ],
)
def test_settings_name_a_scheduler(config, kind):
    assert type(built_in(config)) is kind


def test_a_pause_frees_the_blocks_that_nobody_shares_and_no_others():
    """The first needs a block, and none is free; the youngest shares its two, so the one before it is paused, too."""
    first, second, third = (request(number, prompt=33, answer=32, cached=64, blocks=2) for number in (1, 2, 3))
    second = replace(second, own_blocks=1)
    third = replace(third, own_blocks=0)
    now = replace(NOW, waiting=[], running=[first, second, third], paused=[], free_blocks=0, num_blocks=3)
    assert MaxUtilization().schedule(now) == Plan(compute={1: 1}, pause=[3, 2])


# Rules ----------------------------------------------------------------------------------------------------------------


def request(number: int, prompt=10, answer=0, cached=0, blocks=0) -> RequestView:
    return RequestView(number, prompt, answer, 20, cached, blocks, blocks)


NOW = Now(
    waiting=[request(1), request(2), request(3, prompt=40)],
    running=[request(4, answer=1, cached=10, blocks=1), request(5, prompt=32, answer=1, cached=32, blocks=1)],
    paused=[request(6, answer=5)],
    free_blocks=3,
    num_blocks=5,
    tokens_per_block=32,
    max_batch_size=4,
    max_num_tokens=64,
    chunked_context=False,
)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (None, "returned a NoneType; it must return a Plan"),
        ([1, 2], "returned a list; it must return a Plan"),
        (Plan(admit=(1,)), "gave a plan whose admit is not a list of request ids"),
        (Plan(admit=["1"]), "gave a plan whose admit is not a list of request ids"),
        (Plan(pause=[True]), "gave a plan whose pause is not a list of request ids"),
        (Plan(admit=[1, 1]), "names a request twice in admit"),
        (Plan(compute=[4]), "gave a plan whose compute is not a dict from request ids to numbers of tokens"),
        (Plan(compute={4: 1.0}), "gave a plan whose compute is not a dict from request ids to numbers of tokens"),
        (Plan(admit=[99]), "admits request 99, which is neither waiting nor paused"),
        (Plan(admit=[4]), "admits request 4, which is neither waiting nor paused"),
        (Plan(pause=[1]), "pauses request 1, which does not run"),
        (Plan(admit=[1, 2, 6]), "lets 5 requests run at once; max_batch_size is 4"),
        (Plan(compute={1: 1}), "computes tokens of request 1, which would not run"),
        (Plan(pause=[4], compute={4: 1}), "computes tokens of request 4, which would not run"),
        (Plan(compute={4: 0}), "computes 0 tokens of request 4, of which 1 are pending; give 1 to 1"),
        (Plan(compute={4: 2}), "computes 2 tokens of request 4, of which 1 are pending; give 1 to 1"),
        (Plan(admit=[1], compute={1: -3}), "computes -3 tokens of request 1, of which 10 are pending; give 1 to 10"),
        (
            Plan(admit=[1, 3, 6], pause=[4], compute={1: 10, 3: 40, 6: 15}),
            "computes 65 tokens in an iteration; max_num_tokens is 64",
        ),
        (
            Plan(admit=[3, 1], compute={5: 1}),
            "needs 4 KV cache blocks, of which 3 are free; admit or compute fewer requests, or pause one",
        ),
        (
            Plan(admit=[1], compute={1: 4}),
            "computes 4 of 10 tokens of request 1; without enable_chunked_context, give all",
        ),
        (Plan(admit=[3, 1], compute={5: 1}, pause=[4]), None),
        (Plan(admit=[1, 2], compute={4: 1, 1: 10}), None),
        (Plan(), None),
    ],
)
def test_rules_of_a_plan(plan, rule):
    assert broken_rule(NOW, plan) == rule


def test_answers_come_before_prompts_and_prompts_in_their_order():
    running = [request(1, prompt=50), request(2, prompt=9), request(3, prompt=8, answer=1, cached=8)]
    assert tokens_to_compute(NOW, running) == {3: 1, 1: 50, 2: 9}
    assert tokens_to_compute(replace(NOW, max_num_tokens=52), running) == {3: 1, 1: 50}
    assert tokens_to_compute(replace(NOW, max_num_tokens=52, chunked_context=True), running) == {3: 1, 1: 50, 2: 1}
