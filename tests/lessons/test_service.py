"""The service of lesson 09: its requests, its knobs, and what a real server makes of a deployment."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from inflight.bench.objective import Objective
from inflight.errors import CourseError
from inflight.lessons.capstone import rehearsal, service
from inflight.lessons.capstone.service import BRIEF, Brief, Deployment, Progress


@pytest.fixture(scope="module")
def tokenizer(small_engine):
    return service.load_tokenizer(small_engine)


def test_another_seed_asks_other_things_at_other_times(tokenizer):
    one, same, other = (service.requests(tokenizer, BRIEF, seed) for seed in (1, 1, 2))
    assert one == same and one != other and len(one) == BRIEF.number
    assert len({request.text for request in one}) == len(one)
    assert all(request.text.startswith(service.HOUSE_RULES) for request in one)
    assert max(request.input_len for request in one) <= service.LONGEST_PROMPT
    assert max(request.max_tokens for request in one) <= service.LONGEST_ANSWER


def test_a_slower_machine_gets_a_task_as_hard(tokenizer):
    slow = BRIEF.at(4.0)
    assert slow.rate == BRIEF.rate / 4 and slow.objective.ttft_ms == 4 * BRIEF.objective.ttft_ms and slow.pace == 4
    there, here = (service.rehearse(Deployment(), brief, tokenizer, 3) for brief in (BRIEF, slow))
    assert there.met == here.met and here.goodput == pytest.approx(there.goodput / 4)


def test_a_run_has_so_many_requests_as_come_but_never_too_few_or_too_many():
    brief = replace(BRIEF, rate=2.0, number=40)
    assert [brief.number_in(seconds) for seconds in (0.1, 10, 1000)] == [service.FEWEST, 20, 40]


def test_what_was_measured_is_whole_after_a_file(tokenizer):
    served = service.rehearse(Deployment(max_queue_size=1), BRIEF, tokenizer, 3)
    again = service.from_json(service.to_json(served))
    assert again.deployment == served.deployment and again.brief == served.brief
    assert again.row() == served.row() and again.run.requests["error"].tolist() == served.run.requests["error"].tolist()


def test_memory_is_the_briefs(tokenizer):
    with pytest.raises(CourseError, match="give cache_tokens 1,456 or less"):
        service.rehearse(Deployment(cache_tokens=1500), BRIEF, tokenizer, 1)
    assert Deployment().executor_config(64, 46080).max_tokens_in_paged_kv_cache == 1456


def test_an_objective_that_nothing_meets_leaves_a_whole_run_without_goodput(tokenizer):
    hard = Brief(1.0, 1.0, Objective(ttft_ms=0.001, itl_ms=0.001), 64, 8)
    served = service.rehearse(Deployment(), hard, tokenizer, 1)
    assert served.met == 0 and served.goodput == 0 and not served.keeps and len(served.run.answered) == 8


@pytest.mark.parametrize(("delays_s", "slower"), [((0, 0, 0), 1.0), ((9, 0, 40), 1.0), ((2, 2, 2), None)])
def test_the_pace_is_that_of_the_fastest_round(tokenizer, monkeypatch, delays_s, slower):
    """A machine that is busy meanwhile makes some rounds longer, and none shorter."""
    config = Deployment().executor_config(BRIEF.memory_mib, service.BYTES_PER_TOKEN[None])
    delays = iter(delays_s)

    def as_rehearsed(send, burst):
        asked = [rehearsal.Asked(tokenizer.encode(tokenizer.chat(r.text)), r.max_tokens, 0.0) for r in burst]
        run = rehearsal.rehearse(asked, Deployment().build_config, config, rehearsal.PRICES)
        return replace(run, requests=run.requests.assign(last_s=run.requests["last_s"] + next(delays)))

    monkeypatch.setattr(service, "load", lambda *_: None)
    monkeypatch.setattr(service.loads, "load", as_rehearsed)
    pace = service.pace(SimpleNamespace(grpc_url="127.0.0.1:1"), tokenizer, rounds=len(delays_s))
    assert pace == pytest.approx(slower) if slower else pace > 1.1


# On a server ----------------------------------------------------------------------------------------------------------

EASY = Brief(rate=20.0, cv=1.0, objective=Objective(ttft_ms=60_000, itl_ms=60_000), memory_mib=64, number=6)


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
    with service.start(tmp_path_factory.mktemp("service") / "repo") as one:
        yield one


@pytest.mark.server
def test_a_deployment_is_loaded_and_serves_the_run(server):
    chosen = Deployment(enable_kv_cache_reuse=True, batch_scheduler_policy="max_utilization", max_queue_size=9)
    *before, served = service.follow(server, chosen, EASY, seed=1)
    assert all(isinstance(each, Progress) for each in before) and before[0] == Progress(0, 6)
    assert served.met == 6 and served.keeps and served.goodput > 0
    config = server.models() and service.repository.read_config(server.repo / "tensorrt_llm" / "config.pbtxt")
    assert config is not None  # the file stays as it was: what is tried is not what is kept


@pytest.mark.server
def test_a_setting_that_is_refused_leaves_the_server_serving(server):
    with pytest.raises(CourseError, match="and the brief has"):
        service.serve(server, Deployment(cache_tokens=10**7), EASY, seed=1)
    assert service.serve(server, Deployment(), EASY, seed=2).met == 6


@pytest.mark.server
@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_is_told_in_a_sentence(small_engines, tmp_path):
    with service.start(tmp_path / "repo") as one:
        slow = replace(EASY, rate=0.5)
        run = service.follow(one, Deployment(), slow, seed=1)
        for progress in run:
            if progress.done:
                break
        one.stop()
        with pytest.raises(CourseError, match="went away"):
            list(run)
