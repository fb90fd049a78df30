"""The table of what a request may ask for: it fits the engine's requests, and says in each place what it refuses."""

import dataclasses

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.engine.messages import Guide, Request
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError
from inflight.triton.repository.layout import BASELINE, ENGINE
from inflight.triton.repository.request import FIELDS, OPENAI, arrays_for, engine_request, fields

PLACES = ("ensemble", "preprocessing", "tensorrt_llm", "llama-python", "llmapi", OPENAI)
OF_ADAPTERS = {"input_lengths", "stop", "exclude_input_in_output", "finish_reason", "stop_reason"}


def test_what_a_field_asks_for_is_the_engines_or_a_models_own():
    known = {field.name for field in dataclasses.fields(Request)} | OF_ADAPTERS
    known |= {f"sampling.{field.name}" for field in dataclasses.fields(SamplingConfig)}
    known |= {f"guide.{field.name}" for field in dataclasses.fields(Guide)}
    assert {field.asks for field in FIELDS} - {""} <= known


@pytest.mark.parametrize("place", PLACES)
def test_no_two_fields_have_the_same_name_in_a_place(place):
    assert len(fields(place)) == sum(place in field.places for field in FIELDS)


def test_what_is_asked_for_becomes_the_engines_request():
    asked = {"input_ids": [1, 2], "request_output_len": 3, "sampling.top_k": 4, "sampling.top_p": None, "end_id": None}
    assert engine_request(asked) == Request([1, 2], 3, sampling=SamplingConfig(top_k=4))
    with pytest.raises(CourseError, match="top_k is -1"):
        engine_request({**asked, "sampling.top_k": -1})
    guided = {**asked, "guide.kind": "regex", "guide.text": "a+"}
    assert engine_request(guided).guide == Guide("regex", "a+")
    with pytest.raises(CourseError, match="without its guided_decoding_guide_type"):
        engine_request({**guided, "guide.kind": None})


def served(name="tensorrt_llm", max_batch_size=8, **inputs):
    """The config of a model; of each input the type, the shape, and whether it may be left out."""
    config = ModelConfig(name=name, max_batch_size=max_batch_size)
    for own, (kind, dims, optional) in inputs.items():
        config.input.add(name=own, data_type=f"TYPE_{kind}", dims=dims, optional=optional)
    return config


@pytest.mark.parametrize("max_batch_size", [0, 8])
@pytest.mark.parametrize(
    ("kind", "dims", "value", "sent"),
    [
        ("INT32", [1], 7, np.array([7], np.int32)),
        ("INT32", [-1], (1, 2), np.array([1, 2], np.int32)),
        ("INT32", [2, -1], [1, 2, 3], np.array([[1, 2, 3]], np.int32)),
        ("UINT64", [1], -1, np.array([2**64 - 1], np.uint64)),
        ("INT32", [1], -1, np.array([-1], np.int32)),
        ("INT32", [1], 2**31 - 1, np.array([2**31 - 1], np.int32)),
        ("FP32", [1], 0.5, np.array([0.5], np.float32)),
        ("FP16", [-1], [0.5, 1], np.array([0.5, 1], np.float16)),
        ("BOOL", [1], True, np.array([True])),
        ("STRING", [-1], ["é", b"x"], np.array(["é".encode(), b"x"], object)),
    ],
)
def test_a_value_becomes_an_array_of_the_served_models_type_and_shape(kind, dims, value, sent, max_batch_size):
    [array] = arrays_for(served(max_batch_size=max_batch_size, own=(kind, dims, False)), {"own": value}).values()
    assert array.dtype == sent.dtype and array.tolist() == (sent[None] if max_batch_size else sent).tolist()


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("INT32", 2**31, "from -2147483648 to 2147483647"),
        ("UINT32", -2, "from 0 to 4294967295"),
        ("INT32", 1.5, "it takes whole numbers"),
        ("FP32", "hot", "cannot be sent as FP32"),
        ("STRING", 7, "cannot be sent as STRING"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind, value, message):
    with pytest.raises(CourseError, match=f"own is {value!r}, which cannot be sent as {kind}") as caught:
        arrays_for(served(own=(kind, [1], False)), {"own": value})
    assert message in str(caught.value)


def test_a_client_writes_the_courses_names_and_each_model_gets_its_own():
    ours = {"max_tokens": 3, "temperature": 0.5}
    number, share = ("INT32", [1], False), ("FP32", [1], True)
    for config, names in (
        (served("ensemble", max_tokens=number, temperature=share), {"max_tokens", "temperature"}),
        (served(request_output_len=number, temperature=share), {"request_output_len", "temperature"}),
        (
            served(
                text_input=("STRING", [-1], False),
                sampling_param_max_tokens=number,
                sampling_param_temperature=share,
                sampling_param_exclude_input_from_output=("BOOL", [1], True),
            ),
            {"sampling_param_max_tokens", "sampling_param_temperature", "sampling_param_exclude_input_from_output"},
        ),
        (
            served("ensemble", max_tokens=number, temperature=share, bad_words=("STRING", [-1], False),
                   stop_words=("STRING", [-1], True)),
            {"max_tokens", "temperature", "bad_words"},  # which TensorRT-LLM 0.5 requires
        ),
    ):  # fmt: skip
        assert arrays_for(config, ours).keys() == names
    today = served(text_input=("STRING", [-1], False), sampling_param_exclude_input_from_output=("BOOL", [1], True))
    assert arrays_for(today, {})["sampling_param_exclude_input_from_output"].all()
    with pytest.raises(CourseError, match="There is no option 'max_token'. Did you mean"):
        arrays_for(served("ensemble", max_tokens=number), {"max_token": 3})


ASKS = {  # a field of a place -> values that ask for nothing, and values that ask for something
    (ENGINE, "runtime_top_p_decay"): ([[1.0], []], [[0.5], [1.0, 0.5]]),
    (ENGINE, "decoder_input_lengths"): ([[0], [1]], [[2]]),
    (ENGINE, "decoder_input_ids"): ([[[7]], [[]]], [[[7, 8]]]),
    (ENGINE, "draft_input_ids"): ([[]], [[0]]),
    (ENGINE, "embedding_bias"): ([[], [0.0, 0.0]], [[0.0, 1.0]]),
    (ENGINE, "len_penalty"): ([[7.0]], []),
    (ENGINE, "return_context_logits"): ([[False]], [[True]]),
    (BASELINE, "top_k"): ([[0], [1]], [[2], [1, 2]]),
    (OPENAI, "n"): ([1], [2]),
    (OPENAI, "min_p"): ([0], [0.1]),
    (OPENAI, "function_call"): (["auto", "none"], ["all", {"name": "f"}]),
    (OPENAI, "text"): ([{}, {"format": None}, {"format": {"type": "text"}}, "a"], [{"format": {"type": "json"}}]),
}


@pytest.mark.parametrize(("place", "name"), ASKS)
def test_what_the_engine_has_not_is_taken_when_it_asks_for_nothing_and_else_refused(place, name):
    field, (nothing, something) = fields(place)[name], ASKS[place, name]
    made = (lambda value: value) if place == OPENAI else np.array
    assert [field.refusal(place, made(value)) for value in nothing] == [None] * len(nothing)
    for value in something:
        called = field.name if place != OPENAI else name
        assert field.refusal(place, made(value)).startswith(f"{called} must be {field.must_be}: ")
