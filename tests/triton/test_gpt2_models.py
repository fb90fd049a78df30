"""simple-gpt2 and iterative-gpt2 through a real Triton, with a tiny GPT-2 of random weights."""

import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from inflight.models import gpt2
from inflight.triton import repository, telemetry
from inflight.triton.client.connection import Connection
from inflight.triton.repository import GPT2
from inflight.triton.serving.server import Server
from tests.engines import metric, wait_until
from tests.tiny_gpt2 import answer, tiny_gpt2
from tests.triton.gpt2_log import executions, passes

pytestmark = pytest.mark.server

PROMPTS = ["Programming in C++ is like", "One", "The capital of France", "ünïcödé 日本 🎈"]
POSITIONS = 2048
ENDLESS = 1900  # tokens of a stream that is closed long before its end, so that others come while it goes on
LONG = 300
FULL = "All 1 slots of the KV cache are taken: send the request again later, or set kv_cache_slots higher."
DEADLINE_S = 120  # less than a sequence may idle: what comes in time has not waited for that
IDLE, CANDIDATES = (
    f"sequence_batching.{field}" for field in ("max_sequence_idle_microseconds", "oldest.max_candidate_sequences")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_gpt2(tmp_path_factory.mktemp("gpt2"), POSITIONS)


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    folder_of_logs = tmp_path_factory.mktemp("models")
    repo = repository.assemble(folder_of_logs / "repo", models=GPT2, gpt2_checkpoint_dir=folder, gpt2_dtype="float32")
    for model in GPT2:
        repository.edit(repo, model, iteration_log_path=folder_of_logs / model)
    repository.edit(repo, "iterative-gpt2", **{IDLE: 600_000_000})
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture
def new_passes(server):
    """Function that gives the executions that a model has logged since the test began."""
    paths = {model: server.repo.parent / model for model in GPT2}
    starts = {model: path.stat().st_size for model, path in paths.items()}
    return lambda model="iterative-gpt2": executions(paths[model], starts[model])


@pytest.fixture(scope="module")
def expected(folder):
    model = gpt2.load(folder, "on", "float32", num_slots=1)
    return functools.cache(functools.partial(answer, model))


class Stream:
    """One request on a stream of its own: the pieces that were read, what flag each reply had, and the error."""

    def __init__(self, server):
        self.pieces, self.final_flags, self.error = [], [], None
        self.connection = Connection(server.grpc_url)
        self.connection.open_stream()

    def send(self, model, text, parameters=None, **options):
        array = np.array([[text if isinstance(text, bytes) else text.encode()]], np.object_)
        options["parameters"] = parameters or {"max_tokens": 8, "ignore_eos": True}
        self.connection.send_on_stream(model, {"text_input": array}, enable_empty_final_response=True, **options)
        return self

    def wait_for(self, pieces):
        """Read until so many pieces are there, or the request is over."""
        while len(self.pieces) < pieces and not (self.error or True in self.final_flags):
            reply = self.connection.next_reply(DEADLINE_S)
            if reply.error is not None:
                self.error = str(reply.error)
                break
            self.final_flags.append(reply.is_final)
            if not reply.is_empty:
                self.pieces.append(reply.result.as_numpy("text_output").item().decode("utf-8"))
        return self

    def read(self):
        self.wait_for(math.inf).close()
        return self.pieces

    def close(self):
        self.connection.close()


def stream(server, model, text, length):
    return Stream(server).send(model, text, {"max_tokens": length, "ignore_eos": True})


def ask(server, model, text, length):
    return stream(server, model, text, length).read()


@pytest.fixture
def begun(server):
    """Function that begins streams of iterative-gpt2, and returns once all run; they are closed at the end.

    What takes long, a client of its own for each, is there before the first begins.
    """
    streams = []

    def begin(*texts, lengths=()):
        new = [Stream(server) for _ in texts]
        streams.extend(new)
        for each, text, length in zip(new, texts, lengths or [ENDLESS] * len(texts)):
            each.send("iterative-gpt2", text, {"max_tokens": length, "ignore_eos": True})
        return [each.wait_for(1) for each in new]

    yield begin
    for each in streams:
        each.close()
    wait_until(lambda: is_empty(server), "every slot is free again")


def slots(server, kind="used"):
    return metric(server, "inflight_gpt2_kv_cache_slots", kind=kind)


def is_empty(server):
    return slots(server) == slots(server, "sequences") == 0


def assert_eight_make_a_batch(server, begun, expected):
    batches_of_8 = lambda: telemetry.statistics(server.http_url, "iterative-gpt2").batches.to_dict().get(8, 0)
    before = batches_of_8()
    prompts = [" word" * count + " and so" for count in range(8)]
    streams = begun(*prompts)
    wait_until(lambda: batches_of_8() > before, "all have places")
    for prompt, each in zip(prompts, streams):
        assert each.wait_for(16).pieces[:16] == expected(prompt, 16)


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
def test_the_tokens_are_those_without_a_server(server, expected, model):
    assert [ask(server, model, prompt, 24) for prompt in PROMPTS] == [expected(prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "model, flags", [("simple-gpt2", [False] * 31 + [True]), ("iterative-gpt2", [False] * 32 + [True])]
)  # an empty response at the end
def test_a_response_a_token_and_the_last_is_final(server, model, flags):
    streamed = stream(server, model, PROMPTS[0], 32)
    assert len(streamed.read()) == 32 and streamed.final_flags == flags


@pytest.mark.parametrize("model", GPT2)
def test_over_http_too(server, expected, model):
    request = {"text_input": PROMPTS[0], "max_tokens": 5, "ignore_eos": True}
    response = httpx.post(f"{server.http_url}/v2/models/{model}/generate_stream", json=request, timeout=DEADLINE_S)
    lines = [json.loads(line.removeprefix("data:")) for line in response.text.splitlines() if line.startswith("data:")]
    assert [line["text_output"] for line in lines] == expected(PROMPTS[0], 5)


def spans(log):
    """First and last forward pass of each sequence, in the order of their beginnings."""
    return passes(log).groupby("sequence")["iteration"].agg(["min", "max"]).sort_values("min").to_numpy()


def test_the_simple_model_finishes_one_before_it_begins_the_other(server, new_passes):
    first = stream(server, "simple-gpt2", PROMPTS[0], LONG).wait_for(1)  # or both may be one batch
    second = stream(server, "simple-gpt2", PROMPTS[0], 40)
    assert (len(first.read()), len(second.read())) == (LONG, 40)
    (_, first_ends), (second_begins, _) = spans(new_passes("simple-gpt2"))
    assert first_ends < second_begins


# Slots and places -----------------------------------------------------------------------------------------------------


def vanish(server, model="iterative-gpt2"):
    """A client that takes two tokens and is gone."""
    stream(server, model, PROMPTS[0], ENDLESS).wait_for(2).close()


def test_clients_that_vanish_leave_nothing(server, begun, expected):
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: vanish(server), range(24)))
    wait_until(lambda: is_empty(server), "every slot is free again")
    assert_eight_make_a_batch(server, begun, expected)


# The log --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model, has_cache", [("simple-gpt2", False), ("iterative-gpt2", True)])
def test_whoever_has_an_answer_finds_it_in_the_log(server, new_passes, model, has_cache):
    assert [len(ask(server, model, PROMPTS[0], 8)) for _ in range(2)] == [8, 8]
    log = new_passes(model)
    rows = passes(log)
    prompt = rows["length"][0] - 1
    assert rows["sequence"].tolist() == [1] * 8 + [2] * 8 and rows["start"].tolist() == ([True] + [False] * 7) * 2
    assert rows["length"].tolist() == [prompt + token for token in range(1, 9)] * 2
    assert rows["computed"].tolist() == [prompt, *([1] * 7 if has_cache else range(prompt + 1, prompt + 8))] * 2
    assert log["iteration"].diff().iloc[1:].eq(1).all() and log["timestamp"].is_monotonic_increasing


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
@pytest.mark.parametrize(
    "text, parameters, name",
    [
        (b"\xff", None, "text_input"),
        ("Hi", {"max_tokens": POSITIONS, "ignore_eos": True}, f"{POSITIONS} positions"),
    ],
    ids=["not text", "too many"],
)
def test_what_is_refused_in_one_sentence(server, model, text, parameters, name):
    refused = Stream(server).send(model, text, parameters)
    assert refused.read() == [] and name in refused.error
    assert "Traceback" not in refused.error and "\n" not in refused.error


def test_a_sequence_that_its_client_ends_is_refused(server):
    """Triton would lose it at the first rescheduling, and the client would wait for ever."""
    refused = Stream(server).send("iterative-gpt2", PROMPTS[0], sequence_id=7, sequence_start=True, sequence_end=True)
    assert refused.read() == [] and "sequence_end" in refused.error
    assert slots(server) == 0


# Other settings: from here on each test loads iterative-gpt2 as it needs it -------------------------------------------


def test_a_full_cache_refuses(server, begun, expected):
    server.load("iterative-gpt2", kv_cache_slots=1, when_full="refuse")
    [has_the_slot] = begun(PROMPTS[0])
    refused = stream(server, "iterative-gpt2", PROMPTS[1], 8)
    assert refused.read() == [] and refused.error.endswith(FULL)
    has_the_slot.close()
    wait_until(lambda: is_empty(server), "the slot is free")
    assert ask(server, "iterative-gpt2", PROMPTS[1], 8) == expected(PROMPTS[1], 8)


def test_a_full_cache_lets_wait(server, begun, expected, new_passes):
    server.load("iterative-gpt2", kv_cache_slots=2)
    first, _ = begun(*PROMPTS[:2])
    third = stream(server, "iterative-gpt2", PROMPTS[2], 24)
    wait_until(lambda: (slots(server), slots(server, "sequences")) == (2, 3), "there are more than fit")
    assert third.connection.arrived.empty()
    first.close()
    assert third.read() == expected(PROMPTS[2], 24)
    assert set(passes(new_passes())["slot"]) == {0, 1}
