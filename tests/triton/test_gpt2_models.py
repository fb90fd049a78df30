"""simple-gpt2 and iterative-gpt2 through a real Triton, with a tiny GPT-2 of random weights."""

import functools
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton

from inflight.errors import CourseError
from inflight.models import gpt2
from inflight.models.gpt2_checkpoint import SIZES, random_checkpoint
from inflight.triton import repository, telemetry
from inflight.triton.repository import GPT2
from inflight.triton.server import Server
from tests.engines import how_it_ends, metric, model_process, wait_until

PROMPTS = ["Programming in C++ is like", "One", "The capital of France", "ünïcödé 日本 🎈"]
POSITIONS = SIZES["gpt2-tiny"]["n_positions"]
LONG = 100
FULL = "All 1 slots of the KV cache are taken: send the request again later, or set kv_cache_slots higher."
# What shows only where requests are under way together is tried again, for so long: on a busy machine the last of them
# may be sent when the first has its answer.
PATIENCE_S = 300
DEADLINE_S = 30  # less than max_sequence_idle_microseconds: what comes in time has not waited for that
IDLE, CANDIDATES = (
    f"sequence_batching.{field}" for field in ("max_sequence_idle_microseconds", "oldest.max_candidate_sequences")
)
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_checkpoint(tmp_path_factory.mktemp("gpt2") / "tiny", "gpt2-tiny")


@pytest.fixture(scope="module")
def server(folder, tmp_path_factory):
    folder_of_logs = tmp_path_factory.mktemp("models")
    repo = repository.assemble(folder_of_logs / "repo", models=GPT2, gpt2_checkpoint_dir=folder, gpt2_dtype="float32")
    for model in GPT2:
        repository.edit(repo, model, iteration_log_path=folder_of_logs / model)
    with Server(repo) as server:
        yield server


@pytest.fixture
def new_passes(server):
    """Function that gives the executions that a model has logged since the test began."""
    paths = {model: server.repo.parent / model for model in GPT2}
    starts = {model: path.stat().st_size for model, path in paths.items()}
    return lambda model="iterative-gpt2": telemetry.executions(paths[model], starts[model])


@pytest.fixture(scope="module")
def expected(folder):
    """Pieces of the answer to a prompt, computed in this process; test_gpt2.py compares them with transformers'."""
    model = gpt2.load(folder, "on", "float32", num_slots=1)

    @functools.cache
    def answer(prompt, length):
        sequence = model.sequence(prompt, {"max_tokens": length, "ignore_eos": True})
        assert model.join(sequence)
        pieces = []
        while not sequence.is_finished:
            model.step([sequence])
            pieces.append(model.last_piece(sequence))
        model.leave(sequence)
        return pieces

    return answer


class Stream:
    """One request on a gRPC stream of its own: the pieces that came, and what flag the last had."""

    def __init__(self, server, on_piece=lambda: None, deadline_s=DEADLINE_S):
        self.pieces, self.final_flags, self.error, self.deadline_s = [], [], None, deadline_s
        self._over, self._some, self._on_piece = threading.Event(), threading.Event(), on_piece
        self._connection = triton.InferenceServerClient(server.grpc_url)
        assert self._connection.is_server_live()  # connected now, and not with the request
        self._connection.start_stream(self._arrived)

    def send(self, model, text, parameters=None, **options):
        texts = np.array([[item] for item in ([text] if isinstance(text, (str, bytes)) else text)], np.object_)
        tensor = triton.InferInput("text_input", texts.shape, "BYTES").set_data_from_numpy(texts)
        parameters = {"max_tokens": 8, "ignore_eos": True} if parameters is None else parameters
        self._connection.async_stream_infer(
            model, [tensor], enable_empty_final_response=True, parameters=parameters, **options
        )
        return self

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
        assert self._over.wait(self.deadline_s)
        self.close()
        return self.pieces

    def vanish_after_two(self):
        assert self._some.wait(self.deadline_s) and not self.error
        self.close()

    def close(self):
        self._connection.stop_stream(cancel_requests=True)
        self._connection.close()


def stream(server, model, text, length, on_piece=lambda: None, deadline_s=DEADLINE_S):
    return Stream(server, on_piece, deadline_s).send(model, text, {"max_tokens": length, "ignore_eos": True})


def ask(server, model, text, length):
    return stream(server, model, text, length).read()


def ask_all(server, prompts, length, deadline_s=DEADLINE_S):
    """Answers of iterative-gpt2 to prompts that are sent at once."""
    streams = [Stream(server, deadline_s=deadline_s) for _ in prompts]
    for each, prompt in zip(streams, prompts):
        each.send("iterative-gpt2", prompt, {"max_tokens": length, "ignore_eos": True})
    return [each.read() for each in streams]


def largest_batch(server, prompts, expected):
    """How many of the prompts came to be computed together, when all were sent at once."""

    def executions():
        return telemetry.statistics(server.http_url, "iterative-gpt2").batches.to_dict()

    before = telemetry.settled(executions)
    assert ask_all(server, prompts, LONG) == [expected(prompt, LONG) for prompt in prompts]
    after = telemetry.settled(executions)
    return max(size for size in after if after[size] > before.get(size, 0))


def slots(server, kind="used"):
    return metric(server, "inflight_gpt2_kv_cache_slots", kind=kind)


def is_empty(server):
    return slots(server) == slots(server, "sequences") == 0


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
def test_the_tokens_are_those_without_a_server(server, expected, model):
    assert [ask(server, model, prompt, 24) for prompt in PROMPTS] == [expected(prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "model, flags", [("simple-gpt2", [False] * 31 + [True]), ("iterative-gpt2", [False] * 32 + [True])]
)  # an empty response at the end
def test_a_response_a_token_and_the_last_is_final(server, model, flags):
    answer = stream(server, model, PROMPTS[0], 32)
    assert len(answer.read()) == 32 and answer.final_flags == flags


def test_eight_at_once_are_one_batch(server, expected):
    prompts = [" word".join([""] * count) + " and so" for count in range(1, 9)]
    wait_until(lambda: largest_batch(server, prompts, expected) > 6, "all have places", PATIENCE_S)


@pytest.mark.parametrize("model", GPT2)
def test_over_http_too(server, expected, model):
    request = {"text_input": PROMPTS[0], "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"{server.http_url}/v2/models/{model}/generate_stream", json=request, timeout=DEADLINE_S)
    lines = [json.loads(line.removeprefix("data:")) for line in answer.text.splitlines() if line.startswith("data:")]
    assert [line["text_output"] for line in lines] == expected(PROMPTS[0], 5)


def spans_of_two(server, new_passes, model):
    """First and last forward pass of two streams that are sent at once: one of `LONG` tokens, and one of 20."""
    streams = Stream(server), Stream(server)
    for each, length in zip(streams, (LONG, 20)):
        each.send(model, PROMPTS[0], {"max_tokens": length, "ignore_eos": True})
    assert [len(each.read()) for each in streams] == [LONG, 20]
    last = telemetry.passes(new_passes(model)).tail(LONG + 20)
    spans = last.groupby("sequence")["iteration"].agg(["count", "min", "max"]).sort_values("count")
    return spans[["min", "max"]].to_numpy().tolist()


def test_the_simple_model_finishes_one_before_it_begins_the_other(server, new_passes):
    (short_begins, short_ends), (long_begins, long_ends) = spans_of_two(server, new_passes, "simple-gpt2")
    assert short_ends < long_begins or long_ends < short_begins


def test_the_iterative_model_streams_both_at_once(server, new_passes):
    def both_at_once():
        (short_begins, short_ends), (long_begins, long_ends) = spans_of_two(server, new_passes, "iterative-gpt2")
        return short_begins < long_ends and long_begins < short_ends < long_ends

    wait_until(both_at_once, "one begins while the other goes on, and the shorter is over before", PATIENCE_S)


# Slots and places -----------------------------------------------------------------------------------------------------


def vanish(server, model="iterative-gpt2", count=1, deadline_s=DEADLINE_S):
    """Clients that take two tokens and are gone, twelve at a time."""
    one = lambda number: stream(server, model, PROMPTS[number % 3], LONG, deadline_s=deadline_s).vanish_after_two()
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(count)))


def test_two_hundred_clients_that_vanish_leave_nothing(server, expected):
    memory = []
    for _ in range(4):
        vanish(server, count=50)
        wait_until(lambda: is_empty(server), "every slot is free again")
        memory.append(model_process(server, "iterative-gpt2").memory_full_info().uss)
    assert memory[-1] - memory[1] < MIB, f"private memory in bytes, round by round: {memory}"
    wait_until(lambda: largest_batch(server, PROMPTS[:1] * 8, expected) > 6, "the next have all places", PATIENCE_S)


def test_simple_clients_that_vanish_do_not_hold_up_the_next(server, expected):
    vanish(server, "simple-gpt2", 3)
    assert ask(server, "simple-gpt2", PROMPTS[1], 8) == expected(PROMPTS[1], 8)


def test_clients_that_close_at_once_leave_their_places(server, expected):
    """Sixteen one after the other, each gone at its last response; a place that is kept is missed by the ninth."""
    assert [ask(server, "iterative-gpt2", PROMPTS[1], 1) for _ in range(16)] == [expected(PROMPTS[1], 1)] * 16


# The log --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model, has_cache", [("simple-gpt2", False), ("iterative-gpt2", True)])
def test_whoever_has_an_answer_finds_it_in_the_log(server, new_passes, model, has_cache):
    assert [len(ask(server, model, PROMPTS[0], 8)) for _ in range(2)] == [8, 8]
    log = new_passes(model)
    rows = telemetry.passes(log)
    prompt = rows["length"][0] - 1
    assert rows["sequence"].tolist() == [1] * 8 + [2] * 8 and rows["start"].tolist() == ([True] + [False] * 7) * 2
    assert rows["length"].tolist() == [prompt + token for token in range(1, 9)] * 2
    assert rows["computed"].tolist() == [prompt, *([1] * 7 if has_cache else range(prompt + 1, prompt + 8))] * 2
    assert rows["slot"].tolist() == [0] * 16 if has_cache else rows["slot"].isna().all()
    assert log["iteration"].diff().iloc[1:].eq(1).all() and (log["iteration_ms"] > 0).all()
    assert log["timestamp"].is_monotonic_increasing and (log["empty_places"] == 0).all()


def test_a_log_that_is_none(tmp_path):
    (tmp_path / "other").write_text('{"iteration": 1}\n')
    with pytest.raises(CourseError, match="line 1 is not a line of an iteration log"):
        telemetry.executions(tmp_path / "other")


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", GPT2)
@pytest.mark.parametrize(
    "text, parameters, message",
    [
        ("", None, "text_input is empty: send at least one character that is not a space."),
        (b"\xff", None, "text_input is not valid UTF-8 (byte 0)"),
        (
            "Hi",
            {},
            "The request has no parameter max_tokens (a whole number of at least 1) "
            "and no parameter ignore_eos (true or",
        ),
        (
            "Hi",
            {"max_tokens": 4},
            "The request has no parameter ignore_eos (true or false): send it as a request parameter.",
        ),
        ("Hi", {"max_tokens": "4", "ignore_eos": True}, "max_tokens is '4'; it must be a whole number of at least 1."),
        ("Hi", {"max_tokens": 0, "ignore_eos": True}, "max_tokens is 0; it must be"),
        ("Hi", {"max_tokens": 4, "ignore_eos": "yes"}, "ignore_eos is 'yes'; it must be true or false."),
        (
            "Hi",
            {"max_tokens": POSITIONS, "ignore_eos": True},
            f"max_tokens is {POSITIONS}, but the model has {POSITIONS} positions",
        ),
        (
            "word " * POSITIONS,
            None,
            f"but the model has {POSITIONS} positions for prompt and answer: shorten the text.",
        ),
    ],
    ids=["empty", "not text", "neither", "one", "text", "no tokens", "no bool", "too many", "too long"],
)
def test_what_is_refused_in_one_sentence(server, model, text, parameters, message):
    refused = Stream(server).send(model, text, parameters)
    assert refused.read() == [] and message in refused.error
    assert "Traceback" not in refused.error and "\n" not in refused.error


@pytest.mark.parametrize(
    "model, message",
    [
        ("simple-gpt2", "to be 1 for each request, got 2: send one prompt a request."),
        ("iterative-gpt2", "must specify batch-size 1"),
    ],
)
def test_two_texts_in_a_request_are_refused(server, model, message):
    refused = Stream(server).send(model, ["a", "b"])
    assert refused.read() == [] and message in refused.error
    assert len(ask(server, model, PROMPTS[0], 2)) == 2, "the server goes on"


def test_a_sequence_that_its_client_ends_is_refused(server):
    """Triton would lose it at the first rescheduling, and the client would wait for ever."""
    refused = Stream(server).send("iterative-gpt2", PROMPTS[0], sequence_id=7, sequence_start=True, sequence_end=True)
    assert refused.read() == [] and "leave sequence_end out" in refused.error
    assert slots(server) == 0


def test_a_wrong_parameter_is_told_when_loading(server, tmp_path):
    with pytest.raises(CourseError, match="kv_cache: It is 'maybe'. It must be on, off or tutorial"):
        server.load("iterative-gpt2", kv_cache="maybe")
    with pytest.raises(CourseError, match="The execution log .* cannot be written .* Name another file"):
        server.load("iterative-gpt2", iteration_log_path=tmp_path / "nothing" / "log")
    assert len(ask(server, "iterative-gpt2", PROMPTS[0], 2)) == 2, "what was loaded goes on"


# Other settings: from here on each test loads iterative-gpt2 as it needs it -------------------------------------------


@pytest.mark.parametrize("way", ["off", "tutorial"])
def test_without_the_cache_the_tokens_are_the_same(server, expected, way):
    server.load("iterative-gpt2", kv_cache=way)
    assert ask_all(server, PROMPTS, 24) == [expected(prompt, 24) for prompt in PROMPTS]
    wait_until(lambda: slots(server, "max") == 0, "the gauge is the new model's")


def test_a_full_cache_refuses(server, expected):
    server.load("iterative-gpt2", kv_cache_slots=1, when_full="refuse")

    def one_is_refused():
        streams = Stream(server), Stream(server)
        for each in streams:
            each.send("iterative-gpt2", PROMPTS[0], {"max_tokens": LONG, "ignore_eos": True})
        answers = [(each.read(), each.error) for each in streams]
        answered = [pieces for pieces, error in answers if error is None]
        assert answered in ([expected(PROMPTS[0], LONG)], [expected(PROMPTS[0], LONG)] * 2)
        refused = [(pieces, error) for pieces, error in answers if error is not None]
        assert all(pieces == [] and error.endswith(FULL) for pieces, error in refused)
        return refused

    wait_until(one_is_refused, "one of two is refused", PATIENCE_S)
    assert ask(server, "iterative-gpt2", PROMPTS[1], 8) == expected(PROMPTS[1], 8), "there is room again"


def test_a_full_cache_lets_wait(server, expected, new_passes):
    server.load("iterative-gpt2", kv_cache_slots=2)

    def some_wait():
        assert ask_all(server, PROMPTS, 24) == [expected(prompt, 24) for prompt in PROMPTS]
        return (new_passes()["waiting"] > 0).any()

    wait_until(some_wait, "there are more than fit", PATIENCE_S)
    log = new_passes()
    assert log["slots_used"].max() == 2 and (log["slots_max"] == 2).all()
    assert set(telemetry.passes(log)["slot"]) == {0, 1}
    wait_until(lambda: is_empty(server), "every slot is free again")


def test_a_place_whose_sequence_has_ended_comes_along_empty(server, new_passes):
    server.load("iterative-gpt2", kv_cache_slots=4)  # or other places may still be taken

    def one_ends_before_the_other():
        short, long = Stream(server), Stream(server)
        short.send("iterative-gpt2", PROMPTS[0], {"max_tokens": 60, "ignore_eos": True})
        long.send("iterative-gpt2", PROMPTS[1], {"max_tokens": LONG, "ignore_eos": True})
        assert (len(short.read()), len(long.read())) == (60, LONG)
        return (new_passes()["empty_places"] > 0).any()

    wait_until(one_ends_before_the_other, "the short one ends while the long one goes on", PATIENCE_S)
    assert set(new_passes()["empty_places"]) == {0, 1} and new_passes()["empty_places"].iloc[-1] == 1


def test_with_oldest_the_third_waits_in_triton(server, expected, new_passes):
    server.load("iterative-gpt2", **{CANDIDATES: 2})
    begun = []

    def two_stream_in_turn():
        assert ask_all(server, PROMPTS, 24) == [expected(prompt, 24) for prompt in PROMPTS]
        log = new_passes()
        assert (log["waiting"] == 0).all(), "the model does not see those who wait"
        spans = telemetry.passes(log).groupby("sequence")["iteration"].agg(["min", "max"]).iloc[len(begun) :]
        begun.extend(spans.index)
        (first_begins, first_ends), (second_begins, second_ends), (third_begins, _), _ = spans.to_numpy()
        assert third_begins > min(first_ends, second_ends), "the third begins when one of them has ended"
        return first_begins < second_ends and second_begins < first_ends

    wait_until(two_stream_in_turn, "two stream in turn", PATIENCE_S)


def test_with_oldest_a_place_that_is_lost_comes_back_when_it_idles(server, expected):
    server.load("iterative-gpt2", **{CANDIDATES: 2, IDLE: 8_000_000})
    vanish(server, count=6, deadline_s=PATIENCE_S)  # two by two, each time when the places before have idled
    assert ask_all(server, PROMPTS, 8, deadline_s=PATIENCE_S) == [expected(prompt, 8) for prompt in PROMPTS]
    wait_until(lambda: is_empty(server), "every slot is free again")


def test_who_idles_too_long_is_told_and_leaves_nothing(server):
    """A time that is shorter than an execution, so that Triton gives sequences up while they are computed."""
    server.load("iterative-gpt2", **{IDLE: 1})

    def are_given_up():
        streams = [stream(server, "iterative-gpt2", PROMPTS[0], LONG, deadline_s=PATIENCE_S) for _ in range(9)]
        cut = [each.error for each in streams if len(each.read()) < LONG]
        assert all(
            error.endswith("was given up: send it again, or set max_sequence_idle_microseconds higher.")
            for error in cut
        )
        return len(cut) == len(streams)

    wait_until(are_given_up, "all are given up", PATIENCE_S)  # Triton looks now and then, and one may be faster
    wait_until(lambda: is_empty(server), "every slot is free again")


# Unloaded, and killed ------------------------------------------------------------------------------------------------


def test_a_model_that_is_unloaded_ends_in_order(server):
    server.load("iterative-gpt2", kv_cache_slots=5)
    assert how_it_ends(model_process(server, "iterative-gpt2").pid, lambda: server.load("iterative-gpt2")) == 0


def killed_while_it_streams(server):
    """What the clients of a model's process are told that is killed; again where all had their answers by then."""
    while True:
        pid, last_begins = model_process(server, "iterative-gpt2").pid, threading.Event()
        streams = [stream(server, "iterative-gpt2", PROMPTS[0], LONG) for _ in range(3)]
        streams.append(stream(server, "iterative-gpt2", PROMPTS[0], LONG, last_begins.set))
        assert last_begins.wait(DEADLINE_S)
        os.kill(pid, signal.SIGKILL)
        cut = [each for each in streams if len(each.read()) < LONG]
        assert all(each.error for each in cut)
        if cut:
            return [each.error for each in cut]
        server.unload("iterative-gpt2")
        server.load("iterative-gpt2")


def test_a_model_that_is_killed_tells_its_clients_and_can_be_loaded_again(server, expected):
    """One that is killed while it holds the lock of the memory shared with Triton 2.51 takes the server along.

    That one is started again, with what it served.
    """
    server.load("iterative-gpt2")
    wait_until(lambda: slots(server, "max") == 8, "the gauge is the new model's")
    errors = killed_while_it_streams(server)
    if any("is not healthy" not in error for error in errors):
        crashed = "The server crashed, and is started again."
        wait_until(lambda: crashed in [event.what for event in server.events()], f"the crash is known: {errors}")
        assert "boost::interprocess::lock_exception" in server.log_tail(lines=10_000), "above the trace of the crash"
        served = lambda: {row.name: row.state for row in server.models()}
        wait_until(lambda: served().get("iterative-gpt2") == "READY", "it is served again")
    wait_until(lambda: is_loaded(server), "it is loaded again, after a crash that came late, too")
    assert ask(server, "iterative-gpt2", PROMPTS[0], 8) == expected(PROMPTS[0], 8)


def is_loaded(server):
    """Whether the model could be loaded; a server that crashes only now does not answer until it is started again."""
    try:
        server.load("iterative-gpt2", kv_cache_slots=4)  # one that has not changed Triton would leave as it is
    except CourseError as error:
        if "does not answer" not in str(error) and "went away" not in str(error):
            raise
        return False
    return True
