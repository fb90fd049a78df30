"""Turns `response_format`, `structured_outputs` and `tools` into the engine's guide, and answers into calls of tools.

`structured_outputs` is vLLM's, the others are OpenAI's. The chat template of a small model knows no tools, so they are
described in the system's turn. Its call is a JSON object with `name` and `arguments`, which the guide holds it to, so
nothing has to be found in free text.
"""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Json, model_validator

from inflight.engine.grammar import rule
from inflight.engine.json_schema import move
from inflight.engine.messages import Guide

MOST_TOOLS = 64
TOLD = """

You can call these functions. To call one, answer with nothing but a JSON object of its name and its arguments, as in
{"name": "...", "arguments": {...}}.
"""
ANY_OBJECT = Guide("json_schema", '{"type": "object"}')
# An object beside calls has no `arguments`: what looks like a call must follow the schema of its function.
NO_CALL = Guide("json_schema", '{"type": "object", "properties": {"arguments": false}, "additionalProperties": true}')
ANY_TEXT = r"/([^{](.|\n)*)?/"  # any text beside calls does not begin with a brace

Schema = dict[str, Any] | bool | Json[dict[str, Any]]


class Given(BaseModel):
    """Fields of which null counts as absent."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class Form(Given):
    """What an answer must be like."""

    model_config = ConfigDict(extra="forbid")  # the answer would not follow an unknown field


class JsonSchema(BaseModel):
    schema_: Schema = Field(alias="schema")


class ResponseFormat(Form):
    """OpenAI's form, and that of those who put `schema` beside `type`: llama.cpp, SGLang, Together."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Schema | None = Field(None, alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None) and self.schema_ is None:
            raise ValueError("json_schema belongs to the type json_schema, which must have it")
        if self.schema_ is not None and (self.type == "text" or self.json_schema is not None):
            raise ValueError("schema belongs to the types json_object and json_schema, and stands for json_schema")
        return self

    def guide(self) -> Guide | None:
        schema = self.json_schema.schema_ if self.json_schema else self.schema_
        if schema is not None:
            return Guide("json_schema", json.dumps(schema))
        return ANY_OBJECT if self.type == "json_object" else None


class StructuredOutputs(Form):
    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    ebnf_grammar: str | None = Field(None, alias="grammar")
    # These change nothing: white space is minimal, objects are closed, and there is no other backend to fall back to.
    disable_any_whitespace: bool = Field(False, exclude=True)
    disable_additional_properties: bool = Field(False, exclude=True)
    disable_fallback: bool = Field(False, exclude=True)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_dump(exclude_none=True)) > 1:
            raise ValueError("give one of json, json_object, regex, choice, grammar")
        return self

    def guide(self) -> Guide | None:
        for kind, value in self.model_dump(exclude_none=True).items():
            if kind == "json_object":
                return ANY_OBJECT if value else None
            return Guide(kind, value if isinstance(value, str) else json.dumps(value))
        return None


class Function(Given):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})

    def guide(self) -> Guide:
        """Make the guide that a call follows. A function whose schema names no parameters has none."""
        arguments = {"type": "object", **json.loads(json.dumps(self.parameters))}
        if not arguments.keys() & {"$ref", "allOf", "anyOf", "oneOf"}:
            arguments.setdefault("properties", {})
        move(arguments, "#/properties/arguments")
        parts = {"name": {"const": self.name}, "arguments": arguments}
        return Guide("json_schema", json.dumps({"type": "object", "properties": parts, "required": [*parts]}))


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class Named(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: Named

    @property
    def names(self) -> list[str]:
        return [self.function.name]

    @property
    def must_call(self) -> bool:
        return True


class Allowed(BaseModel):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(BaseModel):
    type: Literal["allowed_tools"]
    allowed_tools: Allowed

    @property
    def names(self) -> list[str]:
        return [each.function.name for each in self.allowed_tools.tools]

    @property
    def must_call(self) -> bool:
        return self.allowed_tools.mode == "required"


class Called(Given):
    name: str
    arguments: str | dict[str, Any] = ""

    def __str__(self) -> str:
        """As the model writes it."""
        arguments = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        return f"{_begin(self.name)}{arguments or '{}'}}}"


class ToolCall(BaseModel):
    function: Called


class Tools:
    """The functions that an answer may call.

    Parameters
    ----------
    tools : list of Tool
    choice : "auto", "none", "required", NamedTool or AllowedTools
        None is "auto".

    Raises
    ------
    ValueError
        There is no such function.
    """

    def __init__(self, tools: list[Tool], choice: str | NamedTool | AllowedTools | None):
        functions = {} if choice == "none" else {tool.function.name: tool.function for tool in tools}
        self._must_call = choice == "required"
        if isinstance(choice, (NamedTool, AllowedTools)):
            self._must_call = choice.must_call
            if unknown := [name for name in choice.names if name not in functions]:
                raise ValueError(f"tools has no function {unknown[0]!r}")
            functions = {name: functions[name] for name in choice.names}
        if self._must_call and not functions:
            raise ValueError("tools has no function that can be called")
        self._functions = [*functions.values()]

    def __bool__(self) -> bool:
        return bool(self._functions)

    @property
    def begins(self) -> dict[str, str]:
        """How a call begins -> the name of its function."""
        return {_begin(each.name): each.name for each in self._functions}

    def tell(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with the functions described in the system's turn."""
        told = TOLD + "\n".join(json.dumps(each.model_dump(exclude_none=True)) for each in self._functions)
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
        return [{**messages[0], "content": messages[0]["content"] + told}, *messages[1:]]

    def guide(self, form_is: str, form: Guide | None) -> Guide:
        """Make the guide: the answer is a call or, where none is required, has the form.

        Without a form it is any text that does not begin as a call. The rule of the form is called `form_is`, so that
        a message about a fault says whether it is there. Raises ValueError or RecursionError for such a form.
        """
        calls = {f"call{n}": rule(each.guide()) for n, each in enumerate(self._functions)}
        if self._must_call:
            return Guide("ebnf_grammar", _any_of(calls))
        if form is None:
            return Guide("ebnf_grammar", _any_of({**calls, form_is: ANY_TEXT}))
        other = {form_is: rule(NO_CALL if form == ANY_OBJECT else form)}
        return Guide("call_or_form", json.dumps([_any_of({**calls, **other}), _any_of(other)]))


def _begin(name: str) -> str:
    """Return how a call of a function begins."""
    return f'{{"name": {json.dumps(name)}, "arguments": '


def _any_of(rules: dict[str, str]) -> str:
    return "\n".join(f"{name}: {body}" for name, body in {"start": " | ".join(rules), **rules}.items())


class ToolParser:
    """An answer as its text comes: text or, if it begins like that, a call of one of the functions.

    Parameters
    ----------
    begins : dict
        As `Tools` has it.

    Attributes
    ----------
    id, name : str
        The call's, and the name of its function; blank as long as it is none.
    is_call : bool
        It is a whole call.
    """

    def __init__(self, begins: dict[str, str]):
        self.id, self.name, self.is_call = f"call_{uuid.uuid4().hex[:24]}", "", False
        self._begins, self._text, self._num_given = begins, "", 0

    def add(self, piece: str, is_last: bool) -> tuple[str, str]:
        """Return what `piece` adds to the text, or to the arguments of the call; some of it may be held back."""
        self._text += piece
        if self._begins:
            begun = next(filter(self._text.startswith, self._begins), "")
            if not begun and not is_last and any(begin.startswith(self._text) for begin in self._begins):
                return "", ""
            self.name, self._num_given, self._begins = self._begins.get(begun, ""), len(begun), {}
        self.is_call = bool(self.name) and is_last and _is_json(self._text)
        end = len(self._text)
        if self.name and (self.is_call or not is_last):
            end -= 1  # the last character of a whole call is the brace that closes it, behind its arguments
        added, self._num_given = self._text[self._num_given : end], max(self._num_given, end)
        return ("", added) if self.name else (added, "")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
