"""The table of what a request may ask for: it fits the engine's requests, and says in each place what it refuses."""

import dataclasses

import pytest

from inflight.engine.messages import Guide, Request
from inflight.engine.settings import SamplingConfig
from inflight.errors import CourseError
from inflight.triton.client.request import FIELDS, OPENAI, engine_request, fields

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
