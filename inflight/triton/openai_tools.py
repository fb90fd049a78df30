"""Turns `response_format`, `structured_outputs` and `tools` into the engine's guide, and answers into calls of tools.

`structured_outputs` is vLLM's, the others are OpenAI's. The chat template of a small model knows no tools, so they are
described in the system's turn. Its call is a JSON object with `name` and `arguments`, which the guide holds it to, so
nothing has to be found in free text.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from inflight.engine.config import Guide
from inflight.engine.grammar import JSON_FORM

MOST_TOOLS = 64
TOLD = """

You can call these functions. To call one, answer with nothing but a JSON object of its name and its arguments, as in
{"name": "...", "arguments": {...}}.
"""
CALL = re.compile(r'\{"name": "([\w-]+)", "arguments": ')
ANY_OBJECT = Guide("json_schema", '{"type": "object"}')


class JsonSchema(BaseModel):
    schema_: dict[str, Any] | bool = Field(alias="schema")


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_schema(self):
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, which must have it")
        return self

    def guide(self) -> Guide | None:
        if self.json_schema:
            return Guide("json_schema", json.dumps(self.json_schema.schema_))
        return ANY_OBJECT if self.type == "json_object" else None


class StructuredOutputs(BaseModel):
    model_config = ConfigDict(extra="forbid")  # one that is not known would be followed loosely
    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    ebnf_grammar: str | None = Field(None, alias="grammar")

    @model_validator(mode="after")
    def _is_one(self):
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of json, json_object, regex, choice, grammar")
        return self

    def guide(self) -> Guide | None:
        [(kind, value)] = self.model_dump(exclude_none=True).items()
        if kind == "json_object":
            return ANY_OBJECT if value else None
        return Guide(kind, value if isinstance(value, str) else json.dumps(value))


class Function(BaseModel):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class Named(BaseModel):
    name: str


class NamedTool(BaseModel):
    type: Literal["function"]
    function: Named


class Tools:
    """The functions that an answer may call.

    Parameters
    ----------
    tools : list of Tool
    choice : "auto", "none", "required" or NamedTool
        None is "auto".

    Raises
    ------
    ValueError
        There is no such function.
    """

    def __init__(self, tools: list[Tool], choice: str | NamedTool | None):
        self._functions = [] if choice == "none" else [tool.function for tool in tools]
        self._must_call = choice == "required" or isinstance(choice, NamedTool)
        if isinstance(choice, NamedTool):
            self._functions = [each for each in self._functions if each.name == choice.function.name]
        if self._must_call and not self._functions:
            raise ValueError("tools has no such function")

    def __bool__(self) -> bool:
        return bool(self._functions)

    def tell(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with the functions described in the system's turn."""
        told = TOLD + "\n".join(json.dumps(each.model_dump(exclude_none=True)) for each in self._functions)
        if messages[0]["role"] != "system":
            messages = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
        return [{**messages[0], "content": messages[0]["content"] + told}, *messages[1:]]

    def guide(self) -> Guide:
        """Make the guide: the answer is a call or, where none is required, any text that does not begin as one."""
        calls = range(len(self._functions))
        rules = ["start: " + " | ".join(["TEXT"] * (not self._must_call) + [f"call{n}" for n in calls])]
        rules += [r"TEXT: /([^{](.|\n)*)?/"] * (not self._must_call)
        for n, function in enumerate(self._functions):
            begun = json.dumps('{"name": "' + function.name + '", "arguments": ')
            schema = json.dumps({**function.parameters, "x-guidance": JSON_FORM})
            rules += [f'call{n}: {begun} arguments{n} "}}"', f"arguments{n}: %json {schema}"]
        return Guide("ebnf_grammar", "\n".join(rules))


class Call:
    """A call of a function, as its text comes: its `name` as soon as it is there, and whether it `is_one`."""

    def __init__(self):
        self.id, self.name = f"call_{uuid.uuid4().hex[:24]}", ""
        self._text, self._num_given = "", 0

    @property
    def is_one(self) -> bool:
        return self._text.startswith("{")

    def add(self, piece: str) -> str:
        """Return what `piece` adds to the arguments, without the brace that closes the call."""
        self._text += piece
        if not self.name and (begun := CALL.match(self._text)):
            self.name, self._num_given = begun[1], begun.end()
        if not self.name:
            return ""
        begin, self._num_given = self._num_given, max(self._num_given, len(self._text) - 1)
        return self._text[begin : self._num_given]
