"""Runs in virtual time: what they take is what their iterations cost, and who waits is decided as in the engine."""

import dataclasses
import random

import pandas as pd
import pytest

from inflight.engine.scheduler import built_in
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.engine.simulate import SimulatedRequest as Lengths
from inflight.engine.simulate import Simulation
from inflight.errors import CourseError
from inflight.lessons.capstone.rehearsal import Prices, TokenRequest, play
from inflight.lessons.capstone.stack import clock, prices_in
from inflight.notebook.checks import check

BUILD = BuildConfig(max_batch_size=4, max_input_len=96, max_seq_len=160, max_num_tokens=256)
ONE_EACH = Prices(iteration_ms=1000, answer_ms=0, prompt_token_ms=0)  # a second an iteration


def burst(lengths, at_s=0.0):
    return [TokenRequest([number + 1] * prompt, answer, at_s) for number, (prompt, answer) in enumerate(lengths)]


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
@pytest.mark.parametrize("seed", range(5))
def test_as_many_iterations_as_the_engine_takes_for_the_same_burst(policy, seed):
    choose = random.Random(seed)
    lengths = [(choose.randint(2, 90), choose.randint(1, 60)) for _ in range(12)]
    config = ExecutorConfig(batch_scheduler_policy=policy, max_tokens_in_paged_kv_cache=320)
    run = play(burst(lengths), BUILD, config, ONE_EACH)
    trial = Simulation([Lengths(prompt, answer, answer) for prompt, answer in lengths], 10, BUILD)
    assert run["last_s"].max() == trial.counts(trial.run(built_in(config))).iterations
    assert run["output_len"].tolist() == [answer for _, answer in lengths]


def test_times_are_the_prices_of_the_iterations_since_the_request_was_due():
    prices = Prices(iteration_ms=10, answer_ms=2, prompt_token_ms=1)
    row = play([TokenRequest([1] * 40, 3, 5.0)], BUILD, ExecutorConfig(), prices).iloc[0]
    assert row["ttft_ms"] == pytest.approx(10 + 40) and row["tpot_ms"] == pytest.approx(12)
    assert row["first_s"] == pytest.approx(5.05) and row["error"] == ""
    slower = play([TokenRequest([1] * 40, 3, 5.0)], BUILD, ExecutorConfig(), prices.times(2)).iloc[0]
    assert slower["latency_ms"] == pytest.approx(2 * row["latency_ms"])
    assert play([], BUILD, ExecutorConfig(), prices).empty


def test_what_two_prompts_begin_with_is_computed_once_with_reuse():
    shared = [7] * 64
    asked = [TokenRequest([*shared, 1, 2], 1, 0.0), TokenRequest([*shared, 3, 4], 1, 9.0)]
    prices = Prices(0, 0, 1)
    ways = {reuse: play(asked, BUILD, ExecutorConfig(enable_kv_cache_reuse=reuse), prices) for reuse in (0, 1)}
    assert [round(run["ttft_ms"].iloc[1]) for run in ways.values()] == [66, 2]


def test_a_full_queue_refuses_and_a_time_that_is_over_ends_a_request():
    lengths = [(10, 20)] * 12
    shed = play(burst(lengths), BUILD, ExecutorConfig(max_queue_size=5), ONE_EACH)
    assert (shed["error"] == "The queue is full.").sum() == 7 and shed["ttft_ms"].notna().sum() == 5
    ended = play(burst(lengths), BUILD, ExecutorConfig(), ONE_EACH, allotted_ms=25_000)
    assert (ended["error"] == "Its time is over.").sum() == 8 and ended["output_len"].sum() == 4 * 20


def test_a_request_is_let_in_or_refused_when_it_comes():
    lines = []

    def let_in(now):
        lines.append([one.id for one in now.waiting])
        return len(now.waiting) <= 2

    run = play(burst([(10, 20)] * 4), BUILD, ExecutorConfig(), ONE_EACH, let_in=let_in)
    assert lines == [[0], [0, 1], [0, 1, 2], [0, 1, 3]]
    assert run["error"].tolist() == ["", "", "It was refused.", "It was refused."]


@pytest.mark.parametrize(
    ("build", "config", "words"),
    [
        (BUILD, ExecutorConfig(max_tokens_in_paged_kv_cache=32), "too few for one request"),
        (BuildConfig(4, 96, 160, 64), ExecutorConfig(), "set enable_chunked_context"),
        (BUILD, ExecutorConfig(scheduler_path="nowhere.py"), "no such Python file"),
    ],
)
def test_what_the_engine_would_refuse_is_refused(build, config, words):
    with pytest.raises(CourseError, match=words):
        play(burst([(10, 3)]), build, config, ONE_EACH)


def test_prices_are_found_again_in_iterations_that_cost_them():
    true = Prices(iteration_ms=20, answer_ms=3, prompt_token_ms=1.5)
    rows = [(0, answers) for answers in (1, 2, 4, 8) for _ in range(4)] + [(400, 2), (300, 0), (350, 7)]
    log = pd.DataFrame(rows, columns=["context_tokens", "generation_tokens"])
    log["ms"] = 20 + 3 * log["generation_tokens"] + 1.5 * log["context_tokens"]
    assert dataclasses.astuple(prices_in(log)) == pytest.approx(dataclasses.astuple(true))


def test_a_clock_is_what_iterations_took_over_their_prices_without_idle_time():
    prices = Prices(iteration_ms=10, answer_ms=2, prompt_token_ms=1)
    rows = [(0.0, 0, 5, 1, 0), (0.018, 1, 0, 1, 1), (9.0, 0, 8, 1, 0), (9.036, 1, 0, 1, 1)]
    columns = ["timestamp", "generation_tokens", "context_tokens", "active", "finished"]
    assert clock(pd.DataFrame(rows, columns=columns), prices) == pytest.approx((18 + 36) / (15 + 18))


def test_only_tokens_in_time_are_paid_for(monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "0")
    in_time, euros, *_ = check("9.2", ("Ada", {"kv_cache_quant_algo": "INT8"})).figures
    assert "in time" in in_time.what and "euros" in euros.what
    assert in_time.value < in_time.course and euros.value > euros.at_most > euros.course
