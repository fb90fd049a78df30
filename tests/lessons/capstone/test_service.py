"""The service of lesson 09: its requests, contracts and knobs, and what a real server makes of a deployment."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from inflight import engine
from inflight.checkpoint import load_tokenizer
from inflight.errors import CourseError
from inflight.lessons import capstone as service
from inflight.lessons.capstone import contract as contracts
from inflight.lessons.capstone import deployment
from inflight.lessons.capstone.contract import LECTURE, ROUND, SERVICES, SHARE, Contract
from inflight.lessons.capstone.stack import OwnClient, prices_of
from inflight.notebook.checks import parts
from inflight.triton import repository
from inflight.triton.serving.server import Server


@pytest.fixture(autouse=True)
def small_course_engine(small_engine, monkeypatch):
    info, tokenizer = engine.read(small_engine), load_tokenizer(small_engine)
    monkeypatch.setattr(contracts, "course_engine", lambda: info)
    monkeypatch.setattr(contracts, "tokenizer", lambda: tokenizer)


def test_another_seed_asks_other_things_at_other_times():
    one, same, other = (LECTURE.requests(2.0, seed, 40) for seed in (1, 1, 2))
    assert one == same and one != other and len(one) == 40
    assert len({request.text for request in one}) == len(one)
    assert all(request.text.startswith(LECTURE.system_prompt) for request in one)
    assert max(request.max_tokens for request in one) <= deployment.LONGEST_ANSWER


def test_a_slower_machine_gets_a_contract_as_hard():
    there, here = (Contract.at(prices, LECTURE) for prices in (ROUND, ROUND.times(4)))
    assert here.rate == pytest.approx(there.rate / 4) and here.memory_mib == there.memory_mib
    assert here.ttft_ms == pytest.approx(4 * there.ttft_ms) and here.cost == pytest.approx(4 * there.cost)
    met = [service.tally(service.rehearse({}, one, (3,)), one) for one in (there, here)]
    assert met[0] == met[1]


def test_a_bias_is_a_slower_clock_and_not_another_contract():
    contract = Contract.at(ROUND, LECTURE)
    biased = service.rehearse({}, contract, (1,), bias=1.5)
    slower = service.rehearse({}, replace(contract, prices=ROUND.times(1.5)), (1,))
    pd.testing.assert_frame_equal(biased, slower)


def test_in_time_are_answers_within_both_limits():
    contract = replace(Contract.at(ROUND, LECTURE), ttft_ms=500, tpot_ms=40)
    rows = [(500, 40, ""), (501, 10, ""), (100, 41, ""), (100, np.nan, ""), (np.nan, np.nan, "The queue is full.")]
    table = pd.DataFrame(rows, columns=["ttft_ms", "tpot_ms", "error"])
    assert service.in_time(table, contract).tolist() == [True, False, False, True, False]
    assert service.tally(table, contract) == {
        "requests": 5, "in time": 2, "first token late": 1, "TPOT too high": 1, "no answer": 1
    }  # fmt: skip


def test_a_million_tokens_cost_what_the_machine_does_meanwhile():
    contract = replace(Contract.at(ROUND, LECTURE), per_hour=0.36)
    assert contract.per_million(100) == pytest.approx(1.0) and contract.per_million(0) == float("inf")
    assert contract.cost * SHARE == pytest.approx(contract.per_million(contract.rate * LECTURE.means[2]))


def test_a_name_gets_its_contract_and_each_is_drawn_for_somebody():
    assert service.drawn_for("Ada") == service.drawn_for(" ada ")
    assert {service.drawn_for(f"learner {number}") for number in range(40)} == set(SERVICES)


def test_a_setting_that_is_not_one_is_refused_in_a_sentence():
    contract = Contract.at(ROUND, LECTURE)
    for refused in (
        {"kv_cache_quant_algo": "INT4"},
        {"max_batch": 8},
        {"max_queue_size": "4"},
        {"scheduler_path": 3},
        16,
    ):
        with pytest.raises(CourseError):
            service.rehearse(refused, contract, (1,))


# On a server ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_engines(small_checkpoint, tmp_path_factory):
    """Engines of the small model where the course's are asked for."""
    home = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(home))
        patch.setattr(deployment, "fetch", lambda: small_checkpoint)
        patch.setattr(deployment, "LONGEST_PROMPT", 1024)  # in the tokens of its vocabulary, which is small
        yield


@pytest.fixture(scope="module")
def server(small_engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    engine_dir, log_path = service.engine_of({}), folder / "log.jsonl"
    repo = repository.assemble(folder / "repo", engine_dir, decoupled_mode=True, iteration_log_path=log_path)
    with Server(repo, drain_s=0) as one:
        one.log_of_iterations = log_path
        yield one


EASY = replace(Contract.at(ROUND, LECTURE), rate=20.0, ttft_ms=60_000, tpot_ms=60_000)


@pytest.mark.server
def test_prices_are_read_from_the_log_of_a_server(server):
    prices = prices_of(server, server.log_of_iterations, LECTURE)
    assert prices.prompt_token_ms > 0 and prices.iteration_ms + 8 * prices.answer_ms > 0


@pytest.mark.server
def test_a_deployment_is_loaded_and_serves_the_run_of_the_learners_client(server):
    chosen = {"enable_kv_cache_reuse": True, "batch_scheduler_policy": "max_utilization", "max_queue_size": 9}
    service.bring_in(server, chosen, EASY)
    requests = LECTURE.requests(EASY.rate, seed=1, number=6)
    for send in (None, OwnClient(parts.load("client").ask, server.grpc_url)):
        rows = service.measure(server, requests, send)
        assert service.in_time(rows, EASY).all() and len(rows) == 6
        assert rows["output_len"].tolist() == [one.max_tokens for one in requests]


@pytest.mark.server
def test_a_setting_that_is_refused_leaves_the_server_serving(server):
    with pytest.raises(CourseError, match="set enable_chunked_context"):
        service.bring_in(server, {"max_num_tokens": 128}, EASY)
    assert service.in_time(service.measure(server, LECTURE.requests(EASY.rate, seed=2, number=4)), EASY).all()
