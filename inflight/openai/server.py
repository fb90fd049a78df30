"""OpenAI's protocol in front of a running Triton: FastAPI and uvicorn, as vLLM, SGLang and trtllm-serve have it.

    with OpenAIServer("127.0.0.1:8001", engine_dir, port=9000) as server:
        ...                            # OpenAI(base_url=server.url, api_key="none")

A request becomes tokens here and goes to `tensorrt_llm` over gRPC; its tokens become text here, too. A client that goes
away, or whose stop string has come, ends its request, and the engine has the slot again. Fields of the protocol:
https://platform.openai.com/docs/api-reference (of `ignore_eos`, `min_tokens`, `top_k`, `repetition_penalty`: vLLM's).
/metrics has what clients meet and how full the engine is, under vLLM's names; all else is on Triton's page.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import re
import secrets
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import fastapi
import grpc
import h11
import numpy as np
import tritonclient.grpc.aio as triton
import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from pydantic import AliasChoices, BaseModel, Field, ValidationError, create_model
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from tritonclient.utils import InferenceServerException
from uvicorn.protocols.http.h11_impl import H11Protocol

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine.building.folder import read
from inflight.engine.messages import Guide
from inflight.engine.settings import SamplingConfig
from inflight.errors import ENGINE_FAILED, GUIDE, QUEUE_FULL, SHUT_DOWN, TIMED_OUT, TOO_LONG, CourseError
from inflight.openai.tools import (
    MOST_TOOLS,
    AllowedTools,
    Answer,
    Called,
    Given,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolCall,
    Tools,
)
from inflight.triton import telemetry
from inflight.triton.client.client import Client
from inflight.triton.client.connection import Refused, course_error, tensors
from inflight.triton.client.detokenizer import Detokenizer
from inflight.triton.client.request import ENGINE, ERROR_CODE, OPENAI, arrays_for, fields, is_llmapi

HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "::1")
# Seconds: vLLM's buckets of the time to first token, as far as a request may take here.
BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160
)  # fmt: skip
MOST_HEADER_BYTES = 64 * 1024
COMPLETION_TOKENS = 16  # of /v1/completions where max_tokens is left out; a chat may go on to the model's end
BYTES_A_CHARACTER, BYTES_BESIDE_TEXT = 2, 512 * 1024  # of a body, at most: some of its characters are escaped
# Of a larger body, so many bytes are read and thrown away: a client that is still sending would not see the answer.
READ_PAST_LIMIT = 64 * 1024 * 1024
MOST_PROMPTS = 256  # of a request
MOST_STOPS, LONGEST_STOP = 64, 256  # each is looked for with every token
HEALTH_TIMEOUT_S = 5
LOOK_EVERY_S = 0.2
KEEP_ALIVE_S = 600  # longer than clients keep a connection that they may use again
CLOSE_S = 1  # for clients that do not read the end of their answer
# Why the engine refuses a request, by its error's code -> status. What is not among them: 400, the request is wrong.
STATUSES = {QUEUE_FULL: 429, ENGINE_FAILED: 500, SHUT_DOWN: 503, TIMED_OUT: 504}
# Triton's own reasons have no code -> status. What is not among them is no fault of the request: 500.
TRITONS_OWN = {
    "Exceeds maximum queue size": 429,
    "unknown model|is not ready|no available versions|Stub process|is stopping": 503,
    "Request timeout expired": 504,
}
CODES = {TOO_LONG: TOO_LONG, QUEUE_FULL: "rate_limit_exceeded"}  # those that OpenAI's clients know


Stop = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]


class OpenAIError(HTTPException):
    """An error response in OpenAI's form: a status, and `error` with message, type, param and code."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        kind = {429: "rate_limit_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
        super().__init__(status, headers={"Retry-After": "1"} if status == 429 else None)
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


# Requests -------------------------------------------------------------------------------------------------------------


class Part(BaseModel):
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


# How tokens are chosen, as the table of fields has it.
SAMPLING = {name: field for name, field in fields(OPENAI).items() if field.asks.startswith("sampling.")}
KINDS: dict[str, Any] = {
    "FP32": Annotated[float, Field(gt=-1e38, lt=1e38)],
    "INT32": Annotated[int, Field(lt=2**31)],
    "UINT64": int,
}
_types: dict[str, Any] = {name: (KINDS[field.form.partition(" ")[0]], None) for name, field in SAMPLING.items()}
Sampling: Any = create_model("Sampling", **_types)


class Body(Sampling):
    """The fields of requests of both kinds; null counts as absent, and unknown fields are ignored."""

    model: str = ENGINE
    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    max_tokens: int | None = Field(None, ge=1, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"))
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] = Field(default_factory=list)
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: list[Tool] = Field(default_factory=list, max_length=MOST_TOOLS)
    tool_choice: Literal["auto", "none", "required"] | NamedTool | AllowedTools | None = None


class CompletionBody(Body):
    prompt: str | list[int] | list[str] | list[list[int]] = Field(min_length=1)


class ChatBody(Body):
    messages: list[Message] = Field(min_length=1)


@dataclass
class Asked:
    """One prompt: its tokens, how many its answer may have, and what Triton is sent."""

    ids: list[int]
    max_tokens: int
    arrays: dict[str, np.ndarray]


class Completion:
    """A request's tokens and what else it asks of the engine, and its answers, one a prompt; raises OpenAIError.

    Make it in a thread: tokenizing would block the event loop.
    """

    def __init__(self, data: bytes, is_chat: bool, engine: Engine):
        self._engine, self._is_chat, self._prompt = engine, is_chat, "messages" if is_chat else "prompt"
        given = _json_object(data)
        for name in ("extra_body", "nvext"):  # which clients unpack; NIM's and Dynamo's
            if isinstance(nested := given.get(name), dict):
                given = {**_without_nulls(nested), **given}
        self._check_items(given.get(self._prompt))
        for name, field in fields(OPENAI).items():
            if name in given and (refusal := field.refusal(OPENAI, given[name])):
                raise OpenAIError(refusal, name)
        try:
            self.body = ChatBody(**given) if is_chat else CompletionBody(**given)
        except ValidationError as error:
            raise _invalid(error) from None
        check_model(self.body.model)
        self._guide_is = ""
        try:
            self._tools = Tools(self.body.tools, self.body.tool_choice)
        except ValueError as error:
            raise OpenAIError(f"tool_choice: {error}.", "tool_choice") from None
        if self._tools and not is_chat:
            raise OpenAIError("tools must be left out: calls are answers of a chat. Ask /v1/chat/completions.", "tools")
        try:
            self._asked = [self._ask(ids) for ids in self._tokens()]
        except CourseError as error:
            raise OpenAIError(str(error)) from None
        kind, prefix = ("chat.completion", "chatcmpl") if is_chat else ("text_completion", "cmpl")
        kind += ".chunk" if is_chat and self.body.stream else ""
        self._id = f"{prefix}-{uuid.uuid4().hex}"  # in Triton and in the iteration log, too
        self._head = {"id": self._id, "object": kind, "created": int(time.time()), "model": ENGINE}

    def _ask(self, ids: list[int]) -> Asked:
        """Make the engine's request for one prompt."""
        if not ids:
            raise OpenAIError("A prompt is empty: it needs at least one token.", self._prompt)
        limits = self._engine.limits
        self._check_length(len(ids), limits.max_input_len, "tokens")
        room = limits.max_seq_len - len(ids)
        max_tokens = min(room, self.body.max_tokens or (room if self._is_chat else COMPLETION_TOKENS))
        return Asked(ids, max_tokens, arrays_for(self._engine.config, self._inputs(ids, max_tokens)))

    def _tokens(self) -> list[list[int]]:
        """Return the tokens of each prompt."""
        tokenizer, most = self._engine.tokenizer, self._engine.most_characters
        if isinstance(self.body, ChatBody):
            messages = [message.for_template() for message in self.body.messages]
            if self._tools:
                messages = self._tools.tell(messages)
            self._check_length(sum(len(message["content"]) for message in messages), most, "characters")
            return [tokenizer.encode_chat(messages)]
        given: Any = self.body.prompt
        prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        for prompt in prompts:
            if isinstance(prompt, str):
                self._check_length(len(prompt), most, "characters")
            elif not all(0 <= token < tokenizer.vocab_size for token in prompt):
                raise OpenAIError(f"A token is an id from 0 to {tokenizer.vocab_size - 1}.", "prompt")
        return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _guide(self) -> Guide | None:
        """Return the guide that the answer must follow."""
        asked = {name: getattr(self.body, name) for name in ("response_format", "structured_outputs")}
        guides = {name: guide for name, each in asked.items() if each and (guide := each.guide())}
        if len(guides) > 1:
            raise OpenAIError(f"{' and '.join(guides)} each say what the answer must be: leave out one.", [*guides][1])
        self._guide_is, guide = next(iter(guides.items()), ("tools", None))
        if not self._tools:
            return guide
        try:
            return self._tools.guide(self._guide_is, guide)
        except (ValueError, RecursionError) as error:
            raise OpenAIError(f"{self._guide_is} cannot be followed: {error}.", self._guide_is) from None

    def _check_items(self, given: Any) -> None:
        """Refuse too many of them before they are looked at."""
        if not isinstance(given, list) or not given:
            return
        if not self._is_chat and isinstance(given[0], (str, list)):
            if len(given) > MOST_PROMPTS:
                raise OpenAIError(f"There are {len(given)} prompts: send at most {MOST_PROMPTS} at once.", "prompt")
        else:  # each takes a token at least
            self._check_length(len(given), self._engine.limits.max_input_len, "items")

    def _check_length(self, length: int, most: int, of_what: str) -> None:
        if length > most:
            message = f"{self._engine.too_long} This one has {length} {of_what}: shorten it."
            raise OpenAIError(message, self._prompt, code=TOO_LONG)

    def _inputs(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        """Return the engine's inputs by the course's names; a seed or a top_k of -1 means what it means to vLLM."""
        given = {"top_p": 1.0, **self.body.model_dump(include=SAMPLING.keys(), exclude_none=True)}
        given["seed"] = secrets.randbits(62) if given.get("seed", -1) == -1 else given["seed"] % 2**64
        given["top_k"] = 0 if given.get("top_k") == -1 else given.get("top_k", 0)
        for name, value in given.items():
            asks = SAMPLING[name].asks.removeprefix("sampling.")
            try:
                SamplingConfig(**{asks: value})
            except CourseError as error:
                raise OpenAIError(str(error).replace(asks, name), name) from None
        inputs = {"input_ids": ids, "input_lengths": len(ids), "max_tokens": max_tokens}
        if self._engine.tokenizer.end_id is not None and not self.body.ignore_eos:
            inputs["end_id"] = self._engine.tokenizer.end_id
        if guide := self._guide():
            inputs |= {"guided_decoding_guide_type": guide.kind, "guided_decoding_guide": guide.text}
        return {**inputs, "stream": True, **{SAMPLING[name].name: value for name, value in given.items()}}

    async def _pieces(self) -> AsyncIterator[tuple[int, str, str | None, int]]:
        """Yield the answers' texts as they come: of which prompt, piece, why it ends (None: it goes on), tokens so far.

        The first error ends all of them.
        """
        arrived: asyncio.Queue = asyncio.Queue()

        async def read(index: int, asked: Asked) -> None:
            end = None
            try:
                async for piece in self._answer(f"{self._id}-{index}" if index else self._id, asked):
                    arrived.put_nowait((index, *piece))
            except Exception as error:
                end = error
            arrived.put_nowait(end)

        reading = [asyncio.create_task(read(index, asked)) for index, asked in enumerate(self._asked)]
        try:
            for _ in reading:
                while (piece := await arrived.get()) is not None:
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
        finally:
            for task in reading:
                task.cancel()

    async def _answer(self, name: str, asked: Asked) -> AsyncIterator[tuple[str, str | None, int]]:
        """Yield the answer to one prompt, which is called `name` in Triton: piece, why it ends, tokens so far."""
        stops = [self.body.stop] if isinstance(self.body.stop, str) else self.body.stop
        figures = Figures(self._engine.metrics, len(asked.ids))
        text = Detokenizer(self._engine.tokenizer, stops, self.body.min_tokens or 0)
        responses, failed = self._engine.ask(name, asked.arrays), None
        try:
            # After a last response or an error it ends by itself, and must not be cancelled: see `finish_stream`.
            async for result, error in responses:
                failed = error
                if failed is not None:
                    continue
                is_final = bool(result.as_numpy("is_final").item())
                piece, reason = text.add(result.as_numpy("output_ids").reshape(-1).tolist(), is_final), None
                if text.stopped_by or is_final:
                    is_full = len(text.ids) >= asked.max_tokens and not text.stopped_by
                    reason = "length" if is_full else "stop"
                figures.count(len(text.ids), reason)
                yield piece, reason, len(text.ids)
                if reason and not is_final:
                    return
            if failed is not None:
                raise failed
        except (InferenceServerException, grpc.RpcError) as error:
            # How it died stands in a record a moment later, for which this waits.
            meant = await asyncio.to_thread(course_error, error, self._engine.url)
            param = {TOO_LONG: self._prompt, GUIDE: self._guide_is}.get(meant.code)
            raise OpenAIError(str(meant), param, _status(meant), CODES.get(meant.code)) from None
        except asyncio.CancelledError:
            if not self._engine.is_ending:  # the client has gone
                raise
            raise OpenAIError("The server ended before the answer did.", status=503) from None
        finally:
            figures.end()
            self._engine.running.discard(responses)
            responses.cancel()

    async def whole(self) -> dict[str, Any]:
        """Return the answers in one piece."""
        said, ends, numbers = [""] * len(self._asked), dict[int, str | None](), [0] * len(self._asked)
        async for index, piece, ends[index], numbers[index] in self._pieces():
            said[index] += piece
        choices = [self._choice(index, text, ends[index]) for index, text in enumerate(said)]
        return {**self._head, "choices": choices, "usage": self._usage(numbers)}

    def _choice(self, index: int, said: str, reason: str | None) -> dict[str, Any]:
        content: dict[str, Any] = (
            {"message": {"role": "assistant", "content": said}} if self._is_chat else {"text": said}
        )
        answer = Answer(self._tools.begins)
        _, arguments = answer.add(said, is_last=True)
        if answer.name:
            content["message"] |= {"content": None, "tool_calls": [_tool_call(answer, arguments)]}
        reason = "tool_calls" if answer.is_call else reason
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}

    async def events(self) -> AsyncIterator[str]:
        """Yield the answers as server-sent events. An error before the first is raised; a later one is an event."""
        wants_usage, has_begun = self.body.stream_options.get("include_usage"), False
        numbers = [0] * len(self._asked)
        rest = {"usage": None} if wants_usage else {}
        answers = [Answer(self._tools.begins) for _ in self._asked]

        def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> str:
            content = {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
            choice = {"index": index, **content, "logprobs": None, "finish_reason": reason}
            return _event({**self._head, "choices": [choice], **rest})

        try:
            async for index, piece, reason, numbers[index] in self._pieces():
                if self._is_chat and not has_begun:
                    yield chunk({"role": "assistant", "content": ""})
                has_begun, answer = True, answers[index]
                was_named = bool(answer.name)
                said, arguments = answer.add(piece, is_last=bool(reason))
                if said:
                    yield chunk({"content": said}, index=index)
                if arguments or (answer.name and not was_named):
                    yield chunk({"tool_calls": [_tool_call(answer, arguments, is_first=not was_named)]})
                if reason:
                    yield chunk({}, "tool_calls" if answer.is_call else reason, index)
            if wants_usage:
                yield _event({**self._head, "choices": [], "usage": self._usage(numbers)})
        except OpenAIError as error:
            if not has_begun:
                raise
            yield _event(error.body)
        yield "data: [DONE]\n\n"

    def _usage(self, numbers: list[int]) -> dict[str, int]:
        prompt, answer = sum(len(asked.ids) for asked in self._asked), sum(numbers)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def _tool_call(call: Answer, arguments: str, is_first: bool = True) -> dict[str, Any]:
    """Return a tool call or, in a stream, a piece of one; only a call's first piece has its id and name."""
    if not is_first:
        return {"index": 0, "function": {"arguments": arguments}}
    function = {"name": call.name, "arguments": arguments}
    return {"index": 0, "id": call.id, "type": "function", "function": function}


def _status(error: CourseError) -> int:
    """Return the status of why Triton gave no answer."""
    if not isinstance(error, Refused):
        return 503
    if error.code:
        return STATUSES.get(error.code, 400)
    return next((status for why, status in TRITONS_OWN.items() if re.search(why, str(error))), 500)


def check_model(name: str) -> None:
    if name != ENGINE:
        raise OpenAIError(f"There is no model {name!r} here, but {ENGINE!r}.", "model", 404, "model_not_found")


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the fields of a body that are not null."""
    try:
        given = from_json(data, allow_inf_nan=False)  # knows a bound of depth, and that half a character is none
    except ValueError as error:
        raise OpenAIError(f"The body is no JSON that can be read: {error}.") from None
    if not isinstance(given, dict):
        raise OpenAIError("The body is JSON, but no object: send {...} with the request's fields.")
    return _without_nulls(given)


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _invalid(error: ValidationError) -> OpenAIError:
    """Say in a sentence what is wrong; a value of several allowed kinds is judged as the nearest of them."""
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    where = ".".join(str(place) for place in first["loc"] if not str(place).endswith(("str", "]")))
    value = "" if first["type"] == "missing" else f"; it is {json.dumps(first['input'], default=str)[:100]}"
    return OpenAIError(f"{where}: {first['msg']}{value}.", str(first["loc"][0]))


# The engine -----------------------------------------------------------------------------------------------------------


class Engine:
    """The `tensorrt_llm` of a running Triton: its config, limits and tokenizer, and the one connection to it."""

    def __init__(self, grpc_url: str, engine_dir: Path):
        self.url = grpc_url
        with Client(grpc_url, ENGINE) as client:
            self.config = client.config()
        if is_llmapi(self.config):
            raise CourseError(
                "OpenAI's protocol stands in front of the engine backend's tensorrt_llm, which takes tokens, and "
                "llmapi takes text: leave out --contract llmapi. Of TensorRT-LLM itself, trtllm-serve speaks it."
            )
        if not self.config.model_transaction_policy.decoupled:
            raise CourseError(
                f"OpenAI's clients read answers as they are made, and {ENGINE} is not decoupled: set decoupled_mode to "
                "true. It then refuses clients that wait for one whole response."
            )
        self.limits, self.tokenizer = read(engine_dir).build_config, load_tokenizer(engine_dir)
        # What has more has too many tokens, whatever they are: it is not cut into them.
        self.most_characters = self.limits.max_input_len * self.tokenizer.longest_token
        # In the words that clients look for when they choose a model with more room.
        self.too_long = (
            f"This model's maximum context length is {self.limits.max_seq_len} tokens, {self.limits.max_input_len} of "
            "them for the prompt. The prompt is too long."
        )
        self.running: set[Any] = set()
        self.metrics = Metrics(grpc_url)
        self.is_connected, self.is_ending = threading.Event(), False

    @contextlib.asynccontextmanager
    async def connected(self, _: Any) -> AsyncIterator[None]:
        """Keep the connection open, in this event loop, for as long as the block lasts."""
        async with triton.InferenceServerClient(self.url) as self._triton:
            self._loop = asyncio.get_running_loop()
            self.is_connected.set()
            yield

    def end(self) -> None:
        """End running requests, and tell their clients; called from another thread."""
        self.is_ending = True
        self._loop.call_soon_threadsafe(lambda: [responses.cancel() for responses in self.running])

    async def is_ready(self) -> bool:
        """Say whether Triton answers and its models are ready, this one among them."""
        how = {"client_timeout": HEALTH_TIMEOUT_S}
        with contextlib.suppress(InferenceServerException, grpc.RpcError):
            return await self._triton.is_server_ready(**how) and await self._triton.is_model_ready(ENGINE, **how)
        return False

    def ask(self, name: str, arrays: dict[str, np.ndarray]) -> Any:
        """Return tritonclient's iterator of (response, error) for a request; the caller cancels it."""

        async def request() -> AsyncIterator[dict[str, Any]]:
            outputs = [triton.InferRequestedOutput(name) for name in ("output_ids", "is_final")]
            asked = {"model_name": ENGINE, "inputs": tensors(arrays), "outputs": outputs, "request_id": name}
            yield {**asked, "parameters": {ERROR_CODE: True}}

        self.running.add(responses := self._triton.stream_infer(request()))
        return responses


class Metrics:
    """The figures of /metrics, under the names that vLLM's server uses: what clients meet, and how full the engine is.

    The latter is what the engine says of itself at Triton's own /metrics, when somebody asks.
    """

    def __init__(self, grpc_url: str):
        self._url = grpc_url
        self.registry = CollectorRegistry()
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From a request's tokens to the first one of its answer."
        )
        self.itl = self._histogram("inter_token_latency_seconds", "From one piece of an answer to the next.")
        self.tpot = self._histogram(
            "request_time_per_output_token_seconds", "Mean of an answer, without its first token."
        )
        self.e2e = self._histogram("e2e_request_latency_seconds", "From a request's tokens to the end of its answer.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens of answers.")
        self.ended = Counter(
            "vllm:request_success", "Answers, by their end.", ["model_name", "finished_reason"], registry=self.registry
        )
        self.registry.register(self)

    def _histogram(self, name: str, about: str) -> Histogram:
        named = Histogram(f"vllm:{name}", about, ["model_name"], registry=self.registry, buckets=BUCKETS_S)
        return named.labels(ENGINE)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, ["model_name"], registry=self.registry).labels(ENGINE)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the engine's own figures; none where its page cannot be read."""
        try:
            of_engine = telemetry.engine_figures(self._url)
        except CourseError:
            return
        for name, about, value in (
            ("num_requests_running", "Requests in the latest iteration.", of_engine["scheduled"]),
            ("num_requests_waiting", "Requests that wait.", of_engine["active"] - of_engine["scheduled"]),
            ("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.", of_engine["fraction"]),
        ):
            family = GaugeMetricFamily(f"vllm:{name}", about, labels=["model_name"])
            family.add_metric([ENGINE], value)
            yield family


class Figures:
    """Counts one answer for /metrics while it comes."""

    def __init__(self, metrics: Metrics, prompt_tokens: int):
        self._metrics, self._prompt_tokens, self._tokens, self._has_ended = metrics, prompt_tokens, 0, False
        self._began = self._first = self._latest = time.monotonic()

    def count(self, tokens: int, reason: str | None) -> None:
        """Count a piece, after which the answer has so many `tokens`; with a `reason` it is the last."""
        now, metrics = time.monotonic(), self._metrics
        if not self._tokens:
            metrics.prompt_tokens.inc(self._prompt_tokens)
            metrics.ttft.observe(now - self._began)
            self._first = now
        elif tokens > self._tokens:
            metrics.itl.observe(now - self._latest)
        metrics.generation_tokens.inc(tokens - self._tokens)
        self._tokens, self._latest = tokens, now
        if reason:
            metrics.e2e.observe(now - self._began)
            if tokens > 1:
                metrics.tpot.observe((now - self._first) / (tokens - 1))
            self._end(reason)

    def end(self) -> None:
        """Count an answer that its client has left, or that failed."""
        if not self._has_ended:
            self._end("abort")

    def _end(self, reason: str) -> None:
        self._has_ended = True
        self._metrics.ended.labels(ENGINE, reason).inc()


# The server -----------------------------------------------------------------------------------------------------------


class OpenAIServer:
    """Listens in a thread of its own as long as the block lasts; running answers end with it.

    Parameters
    ----------
    grpc_url : str
        "host:port" of a Triton whose `tensorrt_llm` is decoupled.
    engine_dir : path
        Folder of the engine that it runs: tokenizer and limits.
    port : int
        0: a free one.
    key : str, optional
        Without it in `Authorization: Bearer …` every request under /v1 is refused.
    host : str
        Address to listen on. Another than 127.0.0.1, which other machines may reach, takes a key.

    Attributes
    ----------
    url : str
        What OpenAI's clients call `base_url`.

    Raises
    ------
    CourseError
        The port is taken, or is none; nobody answers at the address; the model is not decoupled, or takes text; other
        machines would reach it without a key.
    """

    def __init__(self, grpc_url: str, engine_dir: str | Path, port: int = 0, key: str | None = None, host: str = HOST):
        if host != HOST and not key:
            raise CourseError(
                f"Other machines may reach {host}: name a key with --api-key (or in INFLIGHT_API_KEY), or leave out "
                "--host."
            )
        self._engine = Engine(grpc_url, Path(engine_dir))
        self._key, self._since = key, int(time.time())
        self._most_bytes = BYTES_BESIDE_TEXT + BYTES_A_CHARACTER * self._engine.most_characters
        listener = _listener(host, port)
        self.url = f"http://{host}:{listener.getsockname()[1]}/v1"
        self._hosts = {*LOOPBACK, host, socket.gethostname()}
        ends: dict[str, Any] = {"timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": CLOSE_S}
        reads: dict[str, Any] = {"http": Protocol, "h11_max_incomplete_event_size": MOST_HEADER_BYTES}
        self._uvicorn = uvicorn.Server(uvicorn.Config(self._application(), log_config=None, **ends, **reads))
        self._thread = threading.Thread(target=self._uvicorn.run, args=([listener],), daemon=True, name="openai")

    def __enter__(self) -> OpenAIServer:
        self._thread.start()
        while not self._engine.is_connected.wait(LOOK_EVERY_S):
            if not self._thread.is_alive():
                raise CourseError("OpenAI's server ended while starting: the lines above say why.")
        return self

    def __exit__(self, *_) -> None:
        self._uvicorn.should_exit = True
        self._engine.end()
        self._thread.join()

    def _application(self) -> fastapi.FastAPI:
        # No pages for which a browser would fetch scripts, and no telemetry, whatever the environment says.
        app = fastapi.FastAPI(lifespan=self._engine.connected, openapi_url=None, telemetry={"auto_configure": False})
        app.middleware("http")(self._check_host)
        app.add_exception_handler(HTTPException, _answer_error)
        app.add_exception_handler(ClientDisconnect, _answer_error)
        app.add_exception_handler(Exception, _answer_error)
        app.add_api_route("/health", self._health, methods=["GET", "HEAD"])
        app.add_api_route("/metrics", self._metrics, methods=["GET", "HEAD"])
        v1 = fastapi.APIRouter(prefix="/v1", dependencies=[fastapi.Depends(self._check_key)])
        v1.add_api_route("/models", self._models, methods=["GET", "HEAD"])
        v1.add_api_route("/models/{name:path}", self._model, methods=["GET", "HEAD"])
        v1.add_api_route("/chat/completions", self._complete, methods=["POST"])
        v1.add_api_route("/completions", self._complete, methods=["POST"])
        app.include_router(v1)
        return app

    async def _check_host(self, request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse a name that is not this machine's: a web page may give its own name this address (DNS rebinding).

        An address is no name, and whoever has a key is no web page.
        """
        try:
            name = urlsplit(f"//{request.headers.get('Host', HOST)}").hostname or ""
        except ValueError:  # a bracket that does not close
            name = ""
        if not (self._key or name in self._hosts or _is_address(name)):
            message = f"The host {name!r} is not this machine's: ask {HOST} or localhost, or start it with a key."
            return await _answer_error(request, OpenAIError(message, status=421))
        return await answer(request)

    async def _check_key(self, request: Request) -> None:
        given = request.headers.get("Authorization", "").encode()
        if self._key and not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            raise OpenAIError("The API key is missing or wrong.", None, 401, "invalid_api_key")

    async def _health(self) -> Response:
        if not await self._engine.is_ready():
            raise OpenAIError(f"The Triton at {self._engine.url} is gone, or its models are not ready.", None, 503)
        return Response()

    async def _metrics(self) -> Response:
        page = await asyncio.to_thread(generate_latest, self._engine.metrics.registry)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [await self._model(ENGINE)]}

    async def _model(self, name: str) -> dict[str, Any]:
        check_model(name)
        most = {"max_model_len": self._engine.limits.max_seq_len}
        return {"id": ENGINE, "object": "model", "created": self._since, "owned_by": "inflight", **most}

    async def _complete(self, request: Request) -> Response:
        data, is_chat = await _body(request, self._most_bytes), "/chat/" in request.url.path
        completion = await asyncio.to_thread(Completion, data, is_chat, self._engine)
        if not completion.body.stream:
            return JSONResponse(await _unless_gone(request, completion.whole()))
        events = completion.events()
        first = await _unless_gone(request, anext(events))

        async def all_events() -> AsyncIterator[str]:
            yield first
            async for event in events:
                yield event

        return StreamingResponse(all_events(), media_type="text/event-stream")


class Protocol(H11Protocol):
    """uvicorn's, with OpenAI's form for a request that is no HTTP, and the right status where its head is too long."""

    def send_400_response(self, msg: str) -> None:
        error = OpenAIError(f"The request cannot be read: {msg}")
        if len(self.conn.trailing_data[0]) > MOST_HEADER_BYTES:
            error = OpenAIError(f"The request's head has more than {MOST_HEADER_BYTES:,} bytes: shorten it.", None, 431)
        body = json.dumps(error.body).encode()
        length = (b"content-length", str(len(body)).encode())
        head = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
        answer = h11.Response(status_code=error.status_code, headers=head), h11.Data(data=body), h11.EndOfMessage()
        for event in answer:
            self.transport.write(self.conn.send(event) or b"")
        # Whoever still sends would not see the answer on a connection that is closed at once.
        self.data_received = lambda data: None  # type: ignore[method-assign]
        self.loop.call_later(CLOSE_S, self.transport.close)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port))
        # Connections inherit it: a piece must not wait until the one before is acknowledged, some 40 ms. asyncio sees
        # to that only where a socket names its protocol, which these do not.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", error)
        raise CourseError(
            f"Port {port} of {host} cannot be listened on ({reason}): give another --openai-port, or --host."
        ) from None


async def _body(request: Request, most_bytes: int) -> bytes:
    media_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # which a page in a browser must ask for leave to send, and does not get
        raise OpenAIError(f"The body's type is {media_type or 'not given'}: send Content-Type: application/json.")
    if (coding := request.headers.get("Content-Encoding", "identity").lower()) != "identity":
        raise OpenAIError(f"The body's coding is {coding}: send it as it is.", None, 415)
    data, length = bytearray(), 0
    async for some in request.stream():
        length += len(some)
        if length <= most_bytes:
            data += some
        elif length > most_bytes + READ_PAST_LIMIT:
            break
    if length > most_bytes:
        raise OpenAIError(f"The body has more than {most_bytes:,} bytes: shorten it.", None, 413)
    return bytes(data)


async def _unless_gone(request: Request, answer: Awaitable) -> Any:
    """Return what `answer` gives; end it early when the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer any error in OpenAI's form; uvicorn logs the traceback of a fault of ours."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # which nobody reads
    if isinstance(error, OpenAIError):
        return JSONResponse(error.body, error.status_code, error.headers)
    if isinstance(error, HTTPException):  # no such path, or not with this method
        body = OpenAIError(f"{error.detail}: {request.method} {request.url.path}.").body
        return JSONResponse(body, error.status_code, error.headers)
    return JSONResponse(
        OpenAIError(f"The server failed on this request ({type(error).__name__}).", status=500).body, 500
    )
