"""The parts of a request's path add up, and one real request gives them."""

import pytest

from inflight.checkpoint.sources import fetch
from inflight.engine.building import builder as engine
from inflight.lessons import start_here
from inflight.lessons.start_here import request_path
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("request_path")
    repo = repository.assemble(
        folder / "repository",
        engine.cached(fetch()),
        decoupled_mode=True,
        iteration_log_path=folder / "iterations.jsonl",
    )
    with Server(repo) as server, Client(server.grpc_url) as client:
        client.ask("Hello", max_tokens=2)
        return request_path.measure(server, client, folder / "iterations.jsonl", "Name the capital of France.", 32)


def test_every_stage_of_a_real_request_is_there_and_they_add_up_to_the_time_to_the_first_word(measured):
    answer, path = measured
    assert "Paris" in answer.text and set(path["lane"]) == set(request_path.LANES)
    assert (path["end_ms"] >= path["start_ms"]).all()
    assert (path["what"] == "arrival").sum() == len(answer.pieces) and (path["what"] == "prompt").sum() == 1
    stages = request_path.first_word(path)
    assert stages["ms"].sum() == pytest.approx(answer.time_to_first_s * 1000) and (stages["ms"] >= 0).all()
    assert "first word" in start_here.request_map_summary(path, stages)
    assert "tensorrt_llm" in start_here.request_map(path).to_json()
