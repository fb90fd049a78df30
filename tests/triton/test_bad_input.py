"""Every wrong thing a user may do has one sentence to read, and the server still answers."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client, Connection, errors, tensors
from inflight.triton.server import Server
from tests import outside_clients as outside
from tests.engines import ask_tokens

pytestmark = pytest.mark.server

FRANCE = "Name the capital of France."
USUAL = {
    "tensorrt_llm": {"input_ids": [[1, 2, 3]], "input_lengths": [[3]], "request_output_len": [[2]]},
    "postprocessing": {"TOKENS_BATCH": [[[1, 2, 3]]], "SEQUENCE_LENGTH": [[3]]},
}


@dataclass
class Place:
    """What a case may use: two servers of the course's model, its engine and an empty folder."""

    streaming: Server
    whole: Server
    engine: Path
    folder: Path

    def ask(self, text=FRANCE, **options):
        """A request as the client makes it."""
        return Client(self.streaming.grpc_url).ask(text, **options)

    def ask_tokens(self, input_ids):
        return ask_tokens(self.streaming, input_ids, 4)

    def send(self, remove=(), **arrays):
        """A request that the client would not make: the usual tensors, with some replaced or left out."""
        usual = {"text_input": np.array([[FRANCE.encode()]], object), "max_tokens": np.array([[4]], np.int32)}
        given = {name: array for name, array in {**usual, **arrays}.items() if name not in remove}
        with errors(self.streaming.grpc_url):
            return outside.infer_on_stream(self.streaming, "ensemble", given)

    def send_to(self, model, request_id="", **arrays):
        """A request to one model of the pipeline: the usual tensors, with some replaced."""
        given = {**USUAL[model], **arrays}
        sent = tensors({name: np.array(array, np.int32) for name, array in given.items()})
        with errors(self.whole.grpc_url), triton.InferenceServerClient(self.whole.grpc_url) as client:
            client.infer(model, sent, request_id=request_id)

    def repo(self, **values) -> Path:
        values = {"engine_dir": self.engine, "decoupled_mode": True, **values}
        return repository.assemble(self.folder / "repo", **values)


@pytest.fixture
def place(streaming_server, whole_server, course_engine, tmp_path):
    return Place(streaming_server, whole_server, course_engine, tmp_path)


def decoupled_call_to_a_model_that_is_not(place):
    Client(place.whole.grpc_url).stream(FRANCE).read()


def plain_call_to_a_decoupled_model(place):
    arrays = {"text_input": np.array([[FRANCE.encode()]], object), "max_tokens": np.array([[4]], np.int32)}
    with Connection(place.streaming.grpc_url) as connection:
        connection.infer("ensemble", arrays, timeout_s=60)


def serve_without_an_engine(place):
    Server(place.repo(engine_dir=place.folder / "nowhere", tokenizer_dir=place.engine)).start()


CASES = {  # what is done, and the fact that its sentence has
    "empty prompt": (lambda p: p.ask(""), "text_input"),
    "blank prompt": (lambda p: p.ask(" \n "), "text_input"),
    "no tokens": (lambda p: p.ask_tokens([]), "at least one token"),
    "prompt too long": (lambda p: p.ask("word " * 2000), "1024"),
    "max_tokens 0": (lambda p: p.ask(max_tokens=0), "max_tokens"),
    "max_tokens huge": (lambda p: p.ask(max_tokens=10**10), "max_tokens is 10000000000"),
    "max_tokens text": (lambda p: p.ask(max_tokens="many"), "max_tokens is 'many'"),
    "wrong dtype": (lambda p: p.send(max_tokens=np.array([[4.0]], np.float32)), "max_tokens"),
    "wrong shape": (lambda p: p.send(max_tokens=np.array([[4, 4]], np.int32)), "[1,2]"),
    "missing tensor": (lambda p: p.send(remove=["max_tokens"]), "max_tokens"),
    "unknown tensor": (lambda p: p.send(max_token=np.array([[4]], np.int32)), "'max_token'"),
    "invalid UTF-8": (lambda p: p.send(text_input=np.array([[b"caf\xe9"]], object)), "text_input is not valid UTF-8"),
    "unknown model": (lambda p: Client(p.streaming.grpc_url, model="llama").ask(FRANCE), "'llama'"),
    "token id too large": (lambda p: p.ask_tokens([1, 49152]), "49152"),
    "NaN temperature": (lambda p: p.ask(temperature=math.nan), "temperature"),
    "negative temperature": (lambda p: p.ask(temperature=-1.0), "temperature is -1.0"),
    "top_p above 1": (lambda p: p.ask(top_p=1.5), "top_p is 1.5"),
    "beams": (lambda p: p.ask(beam_width=4), "beam_width"),
    "a negative token id to be decoded": (
        lambda p: p.send_to("postprocessing", TOKENS_BATCH=[[[1, -5, 3]]]),
        "TOKENS_BATCH has the token id -5",
    ),
    "text too long": (lambda p: p.ask("x" * 300_000), "text_input has 300,000 bytes"),
    "too many bad words": (lambda p: p.ask(bad_words=["x"] * 1025), "bad_words has 1,025 texts"),
    "id too long": (lambda p: p.send_to("tensorrt_llm", request_id="i" * 1025), "1,025"),
    "decoupled call to a model that is not": (decoupled_call_to_a_model_that_is_not, "decoupled"),
    "plain call to a decoupled model": (plain_call_to_a_decoupled_model, "decoupled"),
    "missing engine": (serve_without_an_engine, "nowhere"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_has_a_message_and_the_server_still_answers(case, place):
    provoke, message = CASES[case]
    with pytest.raises(CourseError) as caught:
        provoke(place)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value) and "request id" not in str(caught.value)
    for server in (place.streaming, place.whole):
        assert Client(server.grpc_url).ask("Say yes.", max_tokens=2).text


def test_a_huge_number_of_tokens_is_cut_to_the_engines_limit(streaming_server):
    assert "Paris" in Client(streaming_server.grpc_url).ask(FRANCE, max_tokens=2_000_000_000).text
