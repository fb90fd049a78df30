"""Prefill and decode apart: the same answers through vllm-router, and when one of them dies, an answer or an error."""

import json

import httpx
import pytest

from inflight.lessons.moving_a_cache import Apart
from inflight.triton import telemetry
from tests.engines import build_small, wait_until

pytestmark = pytest.mark.server
PROMPT = [(7 * place) % 900 + 5 for place in range(110)]
FULL = 96


@pytest.fixture(scope="module")
def apart(small_checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("apart") / "engine"
    with Apart(build_small(small_checkpoint, folder, max_input_len=128, max_seq_len=256, max_num_tokens=256)) as apart:
        yield apart


def ask(url, **body):
    body = {"model": "tensorrt_llm", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True} | body
    return httpx.post(f"{url}/completions", json=body, timeout=60)


def said(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def test_the_decoder_takes_what_the_prefiller_computed_and_says_the_same(apart):
    for number, more in enumerate(({}, {"temperature": 1.0, "seed": 5}, {"cache_salt": "tenant"})):
        prompt = [number + 1, *PROMPT]
        expected = said(ask(f"{apart.servers[0]}/v1", prompt=[*prompt], **more))
        assert said(ask(apart.url, prompt=prompt, **more)) == expected
    log = telemetry.iterations(apart.log(1))
    assert log["not_computed"].sum() == [[1, 0, 0, FULL], [2, 0, 0, FULL], [3, 0, 0, FULL]]
    page = httpx.get(f"{apart.servers[0]}/metrics").text + httpx.get(f"{apart.servers[1]}/metrics").text
    for line in ("inflight:kv_blocks_sent_total 9.0", 'kv_blocks_taken_total{model_name="tensorrt_llm"} 9.0',
                 f'external_prefix_cache_hits_total{{model_name="tensorrt_llm"}} {3.0 * FULL}'):  # fmt: skip
        assert line in page


def test_a_stream_through_the_router_is_a_stream(apart):
    body = {"model": "tensorrt_llm", "prompt": [9, *PROMPT], "max_tokens": 20, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{apart.url}/completions", json=body, timeout=60) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]" and len([json.loads(event) for event in events[:-1]]) > 10


def test_only_blocks_are_given(apart):
    (apart.store(0) / "notes").write_text("not a block")
    for name in ("0" * 64, "notes", "..%2Fstore1"):
        assert httpx.get(f"{apart.servers[0]}/v1/kv_blocks/{name}").status_code == 404


def test_a_decoder_whose_prefiller_is_dead_computes_and_the_router_says_that_it_is(apart):
    expected = said(ask(f"{apart.servers[1]}/v1", prompt=[4, *PROMPT]))
    apart.kill(0)
    assert ask(apart.url).status_code == 500
    assert said(ask(f"{apart.servers[1]}/v1", prompt=[4, *PROMPT], cache_salt="anew")) == expected
    apart.start(0)
    wait_until(lambda: ask(apart.url, prompt=[5, *PROMPT]).status_code == 200, "the router sees the prefiller again")
    assert said(ask(apart.url, prompt=[4, *PROMPT])) == expected
