"""Every wrong thing a user may do has one sentence to read, and the server still answers."""

import math

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.client.connection import Connection, text
from inflight.triton.serving.server import Server
from tests.engines import ask_tokens

pytestmark = pytest.mark.server

FRANCE = "Name the capital of France."
TOKENS = {"input_ids": np.array([[1, 2, 3]], np.int32), "input_lengths": np.array([[3]], np.int32)}
LENGTH = np.array([[2]], np.int32)


def ask(server, prompt=FRANCE, **options):
    Client(server.grpc_url).ask(prompt, **options)


def send(server, model, arrays, **options):
    """A request that the client would not make."""
    with Connection(server.grpc_url) as connection:
        connection.infer(model, arrays, timeout_s=60, **options)


CASES = {  # what is done with a server that streams and one that does not, and the fact that its sentence has
    "empty prompt": (lambda streaming, whole: ask(streaming, ""), "text_input"),
    "blank prompt": (lambda streaming, whole: ask(streaming, " \n "), "text_input"),
    "invalid UTF-8": (lambda streaming, whole: ask(streaming, b"caf\xe9"), "text_input is not valid UTF-8"),
    "prompt too long": (lambda streaming, whole: ask(streaming, "word " * 2000), "1792"),
    "text too long": (lambda streaming, whole: ask(streaming, "x" * 300_000), "text_input has 300,000 bytes"),
    "too many bad words": (lambda streaming, whole: ask(streaming, bad_words=["x"] * 1025), "1,025 texts"),
    "max_tokens 0": (lambda streaming, whole: ask(streaming, max_tokens=0), "max_tokens"),
    "max_tokens huge": (lambda streaming, whole: ask(streaming, max_tokens=10**10), "max_tokens is 10000000000"),
    "max_tokens text": (lambda streaming, whole: ask(streaming, max_tokens="many"), "max_tokens is 'many'"),
    "no max_tokens": (lambda streaming, whole: send(whole, "ensemble", {"text_input": text(FRANCE)}), "max_tokens"),
    "NaN temperature": (lambda streaming, whole: ask(streaming, temperature=math.nan), "temperature"),
    "negative temperature": (lambda streaming, whole: ask(streaming, temperature=-1.0), "temperature is -1.0"),
    "top_p above 1": (lambda streaming, whole: ask(streaming, top_p=1.5), "top_p is 1.5"),
    "no tokens": (lambda streaming, whole: ask_tokens(streaming, [], 4), "at least one token"),
    "token id too large": (lambda streaming, whole: ask_tokens(streaming, [1, 49152], 4), "49152"),
    "a negative token id to be decoded": (
        lambda streaming, whole: send(
            whole, "postprocessing", {"TOKENS_BATCH": np.array([[[1, -5, 3]]], np.int32), "SEQUENCE_LENGTH": LENGTH}
        ),
        "TOKENS_BATCH has the token id -5",
    ),
    "id too long": (
        lambda streaming, whole: send(
            whole, "tensorrt_llm", {**TOKENS, "request_output_len": LENGTH}, request_id="i" * 1025
        ),
        "1,025",
    ),
    "unknown model": (lambda streaming, whole: Client(streaming.grpc_url, model="llama").ask(FRANCE), "'llama'"),
    "stream from a model that is not decoupled": (
        lambda streaming, whole: Client(whole.grpc_url).stream(FRANCE).read(),
        "decoupled",
    ),
    "plain call to a decoupled model": (
        lambda streaming, whole: send(streaming, "ensemble", {"text_input": text(FRANCE), "max_tokens": LENGTH}),
        "decoupled",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_has_a_message_and_the_server_still_answers(case, streaming_server, whole_server):
    provoke, message = CASES[case]
    with pytest.raises(CourseError) as caught:
        provoke(streaming_server, whole_server)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value) and "request id" not in str(caught.value)
    for server in (streaming_server, whole_server):
        assert Client(server.grpc_url).ask("Say yes.", max_tokens=2).text


def test_an_engine_that_is_not_there_is_named(course_engine, tmp_path):
    repo = repository.assemble(tmp_path / "repo", tmp_path / "nowhere", tokenizer_dir=course_engine)
    with pytest.raises(CourseError, match="nowhere"):
        Server(repo).start()


def test_a_huge_number_of_tokens_is_cut_to_the_engines_limit(streaming_server):
    assert "Paris" in Client(streaming_server.grpc_url).ask(FRANCE, max_tokens=2_000_000_000).text
