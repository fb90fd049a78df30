"""The contract of TensorRT-LLM 0.5: the clients of its time and of the first workshops, against `--contract 0.5`."""

import numpy as np
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.models import huggingface
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.repository import BASELINE, PIPELINE
from inflight.triton.serving.server import Server
from tests.engines import active_requests, ask_tokens, build_small, wait_until
from tests.triton import outside_clients as outside

pytestmark = pytest.mark.server

MODELS = (*PIPELINE, BASELINE)
PROMPT = "One, two, three, four"
LENGTH = 12
LONG = 2000


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    sizes = {"max_seq_len": LONG + 256, "max_input_len": 256, "max_num_tokens": 256}
    return build_small(small_checkpoint, tmp_path_factory.mktemp("old") / "engine", **sizes)


@pytest.fixture(scope="module")
def checkpoint_dir(small_checkpoint, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INFLIGHT_HOME", str(tmp_path_factory.mktemp("home")))
        return huggingface.folder(small_checkpoint)


def serve(engine_dir, checkpoint_dir, folder, **values) -> Server:
    values |= {"checkpoint_dir": checkpoint_dir, "llama_dtype": "float32", "apply_chat_template": False}
    return Server(repository.assemble(folder / "repo", engine_dir, MODELS, contract="0.5", **values))


@pytest.fixture(scope="module")
def whole(engine_dir, checkpoint_dir, tmp_path_factory):
    with serve(engine_dir, checkpoint_dir, tmp_path_factory.mktemp("whole")) as server:
        yield server


@pytest.fixture(scope="module")
def streaming(engine_dir, checkpoint_dir, tmp_path_factory):
    with serve(engine_dir, checkpoint_dir, tmp_path_factory.mktemp("streaming"), decoupled_mode=True) as server:
        yield server


@pytest.fixture(scope="module")
def ids(engine_dir):
    return load_tokenizer(engine_dir).encode(PROMPT)


@pytest.fixture(scope="module")
def tokens(whole, ids):
    return ask_tokens(whole, ids, LENGTH, exclude_input_in_output=True)


@pytest.fixture(scope="module")
def answers(whole):
    """Of each text model, without the prompt."""
    return {
        model: Client(whole.grpc_url, model).ask(PROMPT, LENGTH, exclude_input_in_output=True).text
        for model in ("ensemble", BASELINE)
    }


# Clients of the backend -----------------------------------------------------------------------------------------------


def test_the_token_client_gets_prompt_and_answer(whole, ids, tokens):
    assert outside.core_whole(whole, "0.5", ids, LENGTH) == ids + tokens


def test_the_token_client_streams(streaming, ids, tokens):
    assert outside.core_streamed(streaming, "0.5", ids, LENGTH) == tokens


def test_the_token_client_stops(streaming, whole, ids):
    assert 0 < len(outside.core_streamed_and_stopped(streaming, "0.5", ids, LONG)) < LONG
    wait_until(lambda: active_requests(whole) == 0, "the gauge knows that the requests before have ended")
    begun = lambda: wait_until(lambda: active_requests(whole) == 1, "the request is in the engine")
    answers = outside.core_whole_and_stopped(whole, "0.5", ids, LONG, begun)
    assert sorted(map(bool, answers)) == [False, True] and max(map(len, answers)) < LONG


@pytest.mark.parametrize("streams", [False, True])
def test_the_backends_text_client(streaming, whole, answers, streams):
    pieces = outside.backend_streaming_client(streaming if streams else whole, PROMPT, LENGTH, streams)
    assert "".join(pieces) == ("" if streams else PROMPT) + answers["ensemble"]
    assert (len(pieces) > 1) == streams


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_models_one_by_one_give_what_the_ensemble_gives(whole, answers, protocol):
    by_hand, by_ensemble = outside.by_hand_and_by_ensemble(whole, "0.5", protocol, PROMPT, LENGTH)
    assert by_hand == by_ensemble and by_hand[0].decode() == PROMPT + answers["ensemble"]


def test_the_benchmark_counts_the_tokens_of_the_answers(whole, ids):
    """identity_test.py takes the prompt's length off."""
    lengths = [3, 8, 5, 12, 1]
    assert outside.benchmark_lengths(whole, "0.5", "grpc", [ids] * 5, lengths) == lengths
    assert len(outside.benchmark_lengths(whole, "0.5", "http", [ids] * 5, lengths)) == 5


def test_the_benchmark_warms_up_with_the_length_of_another_prompt(whole, ids, tokens):
    """identity_test.py sends it, and the backend of that time took the ids as they came."""
    request = outside.core_request("0.5", ids, LENGTH, streaming=False)
    found = outside.infer(whole, "grpc", "tensorrt_llm", request | {"input_lengths": outside.one(164, np.int32)})
    assert outside.read_core("0.5", found) == ids + tokens


def test_an_end_id_of_minus_one_in_unsigned_numbers_is_no_token(whole, ids):
    arrays = outside.core_request("0.5", ids, 30, streaming=False)
    found = outside.infer(whole, "grpc", "tensorrt_llm", {**arrays, "end_id": outside.one(2**32 - 1, np.uint32)})
    assert len(outside.read_core("0.5", found)) == len(ids) + 30


# Clients of the workshops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["whole", "streaming"])
@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_workshops_streaming_client(request, kind, model, answers):
    """It asks for no stream, and prints each response's text, which repeats the prompt."""
    texts = outside.workshop_streaming_client(request.getfixturevalue(kind), model, PROMPT, LENGTH)
    assert texts == [PROMPT + answers[model]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_workshops_benchmark(whole, model, protocol, answers):
    """identity_test_python_vs_trtllm.py: one after the other, then all at once."""
    request = outside.workshop_request(model, PROMPT, LENGTH)
    warm = outside.infer(whole, protocol, model, request)
    assert warm.as_numpy("text_output").reshape(-1)[0].decode() == PROMPT + answers[model]
    assert len(outside.infer_at_once(whole, protocol, model, [request] * 6)) == 6


# The course's client --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["ensemble", BASELINE])
def test_the_courses_client_fits_its_requests_to_the_older_contract(whole, streaming, model, answers):
    for client in (Client(whole.grpc_url, model), Client(streaming.grpc_url, model)):
        assert client.ask(PROMPT, LENGTH, exclude_input_in_output=True).text == answers[model]
    streamed = client.stream(PROMPT, LENGTH).read()
    assert streamed.text == answers[model] and len(streamed.pieces) > 1
    assert client.stream(PROMPT, LENGTH, stop_words=[""], bad_words=[""]).read().text == answers[model]


def test_an_answer_whose_reader_has_left_is_stopped(streaming):
    with Client(streaming.grpc_url) as client:
        answer = iter(client.stream(PROMPT, LONG, min_length=LONG))
        next(answer)
        wait_until(lambda: active_requests(streaming) == 1, "it runs")
    wait_until(lambda: active_requests(streaming) == 0, "its slot is free")
    assert "could not be stopped" not in streaming.log_tail(LONG)
