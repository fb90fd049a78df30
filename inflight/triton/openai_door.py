"""OpenAI's protocol in front of a running server: /v1/models, /v1/chat/completions and /v1/completions.

    with Door(server, port=9000):
        ...                            # OpenAI(base_url="http://127.0.0.1:9000/v1", api_key="none")

A request becomes tokens here and goes to `tensorrt_llm` over gRPC; its tokens become text here, too. A client that goes
away, or whose stop string has come, ends its request, and the engine has the slot again. Fields of the protocol:
https://platform.openai.com/docs/api-reference (of `ignore_eos`, `min_tokens`, `top_k`, `repetition_penalty`: vLLM's).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tornado.httpserver
import tornado.iostream
import tornado.netutil
import tornado.web
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.folder import read
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client import ENGINE, Refused, course_error, tensors
from inflight.triton.server import Server
from inflight.triton.text import Detokenizer

HOST = "127.0.0.1"
MOST_BODY_BYTES = 10 << 20
COMPLETION_TOKENS = 16  # of /v1/completions where max_tokens is left out; a chat may go on to the model's end
# Fields that we do not have, and what of them asks for nothing.
NOTHING: dict[str, tuple] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "store": (False,),
}
IGNORED = ("user", "metadata", "cache_prompt", "safety_identifier", "parallel_tool_calls")
# OpenAI's field -> the engine's tensor, its dtype, least and greatest value.
SAMPLING: dict[str, tuple[str, type, float, float]] = {
    "temperature": ("temperature", np.float32, 0, 2),
    "top_p": ("runtime_top_p", np.float32, 0, 1),
    "top_k": ("runtime_top_k", np.int32, 0, 2**31 - 1),
    "seed": ("random_seed", np.uint64, 0, 2**63 - 1),
    "presence_penalty": ("presence_penalty", np.float32, -2, 2),
    "frequency_penalty": ("frequency_penalty", np.float32, -2, 2),
    "repetition_penalty": ("repetition_penalty", np.float32, 0, 1e6),
    "min_tokens": ("min_length", np.int32, 0, 2**31 - 1),
}
KNOWN = {"model", "messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "stop"}
KNOWN |= {"ignore_eos", *SAMPLING, *NOTHING, *IGNORED}


class Wrong(Exception):
    """What a request cannot have, in OpenAI's terms."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


# A request ------------------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What a request's body asks for.

    Attributes
    ----------
    input_ids : list of int
    most : int
        Tokens after which the answer ends by its length.
    inputs : dict
        The engine's other inputs, by tensor.
    stops : list of str
        Texts that end the answer and are no part of it.
    stream, usage : bool
        In pieces; with a last piece that counts the tokens.
    """

    input_ids: list[int]
    most: int
    inputs: dict[str, np.ndarray]
    stops: list[str]
    stream: bool
    usage: bool


def asked(body: Any, is_chat: bool, model: str, tokenizer: ChatTokenizer, max_seq_len: int) -> Asked:
    """Read a request's body; raises Wrong."""
    if not isinstance(body, dict):
        raise Wrong("The body is no JSON object.")
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        if name not in KNOWN:
            raise Wrong(f"{name} is not known here: leave it out.", name)
        if name in NOTHING and value not in NOTHING[name]:
            raise Wrong(f"{name} is not possible with this engine: leave it out.", name)
    if body.get("model", model) != model:
        raise Wrong(f"There is no model {body['model']!r} here, but {model!r}.", "model", 404, "model_not_found")
    ids = _prompt(body, is_chat, tokenizer)
    room = max_seq_len - len(ids)
    if room < 1:
        said = f"The prompt has {len(ids)} tokens, and prompt and answer together may have {max_seq_len}: shorten it."
        raise Wrong(said, "messages" if is_chat else "prompt", code="context_length_exceeded")
    longest = room if is_chat else COMPLETION_TOKENS
    most = _number(body, "max_completion_tokens", int, 1, 2**31 - 1, _number(body, "max_tokens", int, 1, 2**31 - 1))
    most = min(room, most or longest)
    stops = body.get("stop", [])
    stops = [stops] if isinstance(stops, str) else stops
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise Wrong("stop is a text, or a list of texts, none of them empty.", "stop")
    options = body.get("stream_options", {})
    if not isinstance(options, dict):
        raise Wrong('stream_options is an object, such as {"include_usage": true}.', "stream_options")
    usage = bool(options.get("include_usage", False))
    return Asked(ids, most, _sampling(body, tokenizer), stops, _flag(body, "stream"), usage)


def _prompt(body: dict, is_chat: bool, tokenizer: ChatTokenizer) -> list[int]:
    name = "messages" if is_chat else "prompt"
    given = body.get(name)
    if not is_chat:
        if isinstance(given, list) and len(given) == 1 and not isinstance(given[0], int):
            [given] = given
        if isinstance(given, list) and given and all(isinstance(token, int) for token in given):
            if not all(0 <= token < tokenizer.vocab_size for token in given):
                raise Wrong(f"A token is an id from 0 to {tokenizer.vocab_size - 1}.", name)
            return given
        if not isinstance(given, str) or not given:
            raise Wrong("prompt is a text, or one list of token ids: send one prompt a request.", name)
        return tokenizer.encode(given)
    if not isinstance(given, list) or not given:
        raise Wrong("messages is a list of messages, each with role and content.", name)
    if not tokenizer.has_template:
        raise Wrong("This model has no chat template: ask /v1/completions.", name)
    try:
        return tokenizer.encode(tokenizer.chat([_message(message) for message in given]))
    except CourseError as error:
        raise Wrong(str(error), name) from None


def _message(message: Any) -> dict[str, str]:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(role, str) or not isinstance(content, str):
        raise Wrong("A message has a role and a content of text.", "messages")
    return {"role": "system" if role == "developer" else role, "content": content}


def _sampling(body: dict, tokenizer: ChatTokenizer) -> dict[str, np.ndarray]:
    given = {"temperature": 1.0, "top_p": 1.0, "seed": secrets.randbits(62), **body}
    if given["temperature"] == 0:
        given |= {"temperature": 1.0, "top_k": 1}  # greedy
    inputs: dict[str, np.ndarray] = {}
    for name, (tensor, dtype, least, most) in SAMPLING.items():
        kind = float if dtype is np.float32 else int
        if (value := _number(given, name, kind, least, most)) is not None:
            inputs[tensor] = np.array([[value]], dtype)
    if tokenizer.end_id is not None and not _flag(body, "ignore_eos"):
        inputs["end_id"] = np.array([[tokenizer.end_id]], np.int32)
    return inputs


def _number(body: dict, name: str, kind: type, least: float, most: float, default: Any = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise Wrong(f"{name} is {value!r}; give a number.", name)
    if not least <= value <= most:
        raise Wrong(f"{name} is {value}; give one from {least:g} to {most:g}.", name)
    return value


def _flag(body: dict, name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Wrong(f"{name} is {value!r}; give true or false.", name)
    return value


# An answer ------------------------------------------------------------------------------------------------------------


class _Handler(tornado.web.RequestHandler):
    def initialize(self, door: Door, is_chat: bool = False) -> None:
        self.door, self.is_chat = door, is_chat
        self._gone = asyncio.Event()

    def on_connection_close(self) -> None:
        self._gone.set()

    def prepare(self) -> None:
        given = self.request.headers.get("Authorization", "").encode()
        if self.door.key and not hmac.compare_digest(given, f"Bearer {self.door.key}".encode()):
            self._refuse(Wrong("The API key is missing or wrong.", status=401, code="invalid_api_key"))

    def _refuse(self, wrong: Wrong) -> None:
        self.set_status(wrong.status)
        self.finish(wrong.body)

    def write_error(self, status_code: int, **_) -> None:
        self._refuse(Wrong(self._reason, status=status_code))


class _Missing(_Handler):
    def prepare(self) -> None:
        self._refuse(Wrong("Not Found", status=404))


class _Models(_Handler):
    def get(self) -> None:
        model = {"id": self.door.model, "object": "model", "created": self.door.since, "owned_by": "inflight"}
        self.finish({"object": "list", "data": [model]})


class _Completions(_Handler):
    async def post(self) -> None:
        door = self.door
        try:
            body = json.loads(self.request.body)
        except ValueError:
            return self._refuse(Wrong("The body is no JSON."))
        try:
            wanted = asked(body, self.is_chat, door.model, door.tokenizer, door.max_seq_len)
        except Wrong as wrong:
            return self._refuse(wrong)
        answer = asyncio.ensure_future((self._stream if wanted.stream else self._whole)(wanted))
        gone = asyncio.ensure_future(self._gone.wait())
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        answer.cancel()  # of one that is over, nothing
        with contextlib.suppress(asyncio.CancelledError, tornado.iostream.StreamClosedError):
            await answer

    async def _whole(self, wanted: Asked) -> None:
        said, reason, number = "", None, 0
        try:
            async for piece, why, count in self.door.pieces(wanted):
                said, reason, number = said + piece, why, count
        except Wrong as wrong:
            return self._refuse(wrong)
        content = {"message": {"role": "assistant", "content": said}} if self.is_chat else {"text": said}
        answer = self._object("", [{"index": 0, **content, "logprobs": None, "finish_reason": reason}])
        self.finish({**answer, "usage": _usage(wanted, number)})

    async def _stream(self, wanted: Asked) -> None:
        number, chunk = 0, partial(self._object, ".chunk" if self.is_chat else "")
        self.set_header("Content-Type", "text/event-stream")
        try:
            async for piece, reason, count in self.door.pieces(wanted):
                number = count
                if not self._headers_written and self.is_chat:
                    await self._event(chunk([_delta({"role": "assistant", "content": ""}, None)]))
                if piece:
                    await self._event(chunk([_delta({"content": piece}, None) if self.is_chat else _text(piece, None)]))
                if reason:
                    await self._event(chunk([_delta({}, reason) if self.is_chat else _text("", reason)]))
        except Wrong as wrong:
            if not self._headers_written:
                return self._refuse(wrong)
            await self._event(wrong.body)
        if wanted.usage:
            await self._event({**chunk([]), "usage": _usage(wanted, number)})
        self.write("data: [DONE]\n\n")
        await self.finish()

    async def _event(self, content: dict) -> None:
        self.write(f"data: {json.dumps(content)}\n\n")
        await self.flush()

    def _object(self, suffix: str, choices: list[dict]) -> dict:
        name = f"chat.completion{suffix}" if self.is_chat else "text_completion"
        prefix = "chatcmpl" if self.is_chat else "cmpl"
        return {
            "id": f"{prefix}-{id(self):x}",
            "object": name,
            "created": int(time.time()),
            "model": self.door.model,
            "choices": choices,
        }


def _delta(content: dict, reason: str | None) -> dict:
    return {"index": 0, "delta": content, "logprobs": None, "finish_reason": reason}


def _text(piece: str, reason: str | None) -> dict:
    return {"index": 0, "text": piece, "logprobs": None, "finish_reason": reason}


def _usage(wanted: Asked, number: int) -> dict[str, int]:
    prompt = len(wanted.input_ids)
    return {"prompt_tokens": prompt, "completion_tokens": number, "total_tokens": prompt + number}


# The door -------------------------------------------------------------------------------------------------------------


class Door:
    """Listens on 127.0.0.1 in a thread of its own as long as the block lasts.

    Parameters
    ----------
    server : Server
        Runs; its `tensorrt_llm` is decoupled.
    port : int
    key : str, optional
        Without it in `Authorization: Bearer …` every request is refused.

    Raises
    ------
    CourseError
        The port is taken, or the model is not decoupled.
    """

    def __init__(self, server: Server, port: int, key: str | None = None):
        if repository.is_llmapi(server.repo):
            raise CourseError(
                "OpenAI's protocol stands in front of the engine backend's tensorrt_llm, which takes tokens, and "
                "llmapi takes text: leave out --contract llmapi. Of TensorRT-LLM itself, trtllm-serve speaks it."
            )
        config = repository.read_config(server.repo / ENGINE / repository.CONFIG)
        if not config.model_transaction_policy.decoupled:
            raise CourseError(
                f"OpenAI's clients read answers as they are made, and {ENGINE} is not decoupled: set decoupled_mode to "
                "true. It then refuses clients that wait for one whole response."
            )
        engine = Path(config.parameters["gpt_model_path"].string_value)
        self.tokenizer, self.max_seq_len = load_tokenizer(engine), read(engine).build_config.max_seq_len
        self.model, self.since, self.key = ENGINE, int(time.time()), key
        self._server, self._port = server, port
        self._clients: dict[str, triton.InferenceServerClient] = {}
        try:
            self._sockets = tornado.netutil.bind_sockets(port, HOST)
        except OSError as error:
            raise CourseError(
                f"Port {port} cannot be listened on ({error.strerror}): give another --openai-port."
            ) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._sockets[0].getsockname()[1]}/v1"

    def __enter__(self) -> Door:
        self._loop, self._end = asyncio.new_event_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="openai")
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        paths = {
            "/v1/models": (_Models, {}),
            "/v1/chat/completions": (_Completions, {"is_chat": True}),
            "/v1/completions": (_Completions, {"is_chat": False}),
        }
        routes = [(path, handler, {"door": self, **given}) for path, (handler, given) in paths.items()]
        others: dict[str, Any] = {"default_handler_class": _Missing, "default_handler_args": {"door": self}}
        application = tornado.web.Application(routes, log_function=lambda _: None, **others)
        listener = tornado.httpserver.HTTPServer(application, max_body_size=MOST_BODY_BYTES)
        listener.add_sockets(self._sockets)
        await self._end.wait()
        listener.stop()
        await listener.close_all_connections()
        for client in self._clients.values():
            await client.close()

    async def pieces(self, wanted: Asked) -> AsyncGenerator[tuple[str, str | None, int], None]:
        """The answer's text as it comes: piece, why it ends (None: it goes on), tokens so far. Raises Wrong."""
        text = Detokenizer(self.tokenizer, wanted.stops, int(np.max(wanted.inputs.get("min_length", 0))))
        url = self._server.grpc_url
        inputs = {
            "input_ids": np.array([wanted.input_ids], np.int32),
            "input_lengths": np.array([[len(wanted.input_ids)]], np.int32),
            "request_output_len": np.array([[wanted.most]], np.int32),
            "streaming": np.array([[True]]),
            **wanted.inputs,
        }
        outputs = [triton.InferRequestedOutput(name) for name in ("output_ids", "is_final")]

        async def request():
            yield {"model_name": ENGINE, "inputs": tensors(inputs), "outputs": outputs}

        if url not in self._clients:
            self._clients[url] = triton.InferenceServerClient(url)
        replies = self._clients[url].stream_infer(request())
        try:
            async for result, error in replies:
                if error is not None:
                    raise error
                ids = result.as_numpy("output_ids").reshape(-1).tolist()
                is_final = bool(result.as_numpy("is_final").item())
                piece, number = text.add(ids, is_final), len(text.ids)
                if text.stopped_by or is_final:
                    yield piece, "length" if number >= wanted.most and not text.stopped_by else "stop", number
                    return
                yield piece, None, number
        except (InferenceServerException, grpc.RpcError) as error:
            meant = course_error(error, url)
            raise Wrong(str(meant), status=400 if isinstance(meant, Refused) else 503) from None
        finally:
            replies.cancel()
