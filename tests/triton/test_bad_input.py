"""Every wrong thing a user may do has one sentence to read, and the server still answers."""

import math
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight.checkpoint import sources as checkpoint
from inflight.engine import builder as engine
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import Client, _text
from inflight.triton.server import Server
from inflight.triton.transport import Connection, errors, tensors
from tests.engines import SMALL_BUILD, start_build, wait_until

FRANCE = "Name the capital of France."
USUAL = {
    "tensorrt_llm": {"input_ids": [[1, 2, 3]], "input_lengths": [[3]], "request_output_len": [[2]]},
    "postprocessing": {"TOKENS_BATCH": [[[1, 2, 3]]], "SEQUENCE_LENGTH": [[3]]},
}
HUGE = "is of no use: it has no values, or more than an array can have."


@dataclass
class Place:
    """What a case may use: two servers of the course's model, an engine, a GGUF file and an empty folder."""

    streaming: Server
    whole: Server
    engine: Path
    gguf: Path
    folder: Path

    def ask(self, text=FRANCE, http=False, **options):
        """A request as the client makes it; `http` chooses the protocol."""
        return Client(self.streaming.http_url if http else self.streaming.grpc_url).ask(text, **options)

    def ask_tokens(self, input_ids, request_output_len=4, **options):
        return Client(self.streaming.grpc_url).ask_tokens(input_ids, request_output_len, **options)

    def send(self, remove=(), to=None, **arrays):
        """A request that the client would not make: the usual tensors, with some replaced or left out."""
        usual = {"text_input": np.array([[FRANCE.encode()]], object), "max_tokens": np.array([[4]], np.int32)}
        tensors = {name: array for name, array in {**usual, **arrays}.items() if name not in remove}
        return Client((to or self.streaming).grpc_url)._ask_grpc("ensemble", tensors, _text, "sent")

    def send_to(self, model, claims=None, missing=(), request_id="", **arrays):
        """A request to one model of the pipeline: the usual tensors, with some replaced.

        `claims` are shapes, by name, of tensors that have no bytes.
        """
        claims = claims or {}
        empty = [
            triton.InferInput(name, [0], "INT32").set_data_from_numpy(np.zeros(0, np.int32)).set_shape(shape)
            for name, shape in claims.items()
        ]
        given = {**USUAL[model], **arrays}
        given = {name: array for name, array in given.items() if name not in claims and name not in missing}
        others = tensors({name: np.array(array, np.int32) for name, array in given.items()})
        with errors(self.whole.grpc_url), triton.InferenceServerClient(self.whole.grpc_url) as client:
            client.infer(model, [*empty, *others], request_id=request_id)

    def repo(self, **values) -> Path:
        values = {"engine_dir": self.engine, "decoupled_mode": True, **values}
        return repository.assemble(self.folder / "repo", **values)


@pytest.fixture
def place(streaming_server, whole_server, course_engine, small_checkpoint, tmp_path):
    return Place(streaming_server, whole_server, course_engine, small_checkpoint.path, tmp_path)


def decoupled_call_to_a_model_that_is_not(place):
    Client(place.whole.grpc_url).stream(FRANCE).read()


def plain_call_to_a_decoupled_model(place):
    arrays = {"text_input": np.array([[FRANCE.encode()]], object), "max_tokens": np.array([[4]], np.int32)}
    with Connection(place.streaming.grpc_url) as connection:
        connection.infer("ensemble", arrays, timeout_s=60)


def build_from_corrupt_gguf(place):
    file = place.folder / "corrupt.gguf"
    file.write_bytes(place.gguf.read_bytes()[:100_000])
    engine.build(checkpoint.fetch(str(file)), SMALL_BUILD, place.folder / "engine")


def serve_without_an_engine(place):
    Server(place.repo(engine_dir=place.folder / "nowhere", tokenizer_dir=place.engine)).start()


def serve_on_a_port_in_use(place):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        Server(place.repo(), http_port=taken.getsockname()[1]).start()


def build_elsewhere(place, largest_file=0, **options):
    output, _ = start_build(place.gguf, place.folder / "engine", largest_file, **options).communicate()
    assert list(place.folder.iterdir()) == []
    raise CourseError(output)


def build_on_a_full_disk(place):
    build_elsewhere(place, largest_file=1_000_000)


def build_in_a_read_only_folder(place):
    place.folder.chmod(0o555)
    try:
        build_elsewhere(place, as_root=False)
    finally:
        place.folder.chmod(0o755)


def kill_in_the_middle_of_a_stream(place, url):
    with Server(place.repo()) as server:
        for _ in Client(getattr(server, url)).stream("Tell me a long story.", max_tokens=1500, end_id=-1):
            if server.is_alive():
                os.kill(server.pid, signal.SIGKILL)
                wait_until(lambda: not server.is_alive(), "the server is dead")


CASES = {
    "empty prompt": (lambda p: p.ask(""), "text_input is empty: send at least one character that is not a space."),
    "blank prompt": (lambda p: p.ask(" \n ", http=True), "text_input is empty: send at least one character"),
    "no tokens": (lambda p: p.ask_tokens([]), "The prompt is empty: it needs at least one token."),
    "prompt too long": (lambda p: p.ask("word " * 2000), "exceeds maximum input length (1024): shorten the prompt"),
    "max_tokens 0": (lambda p: p.ask(max_tokens=0), "request_output_len (max_tokens) is 0; it must be at least 1."),
    "max_tokens negative": (lambda p: p.ask(max_tokens=-3, http=True), "(max_tokens) is -3; it must be at least 1."),
    "max_tokens huge": (lambda p: p.ask(max_tokens=10**10), "max_tokens is 10000000000, which cannot be sent as int32"),
    "max_tokens huge, HTTP": (lambda p: p.ask(max_tokens=10**10, http=True), "it takes whole numbers from -2147483648"),
    "max_tokens text": (lambda p: p.ask(max_tokens="many"), "max_tokens is 'many', which cannot be sent as int32"),
    "max_tokens text, HTTP": (lambda p: p.ask(max_tokens="many", http=True), "max_tokens is 'many', which cannot be"),
    "max_tokens half": (lambda p: p.ask(max_tokens=1.5), "max_tokens is 1.5, which cannot be sent as int32"),
    "wrong dtype": (
        lambda p: p.send(max_tokens=np.array([[4.0]], np.float32)),
        "inference input 'max_tokens' data-type is 'FP32', but model 'ensemble' expects 'INT32'",
    ),
    "wrong shape": (
        lambda p: p.send(max_tokens=np.array([[4, 4]], np.int32)),
        "unexpected shape for input 'max_tokens' for model 'ensemble'. Expected [-1,1], got [1,2]",
    ),
    "two prompts": (
        lambda p: p.send(
            to=p.whole, text_input=np.array([[b"a"], [b"b"]], object), max_tokens=np.array([[4], [4]], np.int32)
        ),
        "Expected batch dimension to be 1 for each request, got 2: several prompts get several answers",
    ),
    "missing tensor": (lambda p: p.send(remove=["max_tokens"]), "missing required input(s) ['max_tokens']"),
    "unknown tensor": (lambda p: p.send(max_token=np.array([[4]], np.int32)), "unexpected inference input 'max_token'"),
    "invalid UTF-8": (
        lambda p: p.send(text_input=np.array([[b"caf\xe9"]], object)),
        "text_input is not valid UTF-8 (byte 3): send the text encoded as UTF-8.",
    ),
    "invalid UTF-8 in a stop word": (lambda p: p.ask(stop_words=[b"\xff"]), "is not valid UTF-8 (byte 0)"),
    "unknown model": (lambda p: Client(p.streaming.grpc_url, model="llama").ask(FRANCE), "'llama'"),
    "unknown model, HTTP": (lambda p: Client(p.streaming.http_url, model="llama").ask(FRANCE), "'llama'"),
    "token id too large": (lambda p: p.ask_tokens([1, 49152]), "token id 49152; this model's ids go from 0 to 49151."),
    "token id negative": (lambda p: p.ask_tokens([-1]), "input_ids has the token id -1; this model's ids go from 0"),
    "NaN temperature": (lambda p: p.ask(temperature=math.nan), "temperature is nan; give a finite number."),
    "NaN temperature, HTTP": (lambda p: p.ask(temperature=math.nan, http=True), "cannot be written as JSON"),
    "negative temperature": (lambda p: p.ask(temperature=-1.0, http=True), "temperature is -1.0; give a value of"),
    "top_p above 1": (lambda p: p.ask(top_p=1.5), "top_p is 1.5; give a value of between 0 and 1."),
    "beams": (lambda p: p.ask(beam_width=4), "beam_width must be 1: this engine decodes one beam."),
    "more ids than an array can have": (
        lambda p: p.send_to("tensorrt_llm", {"input_ids": [1, 2**62]}),
        f"The shape of input_ids {HUGE}",
    ),
    "more stop words than an array can have": (
        lambda p: p.send_to("tensorrt_llm", {"stop_words_list": [1, 2, 2**61]}),
        f"The shape of stop_words_list {HUGE}",
    ),
    "more bad words than an array can have": (
        lambda p: p.send_to("tensorrt_llm", {"bad_words_list": [1, 2, 2**62]}),
        f"The shape of bad_words_list {HUGE}",
    ),
    "more beams than an array can have": (
        lambda p: p.send_to("postprocessing", {"TOKENS_BATCH": [1, 2**31, 2**31]}),
        f"The shape of TOKENS_BATCH {HUGE}",
    ),
    "no beams of more tokens than an array can have": (
        lambda p: p.send_to("postprocessing", {"TOKENS_BATCH": [1, 0, 2**62]}),
        f"The shape of TOKENS_BATCH {HUGE}",
    ),
    "more lengths than an array can have": (
        lambda p: p.send_to("postprocessing", {"SEQUENCE_LENGTH": [1, 2**62]}),
        f"The shape of SEQUENCE_LENGTH {HUGE}",
    ),
    "a negative token id to be decoded": (
        lambda p: p.send_to("postprocessing", TOKENS_BATCH=[[[1, -5, 3]]]),
        "TOKENS_BATCH has the token id -5",
    ),
    "text too long": (lambda p: p.ask("x" * 300_000), "text_input has 300,000 bytes: send at most 262,144."),
    "text too long, HTTP": (lambda p: p.ask("é" * 150_000, http=True), "text_input has 300,000 bytes: send at most"),
    "stop words too long": (lambda p: p.ask(stop_words=["x" * 300_000]), "stop_words has 300,000 bytes: send at most"),
    "too many bad words": (lambda p: p.ask(bad_words=["x"] * 1025), "bad_words has 1,025 texts: send at most 1,024."),
    "no length, but something else": (
        lambda p: p.send_to("tensorrt_llm", missing=["input_lengths"], beam_width=[[1]]),
        "The request has no input_lengths: send it.",
    ),
    "too many tokens": (lambda p: p.ask_tokens([1] * 300_000), "input_ids has 300,000 values: send at most 262,144."),
    "end_id of no token": (
        lambda p: p.ask(end_id=49152, min_length=3),
        "end_id has the token id 49152; this model's ids go from 0 to 49151.",
    ),
    "id too long": (
        lambda p: p.send_to("tensorrt_llm", request_id="i" * 1025),
        "The request's id has 1,025 characters: send at most 1024.",
    ),
    "decoupled call to a model that is not": (
        decoupled_call_to_a_model_that_is_not,
        "Streaming is only supported if the model is deployed using decoupled "
        "mode: set decoupled_mode to true, or leave out streaming.",
    ),
    "plain call to a decoupled model": (
        plain_call_to_a_decoupled_model,
        "doesn't support models with decoupled transaction policy",
    ),
    "corrupt GGUF": (build_from_corrupt_gguf, "corrupt.gguf"),
    "missing engine": (serve_without_an_engine, "The model 'tensorrt_llm' could not be loaded: There is no engine at "),
    "port in use": (serve_on_a_port_in_use, "cannot be used (Address already in use). Stop what uses it, name another"),
    "full disk": (build_on_a_full_disk, "Free some space there or name another folder, and try again."),
    "read-only folder": (build_in_a_read_only_folder, "cannot be written (Permission denied). Name a folder that can."),
    "killed in the middle of a stream": (
        lambda p: kill_in_the_middle_of_a_stream(p, "grpc_url"),
        "does not answer, or went away in the middle of",
    ),
    "killed in the middle of a stream, HTTP": (
        lambda p: kill_in_the_middle_of_a_stream(p, "http_url"),
        "does not answer, or went away in the middle of",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_has_a_message_and_the_server_still_answers(case, place):
    provoke, message = CASES[case]
    with pytest.raises(CourseError) as caught:
        provoke(place)
    print(caught.value)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value) and "request id" not in str(caught.value)
    for server in (place.streaming, place.whole):
        assert Client(server.grpc_url).ask("Say yes.", max_tokens=2).text


def test_after_all_of_it_both_servers_know_the_capital_of_france(streaming_server, whole_server):
    for server in (streaming_server, whole_server):
        for url in (server.grpc_url, server.http_url):
            assert "Paris" in Client(url).ask(FRANCE).text


def test_a_huge_number_of_tokens_is_cut_to_the_engines_limit(streaming_server):
    assert "Paris" in Client(streaming_server.grpc_url).ask(FRANCE, max_tokens=2_000_000_000).text
    wait_until(lambda: "exceed max_seq_len (2048)" in streaming_server.log_tail(200), "the server's log says so")
