"""Structured output and tools through OpenAI's protocol and TensorRT-LLM's tensors, as outside clients ask for them."""

from functools import partial

import httpx
import openai
import pydantic
import pytest

from inflight.triton.client import Client
from inflight.triton.openai_server import OpenAIServer

pytestmark = pytest.mark.server

ASKED = [{"role": "user", "content": "What is the weather in Lima, in celsius?"}]


class Place(pydantic.BaseModel, extra="forbid"):
    city: str = pydantic.Field(max_length=20)


class Weather(pydantic.BaseModel, extra="forbid"):
    place: Place
    unit: str = pydantic.Field(pattern="^(celsius|fahrenheit)$")
    other: list[Place] = pydantic.Field(max_length=2)


def called(name, **more):
    return {"type": "function", "function": {"name": name, **more}}


TOOL, OTHER = called("weather-of", parameters=Weather.model_json_schema()), called("other")


@pytest.fixture(scope="module")
def client(streaming_server, course_engine):
    with OpenAIServer(streaming_server.grpc_url, course_engine) as served:
        with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            yield client


@pytest.fixture
def ask(client):
    return partial(client.chat.completions.create, model="tensorrt_llm", temperature=0, max_tokens=150, messages=ASKED)


def test_openais_package_parses_a_pydantic_class(client):
    answer = client.chat.completions.parse(
        messages=ASKED, response_format=Weather, model="tensorrt_llm", max_tokens=150
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


CHOSEN = (
    {"choice": ["Lima", "nowhere"]},
    {"regex": "(Lima)|(no)"},
    {"grammar": 'root ::= "Lima"'},
    {"json": {"const": 7}},
)


@pytest.mark.parametrize("wanted", CHOSEN)
def test_vllms_structured_outputs(client, ask, wanted):
    body = {"structured_outputs": wanted}
    [chat] = ask(extra_body=body).choices
    plain = client.completions.create(model="tensorrt_llm", prompt="Lima", extra_body=body).choices[0].text
    assert {chat.message.content, plain} <= {"Lima", "nowhere", "no", "7"} and chat.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", called("weather-of")])
def test_a_required_tool_is_called_whole_and_streamed(ask, choice):
    must = partial(ask, tools=[OTHER, TOOL] if choice != "required" else [TOOL], tool_choice=choice)
    [whole] = must().choices
    assert whole.message.content is None and whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls
    assert call.function.name == "weather-of" and Weather.model_validate_json(call.function.arguments)

    pieces = [chunk.choices[0] for chunk in must(stream=True)]
    calls = [piece.delta.tool_calls[0].function for piece in pieces if piece.delta.tool_calls]
    assert "".join(each.arguments for each in calls) == call.function.arguments
    assert [each.name for each in calls if each.name] == ["weather-of"]
    assert pieces[-1].finish_reason == "tool_calls" and not any(piece.delta.content for piece in pieces)

    turn = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    assert ask(messages=[*ASKED, turn, result]).choices[0].message.content


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_without_need_an_answer_may_be_text(ask, choice):
    hello = [{"role": "user", "content": "Say hello."}]
    [message] = (one.message for one in ask(messages=hello, tools=[TOOL, OTHER], tool_choice=choice).choices)
    assert message.content or (message.tool_calls and choice == "auto")


@pytest.mark.parametrize(
    "param, body",
    [
        ("response_format", {"response_format": {"type": "json_schema"}}),
        ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objct"}}}}),
        ("response_format", {"response_format": {"type": "grammar"}}),
        ("structured_outputs", {"structured_outputs": {"regex": "(a"}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
        ("structured_outputs", {"structured_outputs": {"structural_tag": "a"}}),
        ("structured_outputs", {"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": OTHER}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tools", {"tools": [called("a b")]}),
        ("tools", {"tools": [called("f", parameters={"not": {}})]}),
    ],
)
def test_what_cannot_be_followed_is_refused_and_named(ask, param, body):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(extra_body=body)
    assert refused.value.param == param


def test_tensorrt_llms_tensors_guide_the_ensemble_and_the_engine(streaming_server):
    def ask(kind, guide):
        return client.ask("A year:", 9, guided_decoding_guide_type=kind, guided_decoding_guide=guide).text.strip()

    with Client(streaming_server.grpc_url) as client:
        assert ask("regex", "[0-9]{4}").isdigit() and ask("json_schema", '{"enum": [1234]}') == "1234" and ask("", "")
    url = f"{streaming_server.http_url}/v2/models/ensemble/generate"
    for guide in ({"guided_decoding_guide_type": "structural_tag"}, {"guided_decoding_guide": "[0-9]"}):
        response = httpx.post(url, json={"text_input": "A year:", "max_tokens": 4, **guide})
        assert response.status_code >= 400 and "guide" in response.json()["error"]
