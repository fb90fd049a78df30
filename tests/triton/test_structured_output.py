"""Structured output and tools through OpenAI's protocol and TensorRT-LLM's tensors, as outside clients ask for them."""

import httpx
import openai
import pydantic
import pytest

from inflight.triton.client import Client
from inflight.triton.openai_server import OpenAIServer

pytestmark = pytest.mark.server

MODEL = {"model": "tensorrt_llm", "temperature": 0, "max_tokens": 150}
ASKED = [{"role": "user", "content": "What is the weather in Lima, in celsius?"}]


class Place(pydantic.BaseModel, extra="forbid"):
    city: str = pydantic.Field(max_length=20)


class Weather(pydantic.BaseModel, extra="forbid"):
    place: Place
    unit: str = pydantic.Field(pattern="^(celsius|fahrenheit)$")
    other: list[Place] = pydantic.Field(max_length=2)


TOOL = {"type": "function", "function": {"name": "weather-of", "parameters": Weather.model_json_schema()}}


@pytest.fixture(scope="module")
def client(streaming_server, course_engine):
    with OpenAIServer(streaming_server.grpc_url, course_engine) as served:
        with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            yield client


def test_openais_package_parses_a_pydantic_class(client):
    answer = client.chat.completions.parse(messages=ASKED, response_format=Weather, **MODEL)
    assert isinstance(answer.choices[0].message.parsed, Weather)


@pytest.mark.parametrize(
    "wanted, texts",
    [
        ({"choice": ["Lima", "nowhere"]}, ("Lima", "nowhere")),
        ({"regex": "[ab]{2}"}, ("aa", "ab", "ba", "bb")),
        ({"grammar": 'root ::= "x"'}, ("x",)),
        ({"json": {"const": 7}}, ("7",)),
    ],
)
def test_vllms_structured_outputs(client, wanted, texts):
    chat = client.chat.completions.create(messages=ASKED, extra_body={"structured_outputs": wanted}, **MODEL)
    plain = client.completions.create(prompt="Lima", extra_body={"structured_outputs": wanted}, **MODEL)
    assert chat.choices[0].message.content in texts and plain.choices[0].text in texts
    assert chat.choices[0].finish_reason == "stop"


def test_a_cut_answer_says_so(client):
    answer = client.chat.completions.create(
        messages=ASKED, response_format={"type": "json_object"}, **{**MODEL, "max_tokens": 1}
    )
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather-of"}}])
def test_a_required_tool_is_called_whole_and_streamed(client, choice):
    given = {"messages": ASKED, "tools": [TOOL], "tool_choice": choice, **MODEL}
    whole = client.chat.completions.create(**given).choices[0]
    assert whole.message.content is None and whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls
    assert call.function.name == "weather-of" and Weather.model_validate_json(call.function.arguments)

    pieces = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **given)]
    calls = [piece.delta.tool_calls[0] for piece in pieces if piece.delta.tool_calls]
    assert "".join(each.function.arguments for each in calls) == call.function.arguments
    assert [each.function.name for each in calls if each.function.name] == ["weather-of"]
    assert pieces[-1].finish_reason == "tool_calls" and not any(piece.delta.content for piece in pieces)

    turn = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    after = client.chat.completions.create(messages=[*ASKED, turn, result], **MODEL)
    assert after.choices[0].message.content


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_without_need_an_answer_may_be_text(client, choice):
    hello = [{"role": "user", "content": "Say hello."}]
    given = {"messages": hello, "tools": [TOOL], "tool_choice": choice, **MODEL}
    message = client.chat.completions.create(**given).choices[0].message
    assert message.content or message.tool_calls
    assert choice == "auto" or not message.tool_calls


@pytest.mark.parametrize(
    "body, param",
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objct"}}}}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": ["b"]}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]}, "tools"),
    ],
)
def test_what_cannot_be_followed_is_refused_and_named(client, body, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(messages=ASKED, extra_body=body, **MODEL)
    assert refused.value.param == param


def test_tensorrt_llms_tensors_guide_the_ensemble_and_the_engine(streaming_server):
    with Client(streaming_server.grpc_url) as client:
        kinds = {"regex": "[0-9]{4}", "json_schema": '{"enum": [1234]}', "": ""}
        answers = {
            kind: client.ask("A year:", 9, guided_decoding_guide_type=kind, guided_decoding_guide=guide).text
            for kind, guide in kinds.items()
        }
    assert answers["regex"].strip().isdigit() and answers["json_schema"].strip() == "1234"
    url = f"{streaming_server.http_url}/v2/models/ensemble/generate"
    for guide in ({"guided_decoding_guide_type": "structural_tag"}, {"guided_decoding_guide": "[0-9]"}):
        response = httpx.post(url, json={"text_input": "A year:", "max_tokens": 4, **guide})
        assert response.status_code >= 400 and "guide" in response.json()["error"]
