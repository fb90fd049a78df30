"""Bodies of requests, as pydantic reads them.

Fields of the protocol: https://platform.openai.com/docs/api-reference (of `cache_salt`, `ignore_eos`,
`min_tokens`, `top_k`, `repetition_penalty`: vLLM's).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, Field, ValidationError
from pydantic_core import from_json

from inflight.openai.engine import Engine
from inflight.openai.errors import OpenAIError, of_body
from inflight.openai.tools import (
    MOST_TOOLS,
    AllowedTools,
    Called,
    Given,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolCall,
)
from inflight.triton.repository.layout import ENGINE
from inflight.triton.repository.request import OPENAI, fields

MOST_PROMPTS = 256  # of a request
MOST_STOPS, LONGEST_STOP = 64, 256  # the detokenizer looks for each of them after every token
LARGEST = 1e38  # that FP32 holds


def read(data: bytes, kind: type[ChatBody | CompletionBody], engine: Engine) -> ChatBody | CompletionBody:
    """Read the body of a request; raises OpenAIError, which says what is wrong with it, or that we do not have it."""
    given = _json_object(data)
    # Clients unpack the first, a request made by hand may not; ChatNVIDIA and benchmarks for Dynamo send the second.
    for name in ("extra_body", "nvext"):
        if isinstance(nested := given.get(name), dict):
            given = {**_without_nulls(nested), **given}
    _check_number(given.get(kind.PROMPT), kind.PROMPT, engine)
    for name, field in fields(OPENAI).items():
        if name in given and (refusal := field.refusal(OPENAI, given[name])):
            raise OpenAIError(refusal, name)
    try:
        body = kind(**given)
    except ValidationError as error:
        raise of_body(error, given) from None
    check_model(body.model)
    return body


def check_model(name: str) -> None:
    """Refuse any name but the engine's."""
    if name != ENGINE:
        raise OpenAIError(f"There is no model {name!r} here, but {ENGINE!r}.", "model", 404, "model_not_found")


def _check_number(given: Any, field: str, engine: Engine) -> None:
    """Refuse too many prompts, messages or tokens, the value of `field`, before any is looked at."""
    if not isinstance(given, list) or not given:
        return
    if field == ChatBody.PROMPT or not isinstance(given[0], (str, list)):  # each item has at least one token
        engine.check_length(len(given), engine.limits.max_input_len, "items", field)
    elif len(given) > MOST_PROMPTS:
        raise OpenAIError(f"There are {len(given)} prompts: send at most {MOST_PROMPTS} at once.", field)


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the fields of a body that are not null."""
    try:
        given = from_json(data, allow_inf_nan=False)  # unlike json, it limits depth and refuses half a character
    except ValueError as error:
        raise OpenAIError(f"The body is no JSON that can be read: {error}.") from None
    if not isinstance(given, dict):
        raise OpenAIError("The body is JSON, but no object: send {...} with the request's fields.")
    return _without_nulls(given)


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class Part(BaseModel):
    # claude-code-router calls a text input_text or output_text, as LangChain's agents do behind LiteLLM.
    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))


class Message(Given):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = Field(None, validation_alias=AliasChoices("content", "refusal"))
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Called | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it: most know neither `developer` nor parts, null and calls."""
        content = self.content
        calls = [*(call.function for call in self.tool_calls or ()), *([self.function_call] * bool(self.function_call))]
        if content is None and not (self.role == "assistant" and calls):
            raise OpenAIError(f"A message of the role {self.role} has no content: give it a text.", "messages")
        text = "".join(part.text for part in content) if isinstance(content, list) else content or ""
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        told = self.model_dump(exclude_none=True, include={"name", "tool_call_id"})
        return {**told, "role": role, "content": "\n".join(filter(None, (text, *map(str, calls))))}


# The fields of sampling, by OpenAI's names -> the course's.
SAMPLING = {name: field.name for name, field in fields(OPENAI).items() if field.asks.startswith("sampling.")}


class Body(BaseModel):
    """The fields of requests of both kinds; null counts as absent, and unknown fields are ignored."""

    model: str = ENGINE
    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    max_tokens: int | None = Field(None, ge=1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    ignore_eos: bool = False
    temperature: float | None = Field(None, ge=0, lt=LARGEST)
    top_k: int | None = Field(None, ge=-1, lt=2**31)  # -1: no limit
    top_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0, lt=LARGEST)
    presence_penalty: float | None = Field(None, gt=-LARGEST, lt=LARGEST)
    frequency_penalty: float | None = Field(None, gt=-LARGEST, lt=LARGEST)
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    seed: int | None = None
    cache_salt: str | None = Field(None, min_length=1)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | AllowedTools | None = None


class CompletionBody(Body):
    PROMPT: ClassVar = "prompt"  # the name of the field that has it
    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)


class ChatBody(Body):
    PROMPT: ClassVar = "messages"
    messages: list[Message] = Field(min_length=1)
