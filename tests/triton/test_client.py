"""Asking a server: whole and streamed; what ends an answer early, and what Triton counts of it."""

import threading

import numpy as np
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton.client.client import Client
from inflight.triton.client.connection import Connection, Refused, ServerGone
from tests.engines import active_requests, wait_until

pytestmark = pytest.mark.server

FRANCE = "Name the capital of France."
MULTI_BYTE = "日本語 🎉 naïve 👩‍👩‍👧 été"
LONG = 1500  # tokens; some ten seconds, so that there is something to end early
NO_END = {"end_id": -1}


@pytest.fixture
def client(streaming_server):
    with Client(streaming_server.grpc_url) as client:
        yield client


def slot_is_free(server) -> None:
    wait_until(lambda: active_requests(server) == 0, "the request has left the engine")


# Asking ---------------------------------------------------------------------------------------------------------------


def test_whole_and_streamed_give_the_same_text(client, whole_server):
    asked, streamed = client.ask(FRANCE), client.stream(FRANCE).read()
    assert "Paris" in asked.text and asked.latency_s >= asked.time_to_first_s > 0
    assert asked.text == Client(whole_server.grpc_url).ask(FRANCE).text == streamed.text
    assert len(streamed.pieces) > 5 and len(streamed.inter_token_s) == len(streamed.pieces) - 1
    assert streamed.times_s == sorted(streamed.times_s)


def test_a_server_is_ready_where_it_answers(client):
    assert client.is_live() and client.is_ready()
    nobody = Client("127.0.0.1:1")
    assert not nobody.is_live() and not nobody.is_ready()
    with pytest.raises(CourseError, match="does not answer, or went away.* Start it"):
        nobody.ask(FRANCE)


def test_an_address_of_http_leads_to_grpc(streaming_server, monkeypatch):
    """Of a server of ours by its record, of another as the environment says, else at the next port."""
    monkeypatch.setenv("INFLIGHT_GRPC_URL", "127.0.0.1:2")
    with Client(f"{streaming_server.http_url}/") as client:
        assert client.url == streaming_server.grpc_url and "Paris" in client.ask(FRANCE).text
    assert Client("http://127.0.0.1:9").url == "127.0.0.1:2"
    monkeypatch.setenv("INFLIGHT_URL", "http://elsewhere:8000")
    nobody = Client("http://127.0.0.1:9")
    with pytest.raises(ServerGone, match="over gRPC at 127.0.0.1:10, where that of http://127.0.0.1:9 is looked for"):
        nobody.ask(FRANCE)


def test_multi_byte_characters_stay_whole(streaming_server, course_engine):
    """Each token comes alone to the model behind the engine: a character has its text when its last byte is there."""
    tokenizer = load_tokenizer(course_engine)
    ids, pieces = tokenizer.encode(MULTI_BYTE), []
    with Connection(streaming_server.grpc_url) as connection:
        for place, token in enumerate(ids):
            before = ids[max(0, place - 8) : place]
            arrays = {
                "TOKENS_BATCH": np.array([[[token]]], np.int32),
                "SEQUENCE_LENGTH": np.array([[1]], np.int32),
                "PRECEDING_IDS": np.array([[-1] * (8 - len(before)) + before], np.int32),
                "IS_FINAL": np.array([[place == len(ids) - 1]]),
            }
            result = connection.infer("postprocessing", arrays, timeout_s=60)
            pieces.append(result.as_numpy("OUTPUT").item().decode())
    assert "".join(pieces) == MULTI_BYTE and "" in pieces


def test_options_reach_the_engine(client):
    greedy = client.ask("Count from one to ten.", max_tokens=16).text
    assert client.ask("Count from one to ten.", max_tokens=16, top_k=1, temperature=2.0).text == greedy
    sampled = [
        client.ask("Count from one to ten.", max_tokens=16, temperature=2.0, top_p=1.0, random_seed=seed).text
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    word = greedy.split()[-1]
    assert word not in client.ask("Count from one to ten.", max_tokens=16, bad_words=[word, f" {word}"]).text
    stopped = client.ask(FRANCE, stop_words=[" capital"]).text
    assert stopped.endswith(" capital") and "Paris" not in stopped


def test_unknown_option(client):
    with pytest.raises(CourseError, match="There is no option 'temprature'. Did you mean 'temperature'"):
        client.ask(FRANCE, temprature=1.0)


@pytest.mark.parametrize("ask", [Client.ask, lambda client, text: client.stream(text).read()])
def test_a_refusal_is_tritons_reason_alone(client, ask):
    with pytest.raises(Refused, match=r"^text_input is empty: send at least one character that is not a space\.$"):
        ask(client, " ")


def test_several_requests_at_once(streaming_server):
    prompts = [FRANCE, "What is 2 + 2?", "Name a colour.", "Say hello.", "Name an animal.", "What is water?"]
    alone = [Client(streaming_server.grpc_url).ask(prompt, max_tokens=1).text for prompt in prompts]
    answers: dict[int, str] = {}

    def ask(index: int, client: Client) -> None:
        answers[index] = client.stream(prompts[index % len(prompts)], max_tokens=24).read().text

    shared = Client(streaming_server.grpc_url)
    threads = [threading.Thread(target=ask, args=(index, shared)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 12
    assert all(answers[index].startswith(alone[index % len(prompts)]) for index in answers)
    assert "Paris" in answers[0] and "Paris" in answers[6]


# Ending early ---------------------------------------------------------------------------------------------------------


def test_leaving_the_loop_frees_the_slot(client, streaming_server):
    stream = client.stream("Tell me a long story.", max_tokens=LONG, **NO_END)
    for _ in stream:
        break
    slot_is_free(streaming_server)
    stream.cancel()  # once more, which does no harm
    assert len(stream.answer.pieces) == 1 and "Paris" in client.ask(FRANCE).text


@pytest.mark.parametrize("kind", ["streaming_server", "whole_server"])
def test_a_time_out_says_so_and_frees_the_slot(request, kind):
    server = request.getfixturevalue(kind)
    with pytest.raises(CourseError, match=r"No answer from .* within 0.2 s. Wait longer with timeout_s"):
        Client(server.grpc_url, timeout_s=0.2).ask("Tell me a long story.", max_tokens=LONG, **NO_END)
    slot_is_free(server)
    assert "Paris" in Client(server.grpc_url).ask(FRANCE).text
