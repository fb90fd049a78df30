"""Structured output and tools through OpenAI's protocol and TensorRT-LLM's tensors, as outside clients ask for them."""

import json
import re
from functools import partial

import httpx
import numpy as np
import openai
import pydantic
import pytest

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.folder import read
from inflight.engine.grammar import Guides
from inflight.engine.messages import Guide
from inflight.openai.server import OpenAIServer
from inflight.openai.tools import ANY_OBJECT, Tool, ToolParser, Tools
from inflight.triton.client.client import Client

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
    ({"choice": ["Lima", "nowhere"]}, {"Lima", "nowhere"}),
    ({"regex": "(Lima)|(no)"}, {"Lima", "no"}),
    ({"grammar": 'root ::= "Lima"'}, {"Lima"}),
    ({"json": {"const": 7}}, {"7"}),
)


@pytest.mark.parametrize(("wanted", "allowed"), CHOSEN)
def test_vllms_structured_outputs(client, ask, wanted, allowed):
    body = {"structured_outputs": wanted}
    [chat] = ask(extra_body=body).choices
    plain = client.completions.create(model="tensorrt_llm", prompt="Lima", extra_body=body).choices[0].text
    assert {chat.message.content, plain} <= allowed and chat.finish_reason == "stop"


@pytest.mark.parametrize("choice", ["required", called("weather-of")])
def test_a_required_tool_is_called_whole_and_streamed(ask, choice):
    must = partial(ask, tools=[OTHER, TOOL] if choice != "required" else [TOOL], tool_choice=choice)
    [whole] = must().choices
    assert whole.message.content is None and whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls
    assert call.function.name == "weather-of" and Weather.model_validate_json(call.function.arguments)
    assert call.model_dump().keys() == {"id", "type", "function"}, "an index is of pieces alone"

    pieces = [chunk.choices[0] for chunk in must(stream=True)]
    calls = [piece.delta.tool_calls[0].function for piece in pieces if piece.delta.tool_calls]
    assert "".join(each.arguments for each in calls) == call.function.arguments
    assert [each.name for each in calls if each.name] == ["weather-of"]
    assert pieces[-1].finish_reason == "tool_calls" and not any(piece.delta.content for piece in pieces)

    turn = {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}
    assert ask(messages=[*ASKED, turn, result]).choices[0].message.content


FORMS = {
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "P", "schema": {"enum": ["a", 7]}}}},
    "any object": {"response_format": {"type": "json_object"}},
    "its schema": {"response_format": {"type": "json_object", "schema": {"enum": ["a", 7]}}},
    "flat schema": {"response_format": {"type": "json_schema", "name": "P", "schema": {"enum": ["a", 7]}}},
    "regex": {"structured_outputs": {"regex": "[0-9]{3}"}},
    "choice": {"structured_outputs": {"choice": ["Lima", "nowhere"]}},
    "GBNF": {"structured_outputs": {"grammar": 'root ::= "Lima" | "no"'}},
    "Lark": {"structured_outputs": {"grammar": '?start: "Lima" | "no"', "json": None, "disable_fallback": False}},
}


def follows(form, said):
    if form == "any object":
        return isinstance(json.loads(said), dict)
    return said in ('"a"', "7", "Lima", "nowhere", "no") or re.fullmatch("[0-9]{3}", said)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["auto", "required", "none"])
def test_with_tools_and_a_form_the_answer_is_a_call_or_has_the_form(ask, form, choice):
    either = partial(ask, tools=[TOOL, OTHER], tool_choice=choice, extra_body=FORMS[form])
    [whole] = either().choices
    if choice == "required" or (choice == "auto" and whole.message.tool_calls):
        [call] = whole.message.tool_calls
        assert whole.message.content is None and whole.finish_reason == "tool_calls"
        made = Weather.model_validate_json if call.function.name == "weather-of" else {"{}": True}.__getitem__
        assert made(call.function.arguments)
    else:
        assert whole.finish_reason == "length" or follows(form, whole.message.content)
    pieces = [chunk.choices[0] for chunk in either(stream=True)]
    said = "".join(piece.delta.content or "" for piece in pieces)
    calls = [piece.delta.tool_calls[0].function for piece in pieces if piece.delta.tool_calls]
    assert pieces[-1].finish_reason == whole.finish_reason and said == (whole.message.content or "")
    assert "".join(each.arguments for each in calls) == "".join(
        each.function.arguments for each in whole.message.tool_calls or ()
    )


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
NESTED = {"type": "object", "properties": {"who": {"$ref": "#/$defs/P"}}, "required": ["who"], "$defs": {"P": PERSON}}
CALLS = {
    '{"name": "f", "arguments": {"who": {"name": "Ana"}}}': '{"who": {"name": "Ana"}}',
    '{"name": "f-2", "arguments": {}}': "{}",
}
NO_CALLS = [
    '{"name": "f", "arguments": {"who": {"name": "Ana", "size": 3}}}',
    '{"name": "f", "arguments": {"who": {"name": "Ana"}, "and": 1}}',
    '{"name": "f-2", "arguments": {"and": 1}}',
    '{"name": "g", "arguments": {}}',
]
ANSWERS = {
    None: ["Hello {you}", ""],
    Guide("json_schema", json.dumps(PERSON)): ['{"name": "f", "age": 3}', '{"name": "Ana"}'],
    ANY_OBJECT: ['{"name": "f"}', '{"a": {"arguments": 1}}', "{}"],
    Guide("regex", r"\{\d\}|a/b"): ["{3}", "a/b"],
    Guide("choice", '["yes", "{"]'): ["yes", "{"],
    Guide("ebnf_grammar", '?start: "{" WORD "}"\nWORD: /[a-z]+/\n%ignore / +/'): ["{ab}"],
}


@pytest.mark.parametrize("form", ANSWERS)
def test_both_a_call_and_the_form_are_reached_and_nothing_else(course_engine, form):
    tools = Tools(
        [
            Tool.model_validate(called("f", parameters=NESTED, strict=True)),
            Tool.model_validate(called("f-2", parameters=None)),
        ],
        "auto",
    )
    guides, tokenizer = Guides(read(course_engine)), load_tokenizer(course_engine)
    for text in [*CALLS, *NO_CALLS, *ANSWERS[form]]:
        tokens, must_not = [*tokenizer.encode(text), tokenizer.end_id], text in NO_CALLS
        # What the model itself would begin with: a call, or something else.
        liked = tokens[0] if form is None or text in CALLS or must_not else tokenizer.encode("The")[0]
        matcher, allows = guides.matcher(tools.guide("form", form)), True
        for place, token in enumerate(tokens):
            logits = np.zeros(tokenizer.vocab_size)
            logits[liked] = 1
            matcher.mask(tokens[:place], logits)
            allows = bool(np.isfinite(logits[token]))
            if not allows:
                break
            matcher.take(token)
        assert allows != must_not, text


def test_a_model_that_would_not_call_gives_the_form(ask):
    """Beside a form, a call is made where it would be made without one: an agent's turns come to an end."""
    turn = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", **called("weather-of", arguments="{}")}]}
    told = [*ASKED, turn, {"role": "tool", "tool_call_id": "1", "content": "It is sunny in Lima, 21 degrees."}]
    for messages in (ASKED, told):
        [free] = ask(messages=messages, tools=[TOOL]).choices
        [formed] = ask(messages=messages, tools=[TOOL], extra_body=FORMS["schema"]).choices
        assert bool(free.message.tool_calls) == bool(formed.message.tool_calls)
        assert formed.message.tool_calls or follows("schema", formed.message.content)


@pytest.mark.parametrize("length", [1, 5, 1000])
@pytest.mark.parametrize("text", [*CALLS, '{"name": "fine"}', '{"name": "f"', "{", "Hello"])
def test_what_is_sent_is_a_call_or_a_text_however_it_is_cut(text, length):
    tools = Tools([Tool.model_validate(called(name)) for name in ("f", "f-2")], None)
    parser, pieces = ToolParser(tools.begins), [text[place : place + length] for place in range(0, len(text), length)]
    told = [parser.add(piece, number == len(pieces)) for number, piece in enumerate(pieces, 1)]
    said, arguments = ("".join(each) for each in zip(*told))
    assert (said, arguments) == (("", CALLS[text]) if text in CALLS else (text, ""))
    assert parser.is_call == bool(parser.name) == (text in CALLS)


def test_a_call_that_is_cut_has_all_that_came_of_its_arguments():
    parser = ToolParser(Tools([Tool.model_validate(called("f"))], None).begins)
    told = [parser.add('{"name": "f", "arguments": {"a": {"b"', False), parser.add(": {}", True)]
    assert told == [("", '{"a": {"b'), ("", '": {}')] and parser.name == "f" and not parser.is_call


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_of_allowed_tools_no_other_is_called(ask, mode):
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [called("other")]}}
    [answer] = ask(tools=[TOOL, OTHER], tool_choice=allowed, parallel_tool_calls=True).choices
    names = [call.function.name for call in answer.message.tool_calls or ()]
    assert names == ["other"] or (mode == "auto" and answer.message.content)


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
        ("structured_outputs", {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
        ("response_format", {"response_format": {"type": "regex", "value": "a"}}),
        ("response_format", {"response_format": {"type": "json_object", "value": {"type": "object"}}}),
        ("response_format", {"response_format": {"type": "structural_tag", "structures": []}}),
        ("response_format", {"response_format": {"type": "text", "schema": {}}}),
        (
            "response_format",
            {"response_format": {"type": "json_object", "schema": {"uniqueItems": True}}, "tools": [TOOL]},
        ),
        ("tool_choice", {"tools": [TOOL], "tool_choice": "any"}),
        (
            "tool_choice",
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}},
            },
        ),
        ("tools", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}),
        ("structured_outputs", {"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}}),
        ("tool_choice", {"tools": [TOOL], "tool_choice": OTHER}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tools", {"tools": [called("a b")]}),
        ("tools", {"tools": [called("f", parameters={"not": {"type": "null"}})]}),
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
