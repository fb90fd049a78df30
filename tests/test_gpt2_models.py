"""simple-gpt2 and iterative-gpt2 through a real Triton, with a tiny GPT-2 of random weights."""

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from engines import metric, wait_until

from inflight import gpt2, repository
from inflight.errors import CourseError
from inflight.repository import GPT2
from inflight.server import Server

PROMPTS = ["Programming in C++ is like", "One", "The capital of France", "ünïcödé 日本 🎈"]
POSITIONS = gpt2.SIZES["gpt2-tiny"]["n_positions"]
LONG = 100
DEADLINE_S = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2.random_checkpoint(tmp_path_factory.mktemp("gpt2") / "tiny", "gpt2-tiny")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    repo = repository.assemble(tmp_path_factory.mktemp("models") / "repo", "/no/engine", GPT2, gpt2_checkpoint_dir=folder,
                               gpt2_dtype="float32")
    with Server(repo) as server:
        yield server


@pytest.fixture(scope="module")
def expected(folder):
    """Text of the answer to a prompt, computed in this process."""
    model = gpt2.load(folder, "tutorial")

    def answer(prompt, length):
        sequence = model.sequence(prompt, {"max_tokens": length, "ignore_eos": True})
        pieces = []
        while not sequence.is_finished:
            model.step([sequence])
            pieces.append(model.last_piece(sequence))
        return pieces

    return answer


class Stream:
    """One request on a gRPC stream of its own: the pieces that came, and what flag the last had."""

    def __init__(self, server, model, text, on_piece=lambda: None, parameters=None, **options):
        self.pieces, self.final_flags, self.error = [], [], None
        self._over, self._some, self._on_piece = threading.Event(), threading.Event(), on_piece
        self._connection = triton.InferenceServerClient(server.grpc_url)
        self._connection.start_stream(self._arrived)
        texts = np.array([[item] for item in ([text] if isinstance(text, (str, bytes)) else text)], np.object_)
        tensor = triton.InferInput("text_input", texts.shape, "BYTES").set_data_from_numpy(texts)
        parameters = {"max_tokens": 8, "ignore_eos": True} if parameters is None else parameters
        self._connection.async_stream_infer(model, [tensor], enable_empty_final_response=True, parameters=parameters,
                                            **options)

    def _arrived(self, result, error):
        if self._over.is_set():  # what comes now is that the stream was closed
            return
        if error is not None:
            self.error = error.message()
        else:
            if result.as_numpy("text_output") is not None:
                self.pieces.append(result.as_numpy("text_output").item().decode("utf-8"))
                self._on_piece()
            self.final_flags.append(result.get_response().parameters["triton_final_response"].bool_param)
        if self.error or self.final_flags[-1]:
            self._over.set()
        if self.error or len(self.pieces) >= 2:
            self._some.set()

    def read(self):
        assert self._over.wait(DEADLINE_S)
        self.close()
        return self.pieces

    def vanish_after_two(self):
        assert self._some.wait(DEADLINE_S) and not self.error
        self.close()

    def close(self):
        self._connection.stop_stream(cancel_requests=True)
        self._connection.close()


def ask(server, model, text, length, **options):
    return Stream(server, model, text, parameters={"max_tokens": length, "ignore_eos": True}, **options).read()


def slots(server, kind="used"):
    return metric(server, "inflight_gpt2_kv_cache_slots", kind=kind)


@contextlib.contextmanager
def loaded(server, **parameters):
    """iterative-gpt2 with other parameters, and as it was afterwards."""
    server.load("iterative-gpt2", **parameters)
    try:
        yield
    finally:
        server.load("iterative-gpt2")


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_tokens_are_those_of_transformers(server, expected, model, prompt):
    assert ask(server, model, prompt, 24) == expected(prompt, 24)


@pytest.mark.parametrize("model", GPT2)
def test_a_response_a_token_and_the_last_is_final(server, model):
    stream = Stream(server, model, PROMPTS[0], parameters={"max_tokens": 32, "ignore_eos": True})
    assert len(stream.read()) == 32 and stream.final_flags == [False] * 31 + [True]


def test_eight_at_once_are_one_batch(server, expected):
    prompts = [" word".join([""] * count) + " and so" for count in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(server, "iterative-gpt2", prompt, 60), prompts))
    assert answers == [expected(prompt, 60) for prompt in prompts]


@pytest.mark.parametrize("model", GPT2)
def test_over_http_too(server, expected, model):
    request = {"text_input": PROMPTS[0], "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{server.http_url}/v2/models/{model}/generate_stream", json=request, timeout=DEADLINE_S)
    lines = [json.loads(line.removeprefix("data:")) for line in answer.text.splitlines() if line.startswith("data:")]
    assert [line["text_output"] for line in lines] == expected(PROMPTS[0], 5)


def order_of_two(server, model):
    """Whose token came when, of two streams of which the second begins with the first token of the other."""
    order, first_came = [], threading.Event()

    def came():
        order.append("first")
        first_came.set()

    first = Stream(server, model, PROMPTS[0], came, {"max_tokens": LONG, "ignore_eos": True})
    assert first_came.wait(DEADLINE_S)
    second = Stream(server, model, PROMPTS[1], lambda: order.append("second"), {"max_tokens": 20, "ignore_eos": True})
    assert (len(first.read()), len(second.read())) == (LONG, 20)
    return order


def test_the_simple_model_finishes_the_first_before_it_begins_the_second(server):
    assert order_of_two(server, "simple-gpt2") == ["first"] * LONG + ["second"] * 20


def test_the_iterative_model_streams_both_at_once(server):
    order = order_of_two(server, "iterative-gpt2")
    assert order[-1] == "first", "the second is the shorter, and over before the first"
    assert "first" in order[order.index("second"):], "tokens of both in turn"


@pytest.mark.parametrize("way", ["off", "tutorial"])
def test_without_the_cache_the_tokens_are_the_same(server, expected, way):
    with loaded(server, kv_cache=way):
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda prompt: ask(server, "iterative-gpt2", prompt, 24), PROMPTS))
        assert slots(server, "max") == 0
    assert answers == [expected(prompt, 24) for prompt in PROMPTS]


# Slots ----------------------------------------------------------------------------------------------------------------


def test_clients_that_vanish_leave_no_slot(server, expected):
    def vanish(number):
        Stream(server, "iterative-gpt2", PROMPTS[number % 3], parameters={"max_tokens": LONG, "ignore_eos": True}
               ).vanish_after_two()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(vanish, range(60)))
    wait_until(lambda: slots(server) == slots(server, "sequences") == 0, "every slot is free again")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: ask(server, "iterative-gpt2", prompt, 24), PROMPTS * 2))
    assert answers == [expected(prompt, 24) for prompt in PROMPTS * 2]


def test_simple_clients_that_vanish_do_not_hold_up_the_next(server, expected):
    for _ in range(3):
        Stream(server, "simple-gpt2", PROMPTS[0], parameters={"max_tokens": LONG, "ignore_eos": True}).vanish_after_two()
    assert ask(server, "simple-gpt2", PROMPTS[1], 8) == expected(PROMPTS[1], 8)


def test_a_full_cache_refuses(server, expected):
    with loaded(server, kv_cache_slots=1, when_full="refuse"):
        first_came = threading.Event()
        first = Stream(server, "iterative-gpt2", PROMPTS[0], first_came.set, {"max_tokens": LONG, "ignore_eos": True})
        assert first_came.wait(DEADLINE_S)
        second = Stream(server, "iterative-gpt2", PROMPTS[1])
        assert second.read() == []
        assert second.error.endswith("All 1 slots of the KV cache are taken: send the request again later, or set "
                                     "kv_cache_slots higher.")
        assert first.read() == expected(PROMPTS[0], LONG)
        assert ask(server, "iterative-gpt2", PROMPTS[1], 8) == expected(PROMPTS[1], 8), "there is room again"


def test_a_full_cache_lets_wait(server, expected):
    with loaded(server, kv_cache_slots=2):
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda prompt: ask(server, "iterative-gpt2", prompt, 24), PROMPTS + PROMPTS[:2]))
        assert answers == [expected(prompt, 24) for prompt in PROMPTS + PROMPTS[:2]]
        assert slots(server, "max") == 2 and slots(server) == 0


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
@pytest.mark.parametrize("text, parameters, message", [
    ("", None, "text_input is empty: send at least one character."),
    (b"\xff", None, "text_input is not valid UTF-8 (byte 0)"),
    ("Hi", {}, "The request has no parameter max_tokens (a whole number of at least 1) and no parameter ignore_eos (true or"),
    ("Hi", {"max_tokens": 4}, "The request has no parameter ignore_eos (true or false): send it as a request parameter."),
    ("Hi", {"max_tokens": "4", "ignore_eos": True}, "max_tokens is '4'; it must be a whole number of at least 1."),
    ("Hi", {"max_tokens": 0, "ignore_eos": True}, "max_tokens is 0; it must be"),
    ("Hi", {"max_tokens": 4, "ignore_eos": "yes"}, "ignore_eos is 'yes'; it must be true or false."),
    ("Hi", {"max_tokens": POSITIONS, "ignore_eos": True}, f"max_tokens is {POSITIONS}, but the model has {POSITIONS} positions"),
    ("word " * POSITIONS, None, f"but the model has {POSITIONS} positions for prompt and answer: shorten the text."),
], ids=["empty", "not text", "neither", "one", "text", "no tokens", "no bool", "too many", "too long"])
def test_what_is_refused_in_one_sentence(server, model, text, parameters, message):
    stream = Stream(server, model, text, parameters=parameters)
    assert stream.read() == [] and message in stream.error
    assert "Traceback" not in stream.error and "\n" not in stream.error
    assert len(ask(server, model, PROMPTS[0], 2)) == 2, "the server goes on"


@pytest.mark.parametrize("model, message", [("simple-gpt2", "The request has 2 texts: send one text a request."),
                                            ("iterative-gpt2", "must specify batch-size 1")])
def test_two_texts_in_a_request_are_refused(server, model, message):
    stream = Stream(server, model, ["a", "b"])
    assert stream.read() == [] and message in stream.error


def test_a_sequence_that_its_client_ends_is_refused(server):
    """Triton would lose it at the first rescheduling, and the client would wait for ever."""
    stream = Stream(server, "iterative-gpt2", PROMPTS[0], sequence_id=7, sequence_start=True, sequence_end=True)
    assert stream.read() == [] and "leave sequence_end out" in stream.error
    assert slots(server) == 0


def test_a_wrong_parameter_is_told_when_loading(server):
    with pytest.raises(CourseError, match="kv_cache: It is 'maybe'. It must be on, off or tutorial"):
        server.load("iterative-gpt2", kv_cache="maybe")
