"""Asking another's server by OpenAI's protocol: what is sent, what is counted, and what it says when that fails."""

import pytest

from inflight.bench.load import send_all
from inflight.bench.senders import KEY_VARIABLE, OpenAISender
from inflight.bench.workload import TimedRequest
from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from tests.bench.openai_stand_in import StandIn, begin, event, send

REQUESTS = [TimedRequest("Hello", length, 0.0, 3) for length in (5, 1, 8)]


@pytest.fixture(scope="module")
def tokenizer(small_engine):
    return load_tokenizer(small_engine)


@pytest.fixture
def stand_in():
    with StandIn(" a") as server:  # one token of the small model
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_every_request_is_asked_for_exactly_and_its_tokens_are_counted_here(stand_in, tokenizer, stream, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    run = send_all(OpenAISender(f"{stand_in.url}/v1/", tokenizer, stream), REQUESTS).whole()
    assert run.requests["output_len"].tolist() == [5, 1, 8]
    assert run.requests["ttft_ms"].notna().all() == stream
    assert {(path, headers["Authorization"]) for path, headers, _ in stand_in.got} == {
        ("/v1/completions", "Bearer secret")
    }
    for _, _, body in stand_in.got[1:]:  # a short one went before
        assert (body["model"], body["prompt"]) == ("their-model", tokenizer.chat("Hello"))
        assert body["ignore_eos"] is True and body["min_tokens"] == body["max_tokens"] and body["cache_prompt"] is False


def test_a_server_that_does_not_know_a_field_is_asked_without_it(stand_in, tokenizer):
    stand_in.known = {"model", "prompt", "max_tokens", "temperature", "stream", "ignore_eos", "min_tokens"}
    send_all(OpenAISender(stand_in.url, tokenizer), REQUESTS).whole()
    assert "cache_prompt" not in stand_in.got[-1][2]


def test_a_server_that_goes_away_ends_the_run_and_what_came_is_kept(stand_in, tokenizer):
    sender = OpenAISender(stand_in.url, tokenizer)

    def die(done, total):
        if done == 1:
            stand_in.die()

    run = send_all(sender, REQUESTS, 1, die)
    assert 1 <= len(run.answered) < 3 and run.stopped.startswith(f"The server at {stand_in.url} went away after")


def busy(handler, body):
    send(handler, 429, {"error": {"message": "busy"}})


def broken_off(handler, body):
    begin(handler)
    event(handler, {"choices": [{"text": " a"}]})


def no_json(handler, body):
    begin(handler)
    handler.wfile.write(b"data: <html>\n\n")


def silent(handler, body):
    begin(handler)
    handler.wfile.write(b"data: [DONE]\n\n")


def full(handler, body):
    begin(handler)
    event(handler, {"choices": [{"text": " a"}]})
    event(handler, {"error": {"message": "KV cache full", "type": "server_error"}})


def no_events(handler, body):
    send(handler, 200, {"choices": [{"text": " a"}]})


def other_form(handler, body):
    begin(handler)
    event(handler, {"answer": "a"})


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (busy, "answered with status 429: .*busy"),
        (broken_off, "broke off its stream"),
        (no_json, "does not answer in OpenAI's form"),
        (other_form, "does not answer in OpenAI's form"),
        (no_events, "does not answer in OpenAI's form"),
        (full, "ended an answer with an error: KV cache full"),
        (silent, "without a character of text"),
    ],
)
def test_what_goes_wrong_is_one_sentence(stand_in, tokenizer, odd, message):
    sender = OpenAISender(stand_in.url, tokenizer, stream=True)
    stand_in.odd = odd
    with pytest.raises(CourseError, match=message):
        sender(REQUESTS[0])
    assert sender.is_alive()


def test_a_control_token_in_a_users_text_is_sent_as_the_tokens_of_its_characters(stand_in, tokenizer):
    text = "Hi <|im_end|>"
    OpenAISender(stand_in.url, tokenizer)(TimedRequest(text, 5, 0.0, 3))
    prompt = stand_in.got[-1][2]["prompt"]
    assert prompt == tokenizer.encode_chat(text) != tokenizer.encode(tokenizer.chat(text))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9", "http://"])
def test_a_server_that_is_not_there_is_one_sentence(tokenizer, url):
    with pytest.raises(CourseError, match="does not answer .* Start it, and check host and port"):
        OpenAISender(url, tokenizer)
