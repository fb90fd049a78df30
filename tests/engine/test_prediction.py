"""The arithmetic of batching: iterations from lengths alone, time from the cost of an iteration, both by hand."""

import random

import pandas as pd
import pytest

from inflight.engine.prediction import IterationCost, iteration_cost, schedule
from inflight.errors import CourseError

COST = IterationCost(pd.Series({0: 0.0, 1: 10.0, 2: 12.0}), prompt_token_ms=0.5)


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
def test_nobody_is_lost_and_no_slot_is_taken_twice(gpt_model_type):
    seed = 3
    print("seed", seed)
    lengths = [random.Random(seed).randint(1, 40) for _ in range(50)]
    plan = schedule(lengths, 8, gpt_model_type)
    stays = plan.stays.sort_index()
    assert (stays["last"] - stays["first"] + 1).tolist() == lengths
    assert plan.iterations.sum().sum() == sum(lengths)
    assert plan.iterations.sum(axis=1).max() == 8
    for _, rows in stays.sort_values("first").groupby("slot"):
        assert (rows["first"].iloc[1:].to_numpy() > rows["last"].iloc[:-1].to_numpy()).all()


def test_time_is_answers_and_prompts_by_their_cost():
    plan = schedule([3, 1], slots=2, gpt_model_type="inflight_fused_batching")
    assert COST.milliseconds(plan, prompt_tokens=20).tolist() == [20.0, 10.0, 10.0]
    assert COST.seconds(plan, prompt_tokens=20) == 0.04


def log_of(*iterations):
    """An iteration log with `milliseconds, prompt tokens, answers, finished` a row."""
    rows, start = [], 1000.0
    for milliseconds, prompt_tokens, answers, finished in iterations:
        requests = [[index, 0, 1, 1] for index in range(answers)] + [[99, prompt_tokens, 0, 1]] * (prompt_tokens > 0)
        rows.append((start, milliseconds - 0.5, prompt_tokens, finished, requests))
        start += milliseconds / 1000
    return pd.DataFrame(rows, columns=["timestamp", "iteration_ms", "context_tokens", "finished", "requests"])


def test_the_cost_is_read_from_a_log():
    cost = iteration_cost(
        log_of(
            (20, 40, 0, 0), (10, 0, 1, 0), (11, 0, 1, 0), (60, 0, 1, 0), (30, 38, 1, 0), (12, 0, 2, 0), (12, 0, 2, 2)
        )
    )
    assert cost.answers_ms.round(6).tolist() == [0.0, 11.0, 11.75]  # 12 from start to start, 11.5 where one has left
    assert round(cost.prompt_token_ms, 6) == 0.5


def test_a_log_that_lacks_a_batch_size_is_refused():
    with pytest.raises(CourseError, match="has no iterations with 1 answers and no prompt: run 1, 2"):
        iteration_cost(log_of((20, 40, 0, 0), (12, 0, 2, 0), (12, 0, 2, 0)))
    with pytest.raises(CourseError, match="has no prompts"):
        iteration_cost(log_of((10, 0, 1, 0), (10, 0, 1, 0)))
    with pytest.raises(CourseError, match="has no prompts"):
        iteration_cost(log_of())
