"""The service of lesson 09: its requests, its knobs, and what a real server makes of a deployment."""

import contextlib
import random
from dataclasses import replace

import pytest

from inflight.bench.objective import Objective
from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.rehearsal import Prices
from inflight.lessons.capstone.service import BRIEF, Brief, Deployment, Served


@pytest.fixture(autouse=True)
def small_tokenizer(small_engine, monkeypatch):
    found = service.load_tokenizer(small_engine)
    monkeypatch.setattr(service, "tokenizer", lambda: found)


def test_another_seed_asks_other_things_at_other_times():
    one, same, other = (service.requests(BRIEF, seed, 40) for seed in (1, 1, 2))
    assert one == same and one != other and len(one) == 40
    assert len({request.text for request in one}) == len(one)
    assert all(request.text.startswith(service.HOUSE_RULES) for request in one)
    assert max(request.input_len for request in one) <= service.LONGEST_PROMPT
    assert max(request.max_tokens for request in one) <= service.LONGEST_ANSWER


def test_a_slower_machine_gets_a_contract_as_hard():
    slow = BRIEF.at(BRIEF.prices.times(4))
    assert slow.rate == pytest.approx(BRIEF.rate / 4) and slow.memory_mib == BRIEF.memory_mib
    assert slow.objective.ttft_ms == pytest.approx(4 * BRIEF.objective.ttft_ms)
    there, here = (service.rehearse({}, brief, (3,), 40) for brief in (BRIEF, slow))
    assert there.met == here.met and 0 < here.met < 40


def test_the_contract_is_one_share_in_its_words_and_in_what_keeps_it():
    assert "at least 90 % of all requests are in time" in str(BRIEF)
    easy, hard = (replace(BRIEF, objective=Objective(ttft_ms, ttft_ms)) for ttft_ms in (1e9, 1e-9))
    kept, missed = (service.rehearse({}, brief, (1, 2), 10) for brief in (easy, hard))
    assert kept.keeps and kept.share == 1 and not missed.keeps and missed.met == 0
    assert len(kept.requests) == 20 and set(kept.requests["seed"]) == {1, 2}
    nine = kept.requests.assign(error=[""] * 18 + ["The queue is full."] * 2)
    assert Served(Deployment(), nine, easy).keeps
    assert not Served(Deployment(), nine.assign(error=[""] * 17 + ["The queue is full."] * 3), easy).keeps


def test_whatever_is_set_is_taken_or_refused_in_a_sentence():
    for refused in ({"kv_cache_quant_algo": "INT4"}, {"max_batch": 8}, {"max_queue_size": "4"}, 16):
        with pytest.raises(CourseError):
            service.rehearse(refused, BRIEF, (1,), 10)
    choose = random.Random(7)
    values = (None, True, -1, 0, 3.5, "x", [], {}, 10**30)
    for _ in range(200):
        name, value = choose.choice(list(vars(Deployment()))), choose.choice(values)
        with contextlib.suppress(CourseError):  # any other error fails the test
            chosen = service.deployment({name: value})
            chosen.executor_config(64, 46080), chosen.build_config


# On a server ----------------------------------------------------------------------------------------------------------

EASY = Brief(20.0, Objective(ttft_ms=60_000, itl_ms=60_000), memory_mib=64, prices=Prices(15.0, 1.2, 0.9))


@pytest.fixture(scope="module")
def small_engines(small_checkpoint, tmp_path_factory):
    """Engines of the small model where the course's are asked for."""
    home = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(home))
        patch.setattr(service, "fetch", lambda: small_checkpoint)
        yield


@pytest.fixture(scope="module")
def server(small_engines, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with service.start(folder / "repo", folder / "log.jsonl") as one:
        one.log_of_iterations = folder / "log.jsonl"
        yield one


@pytest.mark.server
def test_prices_are_read_from_the_log_of_a_server(server):
    prices = service.prices(server, server.log_of_iterations)
    assert prices.iteration_ms > 0 and prices.prompt_token_ms > 0 and BRIEF.at(prices).rate > 0


@pytest.mark.server
def test_a_deployment_is_loaded_and_serves_the_run(server):
    chosen = {"enable_kv_cache_reuse": True, "batch_scheduler_policy": "max_utilization", "max_queue_size": 9}
    *before, served = service.follow(server, chosen, EASY, seed=1, number=6)
    assert before[0] == 0 and all(isinstance(each, int) for each in before)
    assert served.met == 6 and served.keeps and served.row()["no answer"] == 0


@pytest.mark.server
def test_a_setting_that_is_refused_leaves_the_server_serving(server):
    with pytest.raises(CourseError, match="set enable_chunked_context"):
        service.serve(server, {"max_num_tokens": 128}, EASY, seed=1, number=6)
    assert service.serve(server, {}, EASY, seed=2, number=6).met == 6


@pytest.mark.server
@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_is_told_in_a_sentence(small_engines, tmp_path):
    with service.start(tmp_path / "repo", tmp_path / "log.jsonl") as one:
        run = service.follow(one, {}, replace(EASY, rate=0.5), seed=1, number=6)
        for done in run:
            if done:
                break
        one.stop()
        with pytest.raises(CourseError, match="went away"):
            list(run)
