"""The schedulers against a model without weights: thousands of traces, each answer compared with the one it must be."""

import random
from dataclasses import dataclass, replace

import pytest

from inflight.engine.config import BuildConfig, ExecutorConfig, Request
from inflight.engine.fake_model import FakeModel
from inflight.engine.kv_cache import BlockManager
from inflight.engine.plan_rules import broken_rule, enforce
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
from inflight.engine.sequences import Sequence, Sequences
from tests.engines import fake_answer

VOCAB = 64
LIMITS = BuildConfig(max_batch_size=4, max_input_len=48, max_seq_len=96, max_num_tokens=64)
BLOCKS_OF_ONE = 3  # a longest request's
SCHEDULERS = (StaticBatching, GuaranteedNoEvict, MaxUtilization)
NUM_TRACES = 30
MOST_ITERATIONS = 2000  # of a trace; the longest seen takes some 300


@dataclass(frozen=True)
class Arrival:
    before: int  # iteration
    prompt: tuple[int, ...]
    output_len: int
    leaves_before: int | None  # iteration, if its client does not stay


def any_trace(draw: random.Random) -> list[Arrival]:
    """Up to ten requests. Prompts begin alike in their first block, so that reuse has something to find."""
    rows = []
    for _ in range(draw.randint(1, 10)):
        beginning, length = draw.choice([3, 7]), draw.choice([1, 2, 9, 20, 31, 32, 33, 40, 48])
        prompt = [beginning] * min(length, 33) + [draw.randrange(VOCAB) for _ in range(length - 33)]
        before = draw.choice([0, 0, 0, draw.randint(1, 30)])
        leaves = before + draw.randint(0, 20) if draw.random() < 0.15 else None
        rows.append(Arrival(before, tuple(prompt), draw.randint(1, 48), leaves))
    return sorted(rows, key=lambda row: row.before)


@dataclass
class Played:
    answers: dict[int, list[int]]
    plans: list[tuple[Now, Plan]]
    sequences: Sequences


def play(scheduler, trace: list[Arrival], num_blocks: int, limits=LIMITS, chunked=False, reuse=False) -> Played:
    """What the executor's loop does, without thread, text or clock."""
    model, blocks = FakeModel(limits, VOCAB), BlockManager(num_blocks, limits.tokens_per_block)
    model.allocate_kv_cache(num_blocks)
    sequences = Sequences(blocks, limits, chunked, reuse)
    everyone = [Sequence(number, Request(list(row.prompt), row.output_len)) for number, row in enumerate(trace, 1)]
    coming, left = list(zip(trace, everyone)), set(everyone)
    played = Played({sequence.id: sequence.answer for sequence in everyone}, [], sequences)
    for iteration in range(MOST_ITERATIONS):
        while coming and coming[0][0].before <= iteration:
            sequences.add(coming.pop(0)[1])
        for row, sequence in zip(trace, everyone):
            if row.leaves_before is not None and row.leaves_before <= iteration and sequence in left:
                sequences.remove(sequence)
                left.discard(sequence)
                coming = [item for item in coming if item[1] is not sequence]
        if not left:
            return played
        now = sequences.now()
        plan = scheduler.schedule(now)
        enforce(plan, now, scheduler)
        played.plans.append((replace(now, waiting=list(now.waiting), paused=list(now.paused)), plan))
        chunks = sequences.carry_out(plan)
        rows = iter(model.forward(list(chunks.values())))
        for sequence, chunk in chunks.items():
            sequences.computed(sequence, len(chunk.token_ids))
            if chunk.num_logits and sequence.add(int(next(rows).argmax())):
                sequences.remove(sequence)
                left.discard(sequence)
    raise AssertionError(f"after {MOST_ITERATIONS} iterations these are not answered: {sorted(s.id for s in left)}")


@pytest.mark.parametrize("reuse", [False, True], ids=["", "reuse"])
@pytest.mark.parametrize("chunked", [False, True], ids=["", "chunked"])
@pytest.mark.parametrize("num_blocks", [BLOCKS_OF_ONE, 7, 12], ids=["tight", "short", "loose"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_each_request_of_any_trace_gets_the_answer_it_would_get_alone(scheduler, num_blocks, chunked, reuse):
    for seed in range(NUM_TRACES):
        trace = any_trace(random.Random(seed))
        played = play(scheduler(), trace, num_blocks, chunked=chunked, reuse=reuse)
        for number, row in enumerate(trace, 1):
            expected, answer = fake_answer(row.prompt, row.output_len, VOCAB), played.answers[number]
            if row.leaves_before is not None:
                expected = expected[: len(answer)]
            assert answer == expected, f"seed {seed}, request {number}"
        assert played.sequences.blocks.num_used == 0, f"seed {seed}: blocks were not given back"
        if scheduler is not MaxUtilization:
            assert not any(plan.pause for _, plan in played.plans), f"seed {seed}"
        if scheduler is StaticBatching:
            assert not any(now.running and plan.admit for now, plan in played.plans), f"seed {seed}"


def requests(*lengths: tuple[int, int]) -> list[Arrival]:
    return [Arrival(0, (3,) * prompt, answer, None) for prompt, answer in lengths]


def test_max_utilization_pauses_and_guaranteed_no_evict_does_not():
    trace = requests((20, 32), (20, 32), (20, 32))  # one block each, later two
    pauses = {kind: sum(len(plan.pause) for _, plan in play(kind(), trace, BLOCKS_OF_ONE).plans) for kind in SCHEDULERS}
    assert pauses[MaxUtilization] > 0 == pauses[GuaranteedNoEvict] == pauses[StaticBatching]


def test_a_paused_request_longer_than_an_iteration_comes_back_in_parts():
    """48 + 30 tokens are more than max_num_tokens; computed whole or not at all, it would never be."""
    played = play(MaxUtilization(), requests((48, 48), (48, 48)), 5)
    parts = [tokens for now, plan in played.plans for tokens in plan.compute.values() if tokens > 1]
    assert sum(len(plan.pause) for _, plan in played.plans) > 0
    assert LIMITS.max_num_tokens in parts and max(parts) <= LIMITS.max_num_tokens


def test_short_prompts_do_not_overtake_a_long_one_for_ever():
    """With three others under way a prompt of 48 does not fit into 50 tokens; nobody is admitted before it."""
    limits = replace(LIMITS, max_num_tokens=50)
    stream = [Arrival(3 * number, (3,), 9, None) for number in range(20)]
    trace = sorted([*stream, Arrival(10, (7,) * 48, 2, None)], key=lambda row: row.before)
    number = next(number for number, row in enumerate(trace, 1) if len(row.prompt) == 48)
    played = play(GuaranteedNoEvict(), trace, 12, limits=limits)
    first = next(index for index, (_, plan) in enumerate(played.plans) if number in plan.compute)
    assert first < 10 + 9  # the others' answers


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
