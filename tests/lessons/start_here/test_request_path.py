"""The parts of a request's path add up, and one real request gives them."""

import pytest

from inflight.lessons import start_here
from inflight.lessons.start_here import request_path
from inflight.triton.client.client import Client

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def measured(streaming_server):
    log = streaming_server.repo.parent / "iterations.jsonl"
    with Client(streaming_server.grpc_url) as client:
        client.ask("Hello", max_tokens=2)
        return request_path.measure(streaming_server, client, log, "Name the capital of France.", 32)


def test_every_stage_of_a_real_request_is_there_and_they_add_up_to_the_time_to_the_first_word(measured):
    answer, path = measured
    assert "Paris" in answer.text and set(path["lane"]) == set(request_path.LANES)
    assert (path["end_ms"] >= path["start_ms"]).all()
    assert (path["what"] == "arrival").sum() == len(answer.pieces) and (path["what"] == "prompt").sum() == 1
    stages = request_path.first_word(path)
    assert stages["ms"].sum() == pytest.approx(answer.time_to_first_s * 1000) and (stages["ms"] >= 0).all()
    assert "first word" in start_here.request_map_summary(path, stages)
    assert "tensorrt_llm" in start_here.request_map(path).to_json()
