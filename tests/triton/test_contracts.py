"""The contract of TensorRT-LLM 0.9 to 0.19: its clients' own requests, unmodified, against the default repository."""

import json

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.executor import Executor
from inflight.engine.messages import Request
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.repository.contracts import NEVER_GIVEN
from inflight.triton.repository.layout import ENGINE, ENSEMBLE
from inflight.triton.repository.request import fields
from inflight.triton.serving.server import Server
from tests.engines import active_requests, ask_tokens, build_small, wait_until
from tests.triton import outside_clients as outside

pytestmark = pytest.mark.server

RELEASES = ["0.9", "0.13", "0.14", "0.19"]  # those between them send what one of these does
PROMPT = "One, two, three, four"
LENGTH = 12
LONG = 6000  # tokens; many seconds, so that there is something to stop also on a busy machine


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """Room for an answer that is still being made when it is stopped."""
    return build_small(small_checkpoint, tmp_path_factory.mktemp("contracts") / "engine", max_seq_len=LONG + 48)


@pytest.fixture(scope="module")
def whole(engine_dir, tmp_path_factory):
    repo = tmp_path_factory.mktemp("whole") / "repo"
    with Server(repository.assemble(repo, engine_dir, apply_chat_template=False), drain_s=0) as server:
        yield server


@pytest.fixture(scope="module")
def streaming(engine_dir, tmp_path_factory):
    repo = tmp_path_factory.mktemp("streaming") / "repo"
    models = (*repository.PIPELINE, repository.BLS)
    values = {"apply_chat_template": False, "decoupled_mode": True}
    with Server(repository.assemble(repo, engine_dir, models, **values), drain_s=0) as server:
        yield server


@pytest.fixture(scope="module")
def ids(engine_dir):
    return load_tokenizer(engine_dir).encode(PROMPT)


@pytest.fixture(scope="module")
def tokens(whole, ids):
    """The answer, by the course's client; the outside ones of 0.9 and later send an end_id of 2 too."""
    return ask_tokens(whole, ids, LENGTH, end_id=2)


@pytest.fixture(scope="module")
def answer(whole):
    with Client(whole.grpc_url) as client:
        return client.ask(PROMPT, LENGTH).text


# inflight_batcher_llm_client.py ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_the_token_client_gets_whole_answers(whole, release, ids, tokens):
    assert outside.core_whole(whole, release, ids, LENGTH) == tokens


@pytest.mark.parametrize("release", RELEASES)
def test_the_token_client_streams(streaming, release, ids, tokens):
    assert outside.core_streamed(streaming, release, ids, LENGTH) == tokens


@pytest.mark.parametrize("release", RELEASES)
def test_the_token_client_stops_a_stream(streaming, release, ids):
    found = outside.core_streamed_and_stopped(streaming, release, ids, LONG)
    assert 0 < len(found) < LONG
    assert ask_tokens(streaming, ids, len(found), end_id=2) == found, "none lost, none twice"


@pytest.mark.parametrize("release", RELEASES)
def test_the_token_client_stops_a_whole_answer(whole, release, ids):
    wait_until(lambda: active_requests(whole) == 0, "the gauge knows that the requests before have ended")
    begun = lambda: wait_until(lambda: active_requests(whole) == 1, "the request is in the engine")
    answers = outside.core_whole_and_stopped(whole, release, ids, LONG, begun)
    assert [] in answers, "the stop request is answered with no tokens"
    assert max(map(len, answers)) < LONG


@pytest.mark.parametrize("outputs", [["output_ids"], ["cum_log_probs", "output_ids"]])
def test_the_token_client_gets_the_outputs_that_it_names_and_no_others(streaming, ids, outputs):
    """--requested-outputs; it raises when the names that come back are others."""
    arrays = outside.core_request("0.19", ids, 3, streaming=True)
    results = outside.infer_on_stream(streaming, "tensorrt_llm", arrays, outputs)
    assert len(results) == 3
    assert all({output.name for output in result.get_response().outputs} == set(outputs) for result in results)


# end_to_end_grpc_client.py --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_the_text_client_streams(streaming, release, answer):
    assert outside.text_client(streaming, release, PROMPT, LENGTH, streaming=True) == answer


GENERATE = [  # what the backend's pages send by curl, release after release
    {"bad_words": "", "stop_words": ""},
    {"bad_words": [""], "stop_words": [""], "temperature": 1.0, "top_k": 1, "return_log_probs": True},
    {"num_return_sequences": 1, "beam_width": 1, "exclude_input_in_output": True, "random_seed": 7, "min_length": 1},
    {"seed": 7, "min_tokens": 1, "return_perf_metrics": False, "lora_task_id": 0},
]


@pytest.mark.parametrize("fields", GENERATE, ids=lambda fields: " ".join(fields))
@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_curl_asks_at_generate_and_generate_stream(streaming, answer, fields, model):
    body = {"text_input": PROMPT, "max_tokens": LENGTH, **fields}
    url = f"{streaming.http_url}/v2/models/{model}"
    assert httpx.post(f"{url}/generate", json=body, timeout=120).json()["text_output"] == answer
    lines = httpx.post(f"{url}/generate_stream", json={**body, "stream": True}, timeout=120).text.splitlines()
    pieces = [json.loads(line.removeprefix("data: "))["text_output"] for line in lines if line]
    assert len(pieces) > 1 and "".join(pieces) == answer


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_words_may_be_none_and_ids_of_any_kind(whole, protocol, answer):
    arrays = {"text_input": outside.text(PROMPT), "max_tokens": outside.one(LENGTH, np.int32)}
    arrays |= {name: np.empty([1, 0], object) for name in ("bad_words", "stop_words", "embedding_bias_words")}
    for request_id in ("", "7", "request № 7"):
        found = outside.infer(whole, protocol, "ensemble", arrays, request_id)
        assert found.as_numpy("text_output")[0].decode() == answer


@pytest.mark.parametrize("kind", ["whole", "streaming"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_text_client_gets_whole_answers(request, kind, release, answer):
    """From 0.18 on it always says whether it wants the prompt: it does, unless it is told otherwise."""
    server = request.getfixturevalue(kind)
    repeats = release == "0.19"
    assert outside.text_client(server, release, PROMPT, LENGTH, streaming=False) == PROMPT * repeats + answer
    without = {"exclude_input_in_output": outside.one(True, bool)}
    assert outside.text_client(server, release, PROMPT, LENGTH, streaming=False, **without) == answer


def test_each_penalty_of_the_token_client_is_the_engines_of_that_name(whole, engine_dir, ids):
    own = {}
    with Executor.load(engine_dir) as executor:
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            request = Request(ids, LENGTH, 2, sampling=SamplingConfig(**{name: 1.5}))
            own[name] = executor.generate(request).token_ids
    assert len(set(map(tuple, own.values()))) == len(own), "two penalties do the same: the test shows nothing"
    for name, tokens in own.items():
        arrays = outside.core_request("0.19", ids, LENGTH, streaming=False) | {name: outside.one(1.5, np.float32)}
        assert outside.read_core("0.19", outside.infer(whole, "grpc", "tensorrt_llm", arrays)) == tokens, name


def test_the_later_names_do_what_the_earlier_ones_do(whole):
    drawn = {"top_k": 50, "temperature": 5.0, "min_length": LENGTH}
    with Client(whole.grpc_url) as client:
        text = client.ask(PROMPT, LENGTH, random_seed=7, **drawn).text
        assert text != client.ask(PROMPT, LENGTH, random_seed=8, **drawn).text
    arrays = {"text_input": outside.text(PROMPT), "max_tokens": outside.one(LENGTH, np.int32)}
    arrays |= {"top_k": outside.one(50, np.int32), "temperature": outside.one(5.0, np.float32)}
    arrays |= {"seed": outside.one(7, np.uint64), "min_tokens": outside.one(LENGTH, np.int32)}
    assert outside.infer(whole, "grpc", "ensemble", arrays).as_numpy("text_output")[0].decode() == text


# end_to_end_test.py, benchmark_core_model.py --------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_models_one_by_one_give_what_the_ensemble_gives(whole, release, protocol, answer):
    by_hand, by_ensemble = outside.by_hand_and_by_ensemble(whole, release, protocol, PROMPT, LENGTH)
    assert by_hand == by_ensemble and by_hand.shape == (1,)
    assert by_hand[0].decode() == answer


@pytest.mark.parametrize("release", RELEASES)
def test_a_benchmark_finds_the_lengths_where_it_looks(whole, ids, release):
    """It takes the prompt's length off, unless it is told that answers come without: --exclude-input-in-output."""
    lengths = [3, 8, 5, 12, 1]
    found = outside.benchmark_lengths(whole, release, "grpc", [ids] * 5, lengths)
    assert [length + len(ids) for length in found] == lengths
    assert outside.benchmark_lengths(whole, release, "http", [ids] * 5, lengths) == ["0", "1", "2", "3", "4"]


# What this engine has not ---------------------------------------------------------------------------------------------

ASKS_FOR_NOTHING = {"1": 1, "0 or 1": 1}
ASKS_FOR_SOMETHING = {"1": 2, "false": True, "left out": 1, "at most 1": 2}
FOREIGN = [
    (model, name, field) for model in (ENGINE, ENSEMBLE) for name, field in fields(model).items() if field.must_be
]
REFUSED = [one for one in FOREIGN if one[2].why]


def values(model: str, field, asks: bool) -> np.ndarray:
    """Values of a foreign input that ask for something, or for nothing."""
    data_type, dims, _ = field.tensor(model).tensor
    if field.must_be in ("empty", "of one token at most"):
        shape = [2 if asks else 0] * len(dims)
    else:
        shape = [2 if length == -1 else length for length in dims]
    if data_type == "STRING":
        return np.full([1, *shape], b"something" if asks else b"", object)
    value = (ASKS_FOR_SOMETHING if asks else ASKS_FOR_NOTHING).get(field.must_be, 0)
    return np.full([1, *shape], value, triton_to_np_dtype(data_type))


def ask_with(server, model: str, name: str, array: np.ndarray, ids: list[int]):
    if model == "tensorrt_llm":
        usual = outside.core_request("0.19", ids, 2, streaming=False)
    else:
        usual = {"text_input": outside.text(PROMPT), "max_tokens": outside.one(2, np.int32)}
    return outside.infer(server, "grpc", model, {**usual, name: array})


@pytest.mark.parametrize(("model", "name", "field"), FOREIGN)
def test_an_input_that_is_there_for_others_is_taken_when_it_asks_for_nothing(whole, ids, model, name, field):
    found = ask_with(whole, model, name, values(model, field, asks=False), ids)
    assert found.as_numpy("output_ids" if model == ENGINE else "text_output").size


@pytest.mark.parametrize(("model", "name", "field"), REFUSED)
def test_who_asks_for_something_is_told_why_there_is_none(whole, ids, model, name, field):
    with pytest.raises(InferenceServerException) as caught:
        ask_with(whole, model, name, values(model, field, asks=True), ids)
    assert f"{field.name} must be {field.must_be}" in caught.value.message()


@pytest.mark.parametrize("option", ["return_context_logits", "return_generation_logits", "return_perf_metrics"])
def test_a_client_that_names_what_is_never_given_is_told_why(streaming, option):
    """Such an option asks for outputs by name too, which Triton would else call unexpected."""
    arrays = {**outside.text_request("0.19", PROMPT, 2, streaming=True), option: outside.one(True, bool)}
    named = ["text_output", *NEVER_GIVEN]
    with pytest.raises(InferenceServerException, match=option):
        outside.infer_on_stream(streaming, "ensemble", arrays, named)


# Several prompts in a request -----------------------------------------------------------------------------------------

PROMPTS, LENGTHS = ["One, two, three, four", "The capital of France is", "Hi"], [12, 5, 20]


def core_batch(ids: list[list[int]], lengths: list[int], streaming: bool = False) -> dict[str, np.ndarray]:
    """Token requests as one, the shorter prompts filled up."""
    longest = max(map(len, ids))
    padded = [one + [2] * (longest - len(one)) for one in ids]
    requests = [outside.core_request("0.19", one, length, streaming) for one, length in zip(padded, lengths)]
    arrays = {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}
    return arrays | {"input_lengths": np.array([[len(one)] for one in ids], np.int32)}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("release", ["0.13", "0.19"])
def test_the_text_client_gets_an_answer_to_each_of_its_prompts(streaming, release, streams):
    alone = [outside.text_client(streaming, release, *pair, streams) for pair in zip(PROMPTS, LENGTHS)]
    assert outside.text_client_batch(streaming, release, PROMPTS, LENGTHS, streams) == alone


def test_each_prompt_has_words_of_its_own(streaming, engine_dir, tokens, answer):
    word = load_tokenizer(engine_dir).decode(tokens[:1])
    with Client(streaming.grpc_url) as client:
        without = client.ask(PROMPT, LENGTH, bad_words=[word]).text
    assert without != answer
    words = np.array([[word, ""], ["", ""], [word, "and another"]], object)
    found = outside.text_client_batch(streaming, "0.14", [PROMPT] * 3, [LENGTH] * 3, True, bad_words=words)
    assert found[:2] == [without, answer]


def test_token_requests_in_one_are_answered_as_if_they_were_alone(streaming, engine_dir):
    tokenizer = load_tokenizer(engine_dir)
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    alone = [ask_tokens(streaming, one, length, end_id=2) for one, length in zip(ids, LENGTHS)]
    for streams in (False, True):
        found = [[] for _ in ids]
        for result in outside.infer_on_stream(streaming, "tensorrt_llm", core_batch(ids, LENGTHS, streams)):
            found[result.as_numpy("batch_index")[0][0]] += outside.read_core("0.19", result)
        assert found == alone


def test_all_prompts_of_a_request_end_with_it(streaming, ids):
    arrays = core_batch([ids, ids[:3]], [LONG, LONG]) | {"end_id": np.full((2, 1), -1, np.int32)}
    arrived = outside.Arrived()
    with grpc.InferenceServerClient(streaming.grpc_url) as client:
        client.start_stream(callback=arrived)
        client.async_stream_infer("tensorrt_llm", outside.inputs(arrays), request_id="both")
        wait_until(lambda: active_requests(streaming) == 2, "both are in the engine")
        client.async_stream_infer("tensorrt_llm", outside.inputs(outside.stop_request("0.19")), request_id="both")
        client.stop_stream()
    stopped = [outside.read_core("0.19", result) for result in arrived.all()]
    assert len(stopped) == 3 and max(map(len, stopped)) < LONG

    with grpc.InferenceServerClient(streaming.grpc_url) as client:
        client.start_stream(callback=outside.Arrived())
        client.async_stream_infer("tensorrt_llm", outside.inputs(arrays))
        wait_until(lambda: active_requests(streaming) == 2, "both are in the engine")
        client.stop_stream(cancel_requests=True)
    wait_until(lambda: active_requests(streaming) == 0, "both are gone with their client")


def test_a_prompt_that_cannot_be_answered_is_the_requests_only_answer(streaming, ids):
    bad = core_batch([ids, ids], [LONG, 0])
    with pytest.raises(InferenceServerException, match="request_output_len"):
        outside.infer_on_stream(streaming, "tensorrt_llm", bad)
    wait_until(lambda: active_requests(streaming) == 0, "the other one is not computed for nobody")
    assert outside.core_streamed(streaming, "0.19", ids, 3)


def test_without_decoupled_mode_several_prompts_are_refused_with_the_reason(whole):
    with pytest.raises(InferenceServerException, match="decoupled"):
        outside.text_client_batch(whole, "0.19", PROMPTS, LENGTHS, streaming=False)


# V1 -------------------------------------------------------------------------------------------------------------------


def test_v1_gives_a_client_that_streams_one_whole_answer_without_the_prompt(streaming, ids, tokens, answer):
    streaming.load("tensorrt_llm", gpt_model_type="V1", exclude_input_in_output=False)
    request = outside.core_request("0.19", ids, LENGTH, streaming=True)
    try:
        results = outside.infer_on_stream(streaming, "tensorrt_llm", request)
        assert [outside.read_core("0.19", result) for result in results] == [tokens]
        assert outside.text_client(streaming, "0.19", PROMPT, LENGTH, streaming=True) == answer
    finally:
        streaming.load("tensorrt_llm")


def test_a_contract_that_is_none_is_refused():
    with pytest.raises(CourseError, match="0.7"):
        repository.assemble("anywhere", "/engines/x", contract="0.7")
