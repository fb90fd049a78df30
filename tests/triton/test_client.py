"""Asking a server: whole and streamed, over both protocols, in the package's words and in those of plain clients."""

import queue
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client import Client
from tests.engines import active_requests, clients, wait_until

pytestmark = pytest.mark.server

FRANCE = "Name the capital of France."
MULTI_BYTE = "Repeat exactly: 日本語 🎉 naïve 👩‍👩‍👧 été"
LONG = 1500  # tokens; some ten seconds, so that there is something to end early
NO_END = {"end_id": -1}


@pytest.fixture(scope="module")
def text(course_engine):
    return load_tokenizer(course_engine)


@pytest.fixture(params=["grpc", "http"])
def client(request, streaming_server):
    with dict(zip(("grpc", "http"), clients(streaming_server)))[request.param] as client:
        yield client


@pytest.fixture
def grpc(streaming_server):
    with Client(streaming_server.grpc_url) as client:
        yield client


def slot_is_free(server) -> None:
    wait_until(lambda: active_requests(server) == 0, "the request has left the engine")


# Asking ---------------------------------------------------------------------------------------------------------------


def test_ask(client):
    answer = client.ask(FRANCE)
    assert "Paris" in answer.text
    assert answer.latency_s >= answer.time_to_first_s > 0


def test_both_protocols_and_both_ways_give_the_same_text(streaming_server, whole_server):
    asked = [client.ask(FRANCE).text for server in (streaming_server, whole_server) for client in clients(server)]
    streamed = [client.stream(FRANCE).read() for client in clients(streaming_server)]
    assert "Paris" in asked[0]
    assert set(asked) == {asked[0]} == {answer.text for answer in streamed}
    for answer in streamed:
        assert len(answer.pieces) > 5
        assert answer.times_s == sorted(answer.times_s) and len(answer.inter_token_s) == len(answer.pieces) - 1


def test_multi_byte_characters_stay_whole(client):
    options = {"temperature": 1.5, "top_p": 1.0, "random_seed": 3}
    answer = client.stream(MULTI_BYTE, max_tokens=48, **options).read()
    assert answer.text == client.ask(MULTI_BYTE, max_tokens=48, **options).text
    assert max(answer.text) > "\x7f", "nothing but ASCII came: the test shows nothing"


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


def test_max_tokens_is_kept(grpc, text):
    for count in (1, 2, 17):
        assert len(grpc.stream_tokens(text.encode("Hello"), count, **NO_END).read().token_ids) == count


def test_unknown_option(client):
    with pytest.raises(CourseError, match="There is no option 'temprature'. Did you mean 'temperature'"):
        client.ask(FRANCE, temprature=1.0)


def test_several_requests_at_once(streaming_server):
    prompts = [FRANCE, "What is 2 + 2?", "Name a colour.", "Say hello.", "Name an animal.", "What is water?"]
    alone = [Client(streaming_server.grpc_url).ask(prompt, max_tokens=1).text for prompt in prompts]
    answers: dict[int, str] = {}

    def ask(index: int, client: Client) -> None:
        answers[index] = client.stream(prompts[index % len(prompts)], max_tokens=24).read().text

    shared = clients(streaming_server)
    threads = [threading.Thread(target=ask, args=(index, shared[index % 2])) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(answers) == 12
    assert all(answers[index].startswith(alone[index % len(prompts)]) for index in answers)
    assert "Paris" in answers[0] and "Paris" in answers[6]


# Tokens ---------------------------------------------------------------------------------------------------------------


def test_tokens_whole_and_streamed(grpc, text):
    ids = text.encode(text.chat(FRANCE))
    options = {"end_id": text.end_id}
    streamed = grpc.stream_tokens(ids, 40, **options).read()
    assert "Paris" in text.decode(streamed.token_ids)
    assert grpc.ask_tokens(ids, 40, **options).token_ids == streamed.token_ids
    assert {len(piece) for piece in streamed.pieces[:-1]} == {1}


def test_the_prompt_comes_back_when_it_is_not_excluded(whole_server, text):
    ids = text.encode("The capital of France is")
    with Client(whole_server.grpc_url) as client:
        answer = client.ask_tokens(ids, 5, exclude_input_in_output=False).token_ids
        assert answer[: len(ids)] == ids
        assert client.ask_tokens(ids, 5, exclude_input_in_output=True).token_ids == answer[len(ids) :]


# Ending early ---------------------------------------------------------------------------------------------------------


def test_stop_after_gives_fewer_tokens_and_frees_the_slot(client, streaming_server):
    stream = client.stream("Tell me a long story.", max_tokens=LONG, stop_after_s=1.0, **NO_END)
    answer = stream.read()
    assert 0 < len(answer.pieces) < LONG
    assert stream.answer is answer
    slot_is_free(streaming_server)


def test_leaving_the_loop_frees_the_slot(client, streaming_server):
    for _ in client.stream("Tell me a long story.", max_tokens=LONG, **NO_END):
        break
    slot_is_free(streaming_server)
    assert "Paris" in client.ask(FRANCE).text


def test_cancel_from_the_loop_and_twice(client, streaming_server):
    stream = client.stream("Tell me a long story.", max_tokens=LONG, **NO_END)
    pieces = iter(stream)
    next(pieces)
    pieces.close()
    stream.cancel()
    stream.cancel()
    slot_is_free(streaming_server)


@pytest.mark.parametrize("kind", ["streaming_server", "whole_server"])
@pytest.mark.parametrize("protocol, length", [(0, LONG), (1, 100)], ids=["grpc", "http"])
def test_a_time_out_says_so_and_frees_the_slot(request, kind, protocol, length):
    """Over HTTP it cannot be said how long one waits: the engine goes on to the end of the answer."""
    server = request.getfixturevalue(kind)
    url = (server.grpc_url, server.http_url)[protocol]
    with pytest.raises(CourseError, match=r"No answer from .* within 0.2 s. Wait longer with timeout_s"):
        Client(url, timeout_s=0.2).ask("Tell me a long story.", max_tokens=length, **NO_END)
    slot_is_free(server)
    assert "Paris" in Client(url).ask(FRANCE).text


def test_nobody_there():
    for url in ("127.0.0.1:1", "http://127.0.0.1:1"):
        client = Client(url)
        assert not client.is_ready()
        with pytest.raises(CourseError, match="does not answer, or went away.* Start it"):
            client.ask(FRANCE)


@pytest.mark.parametrize("ask", [Client.ask_tokens, lambda *request: Client.stream_tokens(*request).read()])
def test_tokens_over_http_are_refused(ask):
    with pytest.raises(CourseError, match="is an address for HTTP, and here gRPC is needed"):
        ask(Client("http://127.0.0.1:1"), [1], 1)


# Looking --------------------------------------------------------------------------------------------------------------


def test_metadata(client):
    assert client.is_ready()
    content = client.metadata()
    inputs = {tensor["name"]: tensor["datatype"] for tensor in content["inputs"]}
    assert (inputs["text_input"], inputs["max_tokens"]) == ("BYTES", "INT32")
    assert "text_output" in {tensor["name"] for tensor in content["outputs"]}
    engine_outputs = {tensor["name"] for tensor in client.metadata("tensorrt_llm")["outputs"]}
    assert engine_outputs >= {"output_ids", "sequence_length"}


# Clients that know only tensor names ----------------------------------------------------------------------------------


def plain_inputs(library, prompt: str, max_tokens: int, **more) -> list:
    arrays = {
        "text_input": (np.array([[prompt.encode()]], object), "BYTES"),
        "max_tokens": (np.array([[max_tokens]], np.int32), "INT32"),
        **more,
    }
    tensors = []
    for name, (array, kind) in arrays.items():
        tensor = library.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


@pytest.mark.parametrize("library, url", [(grpc_client, "grpc_url"), (http_client, "http_url")], ids=["grpc", "http"])
def test_a_plain_client_asks(whole_server, library, url):
    with library.InferenceServerClient(getattr(whole_server, url).removeprefix("http://")) as plain:
        result = plain.infer("ensemble", plain_inputs(library, FRANCE, 32))
    assert b"Paris" in result.as_numpy("text_output").reshape(-1)[0]


def test_a_plain_client_streams(streaming_server):
    arrived = queue.Queue()
    with grpc_client.InferenceServerClient(streaming_server.grpc_url) as plain:
        plain.start_stream(lambda result, error: arrived.put((result, error)))
        stream = (np.array([[True]]), "BOOL")
        plain.async_stream_infer(
            "ensemble", plain_inputs(grpc_client, FRANCE, 32, stream=stream), enable_empty_final_response=True
        )
        pieces, final = [], False
        while not final:
            result, error = arrived.get(timeout=60)
            assert error is None
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                pieces.append(result.as_numpy("text_output").reshape(-1)[0])
        plain.stop_stream()
    assert len(pieces) > 5 and b"Paris" in b"".join(pieces)


# Triton's statistics --------------------------------------------------------------------------------------------------


def counted(server, requests=0):
    """Triton's statistics once they hold so many requests and the executions of each: a request is counted first."""
    return telemetry.statistics_when(
        server.http_url, "preprocessing", lambda now: now.inferences == now.succeeded and now.succeeded >= requests
    )


def test_statistics_count_what_was_asked(streaming_server):
    before = counted(streaming_server)
    with Client(streaming_server.grpc_url) as client:
        for _ in range(3):
            client.stream("Hello", 4).read()
    done = counted(streaming_server, before.succeeded + 3) - before
    assert (done.inferences, done.executions, done.succeeded, done.failed) == (3, 3, 3, 0)
    assert done.batches.to_dict() == {1: 3} and done.mean_batch == 1 and done.compute_ms > 0 and done.queue_ms > 0
