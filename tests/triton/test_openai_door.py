"""OpenAI's protocol in front of a server: the engine's own tokens, reasons and counts, stops, refusals, the key."""

import json

import httpx
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton.openai_door import Door
from tests.engines import active_requests, ask_tokens, metric, wait_until

pytestmark = pytest.mark.server

FRANCE = [{"role": "system", "content": "Answer in one sentence."}, {"role": "user", "content": "What is France?"}]
MULTI_BYTE = "Repeat exactly: 日本語 🎉 naïve 👩‍👩‍👧 été"
CHAT, TEXT = "chat/completions", "completions"
LONG = 1500  # tokens; a run of which half is computed has been ended


@pytest.fixture(scope="module")
def door(streaming_server):
    with Door(streaming_server, port=0) as door:
        yield door


@pytest.fixture
def http(door):
    with httpx.Client(base_url=door.url, timeout=60) as http:
        yield http


def post(http, path, **body):
    response = http.post(path, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def events(http, path, **body):
    with http.stream("POST", path, json={"temperature": 0, "stream": True, **body}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def iterations(server):
    """How many the engine has computed, once it has nothing to do."""
    wait_until(lambda: active_requests(server) == 0, "the request has left the engine")
    return metric(server, "nv_trt_llm_general_metrics", general_type="iteration_counter")


@pytest.fixture(scope="module")
def of_the_engine(streaming_server, course_engine):
    """Function: what `tensorrt_llm` itself answers to a text, and how many tokens both have."""
    tokenizer = load_tokenizer(course_engine)

    def ask(prompt, max_tokens):
        ids = tokenizer.encode(tokenizer.chat(prompt) if isinstance(prompt, list) else prompt)
        tokens = ask_tokens(streaming_server, ids, max_tokens, end_id=tokenizer.end_id)
        return tokenizer.decode(tokens), len(ids), len(tokens)

    return ask


def test_it_lists_the_one_model(http):
    [model] = http.get("models").json()["data"]
    assert model["id"] == "tensorrt_llm" and model["object"] == "model"


@pytest.mark.parametrize(("max_tokens", "reason"), [(200, "stop"), (5, "length")])
def test_a_chat_has_the_engines_own_answer_reason_and_counts(http, of_the_engine, max_tokens, reason):
    text, prompt, number = of_the_engine(FRANCE, max_tokens)
    answer = post(http, CHAT, messages=FRANCE, max_tokens=max_tokens)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": text} and choice["finish_reason"] == reason
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": number,
        "total_tokens": prompt + number,
    }


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_pieces_join_to_the_whole_answer(http, path):
    asked = {"messages": [{"role": "user", "content": MULTI_BYTE}]} if path == CHAT else {"prompt": MULTI_BYTE}
    whole = post(http, path, max_tokens=60, **asked)
    *pieces, last = events(http, path, max_tokens=60, stream_options={"include_usage": True}, **asked)
    choices = [piece["choices"][0] for piece in pieces]
    told = [choice["delta"].get("content", "") if path == CHAT else choice["text"] for choice in choices]
    [choice] = whole["choices"]
    assert "".join(told) == (choice["message"]["content"] if path == CHAT else choice["text"])
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [choice["finish_reason"]]
    assert last["choices"] == [] and last["usage"] == whole["usage"]


def test_the_same_seed_gives_the_same_answer_and_no_seed_another(http):
    drawn = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 1.5}
    assert len({post(http, TEXT, seed=7, **drawn)["choices"][0]["text"] for _ in range(2)}) == 1
    assert len({post(http, TEXT, **drawn)["choices"][0]["text"] for _ in range(3)}) > 1


def test_a_stop_text_ends_the_answer_and_the_request(http, streaming_server):
    counting, before = (
        {"prompt": "One, two, three,", "max_tokens": LONG, "ignore_eos": True},
        iterations(streaming_server),
    )
    [choice] = post(http, TEXT, stop=["seven", "six"], **counting)["choices"]
    assert choice["text"] == " four, five, " and choice["finish_reason"] == "stop"
    assert iterations(streaming_server) - before < LONG / 2, "the engine went on"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_slot(door, streaming_server, stream):
    body = {"prompt": "Once", "max_tokens": LONG, "ignore_eos": True, "stream": stream, "temperature": 0}
    before = iterations(streaming_server)
    with (
        httpx.Client(base_url=door.url, timeout=60 if stream else 1.0) as http,
        http.stream("POST", TEXT, json=body) if stream else (pytest.raises(httpx.ReadTimeout)) as response,
    ):
        if stream:
            next(response.iter_lines())
        else:
            http.post(TEXT, json=body)
    assert iterations(streaming_server) - before < LONG / 2, "the engine went on"


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (TEXT, {"prompt": "x", "n": 2}, 400, "n"),
        (TEXT, {"prompt": "x", "logprobs": 5}, 400, "logprobs"),
        (TEXT, {"prompt": "x", "tempreature": 1}, 400, "tempreature"),
        (TEXT, {"prompt": "x", "temperature": "hot"}, 400, "temperature"),
        (TEXT, {"prompt": "x", "top_p": 2}, 400, "top_p"),
        (TEXT, {"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        (TEXT, {"prompt": "x", "stop": [""]}, 400, "stop"),
        (TEXT, {"prompt": "x", "stream": "yes"}, 400, "stream"),
        (TEXT, {"prompt": ["x", "y"]}, 400, "prompt"),
        (TEXT, {"prompt": [-1]}, 400, "prompt"),
        (TEXT, {"prompt": "x " * 5000}, 400, "prompt"),
        (TEXT, {"prompt": "x", "model": "gpt-5"}, 404, "model"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
        (CHAT, {"messages": FRANCE, "tools": [{"type": "function"}]}, 400, "tools"),
    ],
)
def test_what_it_cannot_do_is_refused_in_openais_form(http, path, body, status, param):
    response = http.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert error["message"]


def test_what_asks_for_nothing_is_taken(http):
    post(
        http, TEXT, prompt="x", n=1, logprobs=None, tools=[], user="me", response_format={"type": "text"}, max_tokens=1
    )


def test_no_json_and_no_such_path_are_told(http):
    assert http.post(TEXT, content=b"{").json()["error"]["type"] == "invalid_request_error"
    assert http.get("nothing").json()["error"]["message"] == "Not Found"


def test_with_a_key_nobody_is_heard_without_it(streaming_server):
    with Door(streaming_server, 0, key="secret") as door, httpx.Client(base_url=door.url) as http:
        assert http.get("models").status_code == 401
        assert http.post(TEXT, json={"prompt": "x"}).json()["error"]["code"] == "invalid_api_key"
        assert http.get("models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_model_that_is_not_decoupled_and_a_port_that_is_taken_are_refused(whole_server, streaming_server, door):
    with pytest.raises(CourseError, match="decoupled_mode"):
        Door(whole_server, 0)
    port = int(door.url.removesuffix("/v1").rpartition(":")[2])
    with pytest.raises(CourseError, match=f"{port}"):
        Door(streaming_server, port)
