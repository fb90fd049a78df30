"""TensorRT-LLM's model of today over our engine: its own clients' requests, its settings file, the course's client."""

import json
import threading

import httpx
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.executor import Executor
from inflight.engine.messages import Request
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError
from inflight.openai import OpenAIServer
from inflight.triton import repository
from inflight.triton.address import Address
from inflight.triton.client.client import Client
from inflight.triton.client.connection import Connection
from inflight.triton.repository.request import arrays_for
from inflight.triton.serving.server import Server
from tests.engines import active_requests, build_small, metric, wait_until
from tests.triton import outside_clients as outside

MODEL, SETTINGS = "tensorrt_llm", "tensorrt_llm/1/model.yaml"
PROMPT = "One, two, three, four"
LENGTH = 12
LONG = 6000  # tokens; many seconds, so that there is something to stop also on a busy machine
# As TensorRT-LLM has it, with another model.
STOCK = """
model: {engine_dir}
backend: "pytorch"
tensor_parallel_size: 1
pipeline_parallel_size: 1
triton_config:
  max_batch_size: 0
  decoupled: False
"""


@pytest.fixture(scope="module")
def engine_dir(small_checkpoint, tmp_path_factory):
    """Room for an answer that is still being made when it is stopped."""
    return build_small(small_checkpoint, tmp_path_factory.mktemp("llmapi") / "engine", max_seq_len=LONG + 48)


def assembled(folder, engine_dir, settings: str = "", **values):
    repo = repository.assemble(folder / "repo", engine_dir, contract="llmapi", **values)
    if settings:
        (repo / SETTINGS).write_text(settings.format(engine_dir=engine_dir), encoding="utf-8")
    return repo


@pytest.fixture(scope="module")
def whole(engine_dir, tmp_path_factory):
    """Served with TensorRT-LLM's own settings file."""
    with Server(assembled(tmp_path_factory.mktemp("whole"), engine_dir, STOCK), drain_s=0) as server:
        yield server


@pytest.fixture(scope="module")
def streaming(engine_dir, tmp_path_factory):
    with Server(assembled(tmp_path_factory.mktemp("streaming"), engine_dir, decoupled_mode=True), drain_s=0) as server:
        yield server


@pytest.fixture(scope="module")
def engine(engine_dir):
    """Function: the text that the engine itself makes of a prompt, and its log-probability."""
    tokenizer = load_tokenizer(engine_dir)
    with Executor.load(engine_dir) as executor:

        def answer(prompt: str, length: int, **sampling) -> tuple[str, float]:
            request = Request(
                tokenizer.encode(prompt), length, tokenizer.end_id, return_log_probs=True,
                sampling=SamplingConfig(**sampling),
            )  # fmt: skip
            response = executor.generate(request)
            return tokenizer.decode(response.token_ids), response.cum_log_prob

        yield answer


@pytest.fixture(scope="module")
def answer(engine):
    return engine(PROMPT, LENGTH)[0]


def infer(server, **inputs):
    """A whole answer over gRPC without its prompt, asked for by the model's own names: its outputs by name."""
    with Client(server.grpc_url, MODEL) as client, Connection(server.grpc_url) as connection:
        result = connection.infer(MODEL, arrays_for(client.config(), inputs), timeout_s=120)
    found = {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}
    return {name: array.item().decode() if array.dtype == object else array.item() for name, array in found.items()}


def generate(server, path: str = "generate", **body):
    return httpx.post(f"{server.http_url}/v2/models/{MODEL}/{path}", json=body, timeout=120)


# Its own clients ------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_its_config_is_that_of_tensorrt_llm_and_model_yaml_decides_what_it_leaves_open(whole, streaming):
    for server, decoupled in ((whole, False), (streaming, True)):
        with Client(server.grpc_url) as client:
            config = client.config()
        assert config.max_batch_size == 0 and config.model_transaction_policy.decoupled is decoupled
        required = [tensor.name for tensor in config.input if not tensor.optional]
        assert required == ["text_input"] and len(config.input) == 22 and len(config.output) == 16


@pytest.mark.server
def test_nvidias_client_gets_prompt_and_answer(whole, answer):
    [result] = outside.llmapi_client(whole, PROMPT, LENGTH)
    assert result.as_numpy("text_output")[0].decode("utf-8") == PROMPT + answer


@pytest.mark.server
def test_nvidias_client_stops_and_both_requests_end_as_cancelled(whole):
    wait_until(lambda: active_requests(whole) == 0, "the gauge knows that the requests before have ended")
    begun = lambda: wait_until(lambda: active_requests(whole) == 1, "the request is in the engine")
    errors = outside.llmapi_client(whole, PROMPT, LONG, begun)
    assert [error.status() for error in errors] == ["StatusCode.CANCELLED"] * 2
    wait_until(lambda: active_requests(whole) == 0, "the slot is free")


@pytest.mark.server
def test_a_stop_request_without_an_id_is_told_so_and_one_for_nobody_is_cancelled_itself(whole):
    for request_id, status in (("", "INVALID_ARGUMENT"), ("nobody's", "CANCELLED")):
        with pytest.raises(InferenceServerException) as caught:
            outside.infer(whole, "grpc", MODEL, outside.llmapi_stop(), request_id)
        assert caught.value.status() == f"StatusCode.{status}"


@pytest.mark.server
def test_curl_asks_and_stops(whole, answer):
    """The lines of tensorrtllm_backend's README; Triton 2.51 takes the id from the body alone."""
    asked = generate(whole, text_input=PROMPT, sampling_param_max_tokens=LENGTH)
    assert asked.json()["text_output"] == PROMPT + answer
    wait_until(lambda: active_requests(whole) == 0, "the gauge knows that the request before has ended")
    told = []
    ask = lambda: told.append(generate(whole, text_input=PROMPT, sampling_param_max_tokens=LONG, id="7"))
    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: active_requests(whole) == 1, "the request is in the engine")
    stopped = generate(whole, text_input="", stop=True, id="7")
    thread.join()
    assert all(response.is_error and "cancelled" in response.json()["error"] for response in (stopped, *told))


@pytest.mark.server
def test_each_piece_of_a_stream_has_all_that_came_before(streaming, answer):
    reply = generate(streaming, "generate_stream", text_input=PROMPT, sampling_param_max_tokens=LENGTH, streaming=True)
    texts = [json.loads(line.removeprefix("data: "))["text_output"] for line in reply.text.splitlines() if line]
    assert len(texts) == LENGTH and texts[-1] == answer
    assert all(later.startswith(earlier) for earlier, later in zip(texts, texts[1:]))


# What a request asks for ----------------------------------------------------------------------------------------------


@pytest.mark.server
def test_reasons_and_log_probabilities_are_given_when_they_are_asked_for(whole, engine):
    asked = {"text_input": PROMPT, "sampling_param_max_tokens": LENGTH}
    text, log_prob = engine(PROMPT, LENGTH)
    assert infer(whole, **asked) == {"text_output": text}
    all_three = {f"return_{name}": True for name in ("finish_reason", "stop_reason", "cumulative_logprob")}
    found = infer(whole, **asked, **all_three)
    assert found.pop("cumulative_logprob") == pytest.approx(log_prob, rel=1e-3)
    assert found == {"text_output": text, "finish_reason": "length", "stop_reason": "None"}
    stop = text[3:5]
    found = infer(
        whole, **{**asked, "sampling_param_max_tokens": LONG}, sampling_param_stop=["none", stop], **all_three
    )
    assert found["text_output"] == text[: text.index(stop)]
    assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop)


@pytest.mark.server
def test_no_more_is_made_than_tensorrt_llm_makes_where_nothing_is_said(whole, engine):
    assert infer(whole, text_input=PROMPT)["text_output"] == engine(PROMPT, 32)[0]


@pytest.mark.server
@pytest.mark.parametrize(
    ("chosen", "same"),
    [
        ({"temperature": 0.0, "top_p": 0.9}, {}),
        ({"top_p": 0.0, "top_k": 50, "temperature": 2.0}, {}),
        ({"temperature": 5.0}, {"temperature": 5.0, "top_p": 1.0}),
        ({"top_k": 50, "temperature": 5.0, "seed": 3}, {"top_k": 50, "temperature": 5.0, "random_seed": 3}),
        ({"presence_penalty": 1.5, "frequency_penalty": 1.0}, {"presence_penalty": 1.5, "frequency_penalty": 1.0}),
    ],
)
def test_tokens_are_chosen_as_its_sampling_params_say(whole, engine, chosen, same):
    """Temperature alone draws; any of three that says so is greedy."""
    asked = {f"sampling_param_{name}": value for name, value in chosen.items()}
    found = infer(whole, text_input=PROMPT, sampling_param_max_tokens=8, **asked)
    assert found["text_output"] == engine(PROMPT, 8, **same)[0]


@pytest.mark.server
@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"image_url": ["data:image/png;base64,AAAA"]}, "read text alone"),
        ({"lora_id": 7, "lora_name": "mine", "lora_path": "/adapters/mine"}, "no LoRA"),
        ({"sampling_param_best_of": 2}, "one request gets one answer"),
        ({"sampling_param_return_perf_metrics": True}, "no figures of its own"),
        ({"streaming": True}, "triton_config.decoupled"),
        ({"text_input": " "}, "text_input is empty"),
        ({"text_input": ["One", "two"]}, "one prompt"),
        ({"sampling_param_max_tokens": 0}, "max_tokens"),
        ({"sampling_param_top_p": 2.0}, "top_p"),
    ],
)
def test_what_it_cannot_do_is_refused_with_the_reason(whole, asked, why):
    with pytest.raises(CourseError, match=why):
        infer(whole, **{"text_input": PROMPT, "sampling_param_max_tokens": 2, **asked})


@pytest.mark.server
def test_what_asks_for_nothing_is_taken(whole):
    asked = {"sampling_param_best_of": 1, "sampling_param_return_perf_metrics": False, "lora_id": 0, "image_url": [""]}
    assert infer(whole, text_input=PROMPT, sampling_param_max_tokens=2, streaming=False, stop=False, **asked)


# The course's clients -------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_the_courses_client_asks_it_by_its_own_names(whole, streaming, engine, answer):
    for client in (Client(whole.grpc_url), Client(streaming.grpc_url)):
        assert client.is_ready() and client.ask(PROMPT, LENGTH).text == answer
        assert client.ask(PROMPT, LENGTH, exclude_input_in_output=False).text == PROMPT + answer
        drawn = client.ask(PROMPT, 8, temperature=5.0, top_k=50, random_seed=3).text
        assert drawn == engine(PROMPT, 8, temperature=5.0, top_k=50, random_seed=3)[0]
        with pytest.raises(CourseError, match="no option 'bad_words'"):
            client.ask(PROMPT, LENGTH, bad_words=["one"])
    streamed = client.stream(PROMPT, LENGTH).read()
    assert streamed.text == answer and len(streamed.pieces) == LENGTH
    stop = answer[3:5]
    assert client.stream(PROMPT, LONG, stop_words=[stop]).read().text == answer[: answer.index(stop)]


@pytest.mark.server
def test_a_notebook_attaches_to_one_and_leaves_it_as_it_is(whole, engine_dir, tmp_path, capsys, answer):
    lesson = repository.assemble(tmp_path / "repo", engine_dir, decoupled_mode=True)
    address = Address(whole.http_url, whole.grpc_url, whole.metrics_url)
    with Server(lesson, address=address) as server, Client(server.grpc_url) as client:
        assert "TensorRT-LLM's model of today" in capsys.readouterr().err
        assert [row.name for row in server.models()] == [MODEL]
        assert client.ask(PROMPT, LENGTH).text == answer
    assert whole.is_alive()


# Its settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.server
def test_what_it_obeys_reaches_the_engine_also_when_it_is_loaded_again(engine_dir, tmp_path):
    repo = assembled(tmp_path, engine_dir, STOCK)
    with Server(repo, drain_s=0) as server:
        request_slots = lambda: metric(server, "nv_trt_llm_request_metrics", request_type="max")
        blocks = lambda: metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max")
        assert request_slots() == 4
        more = {"max_batch_size": 2, "max_num_tokens": 128, "enable_chunked_prefill": True}
        more["kv_cache_config"] = {"max_tokens": 6400, "free_gpu_memory_fraction": 0.4, "enable_block_reuse": True}
        more["scheduler_config"] = {"capacity_scheduler_policy": "STATIC_BATCH"}
        settings = yaml.safe_load((repo / SETTINGS).read_text()) | more
        settings["triton_config"]["decoupled"] = True
        (repo / SETTINGS).write_text(yaml.safe_dump(settings))
        server.load(MODEL)
        wait_until(lambda: request_slots() == 2 and blocks() == 200, "the engine has other limits")
        with Client(server.grpc_url) as client:
            assert client.is_decoupled()
            assert len(client.stream(PROMPT, LENGTH).read().pieces) == 1, "V1 answers at once"


def test_a_repository_of_it_has_one_model_and_its_values(tmp_path):
    values = {"batch_scheduler_policy": "max_utilization", "enable_kv_cache_reuse": "true", "decoupled_mode": True}
    repo = assembled(tmp_path, "/engines/a: b", **values)
    assert repository.models(repo) == [MODEL] and repository.problems(repo) == []
    settings = yaml.safe_load((repo / SETTINGS).read_text())
    assert settings["model"] == "/engines/a: b" and settings["triton_config"]["decoupled"] is True
    assert settings["kv_cache_config"]["enable_block_reuse"] is True
    assert settings["scheduler_config"]["capacity_scheduler_policy"] == "MAX_UTILIZATION"
    for wrong, fact in (({"batching_strategy": "V1"}, "no variable"), ({"models": ("batch-cost",)}, "has one model")):
        with pytest.raises(CourseError, match=fact):
            repository.assemble(tmp_path / "other", "/engines/a", contract="llmapi", **wrong)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("tensor_parallel_size: 2", "tensor_parallel_size: It is 2. .* 1, as the engine computes on one device"),
        ("triton_config: {max_batch_size: 8}", "triton_config.max_batch_size: It is 8. .* one prompt"),
        ("kv_cache_config: {dtype: fp8}", "kv_cache_config.dtype: .* when the engine is built"),
        ("speculative_config: {decoding_type: Eagle3}", "speculative_config: .* it must be NGram"),
        ("lora_config: {lora_dir: [/adapters]}", "lora_config: This engine has no such setting. It has: model, "),
        ("enable_chunked_prefil: true", "Did you mean 'enable_chunked_prefill'"),
        ("max_num_tokens: many", "max_num_tokens: It is 'many'. .* integer"),
        ("scheduler_config: {capacity_scheduler_policy: guaranteed_no_evict}", "'GUARANTEED_NO_EVICT', 'MAX_UTIL"),
        ("model: ", "model: It has no value"),
        ("model: [", "syntax"),
        ("kv_cache_config: 7", "kv_cache_config: It has no keys"),
    ],
)
def test_a_setting_that_it_has_not_is_told_with_the_reason_before_a_server_starts(tmp_path, settings, said):
    model = "" if settings.startswith("model") else "model: /engines/a\n"
    repo = assembled(tmp_path, "/engines/a", model + settings.replace("{", "{{").replace("}", "}}"))
    with pytest.raises(CourseError, match=said):
        Server(repo).start()


@pytest.mark.server
def test_openais_server_does_not_stand_in_front_of_it(whole, small_engine):
    with pytest.raises(CourseError, match="leave out --contract llmapi"):
        OpenAIServer(whole.grpc_url, small_engine)
