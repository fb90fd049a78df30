"""A request as the engine gets it, and its answers, whole or as they come."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from inflight.engine.messages import Guide
from inflight.errors import GUIDE, TOO_LONG, CourseError
from inflight.openai import errors
from inflight.openai.bodies import SAMPLING, ChatBody, CompletionBody
from inflight.openai.engine import Engine
from inflight.openai.errors import OpenAIError
from inflight.openai.metrics import RequestMetrics
from inflight.openai.tools import ToolParser, Tools
from inflight.triton.client.connection import course_error
from inflight.triton.model.detokenizer import Detokenizer
from inflight.triton.repository.layout import ENGINE
from inflight.triton.repository.request import arrays_for

COMPLETION_TOKENS = 16  # of /v1/completions where max_tokens is left out; a chat may go on to the model's end


@dataclass
class Asked:
    """One prompt: its tokens, how many its answer may have, what Triton is sent, and how many have come."""

    ids: list[int]
    max_tokens: int
    arrays: dict[str, NDArray[Any]]
    num_tokens: int = 0


class Completion:
    """A request's tokens and what else it asks of the engine, and its answers, one a prompt; raises OpenAIError.

    Make it in a thread: tokenizing would block the event loop.
    """

    def __init__(self, body: ChatBody | CompletionBody, engine: Engine):
        self.body, self._engine = body, engine
        self._is_chat = isinstance(body, ChatBody)
        try:
            self._tools = Tools(body.tools, body.tool_choice)
        except ValueError as error:
            raise OpenAIError(f"tool_choice: {error}.", "tool_choice") from None
        if self._tools and not self._is_chat:
            raise OpenAIError("tools must be left out: calls are answers of a chat. Ask /v1/chat/completions.", "tools")
        self._form, self._guide = self._guided()
        try:
            self._asked = [self._ask(ids) for ids in self._tokens()]
        except CourseError as error:
            raise OpenAIError(str(error)) from None
        kind, prefix = ("chat.completion", "chatcmpl") if self._is_chat else ("text_completion", "cmpl")
        kind += ".chunk" if self._is_chat and body.stream else ""
        self._id = f"{prefix}-{uuid.uuid4().hex}"  # in Triton and in the iteration log, too
        self._head = {"id": self._id, "object": kind, "created": int(time.time()), "model": ENGINE}

    async def whole(self) -> dict[str, Any]:
        """Return the answers in one piece."""
        said, ends = [""] * len(self._asked), dict[int, str | None]()
        async for index, piece, reason in self._pieces():
            said[index] += piece
            ends[index] = reason
        choices = [self._answered(index, text, ends[index]) for index, text in enumerate(said)]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def events(self) -> AsyncIterator[str]:
        """Yield the answers as server-sent events. An error before the first is raised; a later one is an event."""
        wants_usage, has_begun = self.body.stream_options.get("include_usage"), False
        rest = {"usage": None} if wants_usage else {}
        parsers = [ToolParser(self._tools.begins) for _ in self._asked]

        def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> str:
            return _event({**self._head, "choices": [self._choice(index, delta, reason)], **rest})

        try:
            async for index, piece, reason in self._pieces():
                if self._is_chat and not has_begun:
                    yield chunk({"role": "assistant", "content": ""})
                has_begun, parser = True, parsers[index]
                was_named = bool(parser.name)
                said, arguments = parser.add(piece, is_last=bool(reason))
                if said:
                    yield chunk({"content": said}, index=index)
                if arguments or (parser.name and not was_named):
                    call = _tool_call(parser, arguments, is_first=not was_named)
                    yield chunk({"tool_calls": [{"index": 0, **call}]})
                if reason:
                    yield chunk({}, "tool_calls" if parser.is_call else reason, index)
            if wants_usage:
                yield _event({**self._head, "choices": [], "usage": self._usage()})
        except OpenAIError as error:
            if not has_begun:
                raise
            yield _event(error.body)
        yield "data: [DONE]\n\n"

    def _answered(self, index: int, said: str, reason: str | None) -> dict[str, Any]:
        """Return the choice of an answer that is there as a whole."""
        parser = ToolParser(self._tools.begins)
        _, arguments = parser.add(said, is_last=True)
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if parser.name:
            message |= {"content": None, "tool_calls": [_tool_call(parser, arguments)]}
        return self._choice(index, message, "tool_calls" if parser.is_call else reason)

    def _choice(self, index: int, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        """Return a choice, or a piece of one: a chat's has a message or its delta, a completion's the text of it."""
        name = "delta" if self.body.stream else "message"
        content = {name: said} if self._is_chat else {"text": said.get("content", "")}
        return {"index": index, **content, "logprobs": None, "finish_reason": reason}

    def _usage(self) -> dict[str, int]:
        prompt, answer = sum(len(asked.ids) for asked in self._asked), sum(asked.num_tokens for asked in self._asked)
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _ask(self, ids: list[int]) -> Asked:
        """Make the engine's request for one prompt."""
        if not ids:
            raise OpenAIError("A prompt is empty: it needs at least one token.", self.body.PROMPT)
        limits = self._engine.limits
        self._engine.check_length(len(ids), limits.max_input_len, "tokens", self.body.PROMPT)
        room = limits.max_seq_len - len(ids)
        max_tokens = min(room, self.body.max_tokens or (room if self._is_chat else COMPLETION_TOKENS))
        return Asked(ids, max_tokens, arrays_for(self._engine.config, self._inputs(ids, max_tokens)))

    def _tokens(self) -> list[list[int]]:
        """Return the tokens of each prompt."""
        tokenizer, most, check = self._engine.tokenizer, self._engine.most_characters, self._engine.check_length
        if isinstance(self.body, ChatBody):
            messages = [message.for_template() for message in self.body.messages]
            if self._tools:
                messages = self._tools.tell(messages)
            check(sum(len(message["content"]) for message in messages), most, "characters", "messages")
            return [tokenizer.encode_chat(messages)]
        given: Any = self.body.prompt
        prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        for prompt in prompts:
            if isinstance(prompt, str):
                check(len(prompt), most, "characters", "prompt")
            elif not all(0 <= token < tokenizer.vocab_size for token in prompt):
                raise OpenAIError(f"A token is an id from 0 to {tokenizer.vocab_size - 1}.", "prompt")
        return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]

    def _guided(self) -> tuple[str, Guide | None]:
        """Return the field that says what form the answers must have, and the guide that they must follow."""
        asked = {name: getattr(self.body, name) for name in ("response_format", "structured_outputs")}
        guides = {name: guide for name, each in asked.items() if each and (guide := each.guide())}
        if len(guides) > 1:
            raise OpenAIError(f"{' and '.join(guides)} each say what the answer must be: leave out one.", [*guides][1])
        name, guide = next(iter(guides.items()), ("tools", None))
        if not self._tools:
            return name, guide
        try:
            return name, self._tools.guide(name, guide)
        except (ValueError, RecursionError) as error:
            raise OpenAIError(f"{name} cannot be followed: {error}.", name) from None

    def _inputs(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        """Return the engine's inputs by the course's names; a seed or a top_k of -1 means what it means to vLLM."""
        given = {"top_p": 1.0, **self.body.model_dump(include=set(SAMPLING), exclude_none=True)}
        given["seed"] = secrets.randbits(62) if given.get("seed", -1) == -1 else given["seed"] % 2**64
        given["top_k"] = 0 if given.get("top_k") == -1 else given.get("top_k", 0)
        inputs = {"input_ids": ids, "input_lengths": len(ids), "max_tokens": max_tokens}
        if self._engine.tokenizer.end_id is not None and not self.body.ignore_eos:
            inputs["end_id"] = self._engine.tokenizer.end_id
        if self.body.cache_salt:
            inputs["cache_salt"] = self.body.cache_salt
        if guide := self._guide:
            inputs |= {"guided_decoding_guide_type": guide.kind, "guided_decoding_guide": guide.text}
        return {**inputs, "stream": True, **{SAMPLING[name]: value for name, value in given.items()}}

    async def _pieces(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """Yield the answers' texts as they come: of which prompt, piece, why it ends (None: it goes on).

        The first error ends all of them.
        """
        arrived: asyncio.Queue[Any] = asyncio.Queue()

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

    async def _answer(self, name: str, asked: Asked) -> AsyncIterator[tuple[str, str | None]]:
        """Yield the answer to one prompt, called `name` in Triton, and count its tokens: piece, why it ends."""
        stops = [self.body.stop] if isinstance(self.body.stop, str) else self.body.stop
        metrics = RequestMetrics(self._engine.metrics, len(asked.ids))
        text = Detokenizer(self._engine.tokenizer, stops, self.body.min_tokens or 0)
        try:
            async with self._engine.ask(name, asked.arrays) as results:
                async for result in results:
                    is_final = bool(result.as_numpy("is_final").item())
                    piece, reason = text.add(result.as_numpy("output_ids").reshape(-1).tolist(), is_final), None
                    asked.num_tokens = len(text.ids)
                    if text.stopped_by or is_final:
                        is_full = asked.num_tokens >= asked.max_tokens and not text.stopped_by
                        reason = "length" if is_full else "stop"
                    metrics.count(asked.num_tokens, reason)
                    yield piece, reason
                    if reason and not is_final:
                        return
        except (InferenceServerException, grpc.RpcError) as error:
            # `course_error` waits for the record that says how a server died; so it runs in a thread.
            meant = await asyncio.to_thread(course_error, error, self._engine.url)
            raise errors.of_engine(meant, {TOO_LONG: self.body.PROMPT, GUIDE: self._form}) from None
        except asyncio.CancelledError:
            if not self._engine.is_ending:  # the client has gone
                raise
            raise OpenAIError("The server ended before the answer did.", status=503) from None
        finally:
            metrics.end()


def _tool_call(parser: ToolParser, arguments: str, is_first: bool = True) -> dict[str, Any]:
    """Return a tool call or, in a stream, a piece of one; only a call's first piece has its id and name."""
    if not is_first:
        return {"function": {"arguments": arguments}}
    return {"id": parser.id, "type": "function", "function": {"name": parser.name, "arguments": arguments}}


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content)}\n\n"
