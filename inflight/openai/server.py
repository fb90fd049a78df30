"""OpenAI's protocol in front of a running Triton: FastAPI and uvicorn, as vLLM, SGLang and trtllm-serve have it.

    with OpenAIServer("127.0.0.1:8001", engine_dir, port=9000) as server:
        ...                            # OpenAI(base_url=server.url, api_key="none")

A request becomes tokens here and goes to `tensorrt_llm` over gRPC; its tokens become text here, too. A client that goes
away, or whose stop string has come, ends its request, and the engine has the slot again.
/metrics has what clients meet and how full the engine is, under vLLM's names; all else is on Triton's page.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastapi
import h11
import uvicorn
from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from inflight.engine.store import NAME
from inflight.errors import CourseError
from inflight.openai import bodies, errors
from inflight.openai.bodies import ChatBody, CompletionBody
from inflight.openai.completion import Completion
from inflight.openai.engine import Engine
from inflight.openai.errors import OpenAIError
from inflight.triton.repository.layout import ENGINE

HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "::1")
MOST_HEADER_BYTES = 64 * 1024
BYTES_A_CHARACTER, BYTES_BESIDE_TEXT = 2, 512 * 1024  # of a body, at most: some of its characters are escaped
# Of a larger body, so many bytes are read and thrown away: a client that is still sending would not see the answer.
READ_PAST_LIMIT = 64 * 1024 * 1024
START_TIMEOUT_S, LOOK_EVERY_S = 60, 0.2
KEEP_ALIVE_S = 600  # longer than clients keep a connection that they may use again
CLOSE_S = 1  # for clients that do not read the end of their answer


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
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._engine.is_connected.wait(LOOK_EVERY_S):
            if not self._thread.is_alive():
                raise CourseError("OpenAI's server ended while starting: the lines above say why.")
            if time.monotonic() > deadline:
                self._uvicorn.should_exit = True
                raise CourseError(f"OpenAI's server did not start within {START_TIMEOUT_S} s: start it again.")
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._engine.end()
        self._thread.join()

    def _application(self) -> fastapi.FastAPI:
        # No pages for which a browser would fetch scripts, and no telemetry, whatever the environment says.
        app = fastapi.FastAPI(lifespan=self._engine.connected, openapi_url=None, telemetry={"auto_configure": False})
        app.middleware("http")(self._check_host)
        app.add_exception_handler(HTTPException, errors.answer)
        app.add_exception_handler(ClientDisconnect, errors.answer)
        app.add_exception_handler(Exception, errors.answer)
        app.add_api_route("/health", self._health, methods=["GET", "HEAD"])
        app.add_api_route("/metrics", self._metrics, methods=["GET", "HEAD"])
        v1 = fastapi.APIRouter(prefix="/v1", dependencies=[fastapi.Depends(self._check_key)])
        v1.add_api_route("/models", self._models, methods=["GET", "HEAD"])
        v1.add_api_route("/models/{name:path}", self._model, methods=["GET", "HEAD"])
        v1.add_api_route("/chat/completions", self._chat, methods=["POST"])
        v1.add_api_route("/completions", self._text, methods=["POST"])
        v1.add_api_route("/kv_blocks/{name}", self._block, methods=["GET"])
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
            return await errors.answer(request, OpenAIError(message, status=421))
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
        bodies.check_model(name)
        most = {"max_model_len": self._engine.limits.max_seq_len}
        return {"id": ENGINE, "object": "model", "created": self._since, "owned_by": "inflight", **most}

    async def _block(self, name: str) -> Response:
        """Give a block of the store to another engine."""
        gone = OpenAIError("There is no such block in the store.", None, 404)
        if not (self._engine.store and NAME.fullmatch(name)):
            raise gone
        try:
            content = await asyncio.to_thread((self._engine.store / name).read_bytes)
        except OSError:
            raise gone from None
        self._engine.metrics.blocks_sent.inc()
        return Response(content, media_type="application/octet-stream")

    async def _chat(self, request: Request) -> Response:
        return await self._complete(request, ChatBody)

    async def _text(self, request: Request) -> Response:
        return await self._complete(request, CompletionBody)

    async def _complete(self, request: Request, kind: type[ChatBody | CompletionBody]) -> Response:
        data = await _body(request, self._most_bytes)
        # In a thread: to read and tokenize a request takes too long for the event loop.
        completion = await asyncio.to_thread(lambda: Completion(bodies.read(data, kind, self._engine), self._engine))
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
        # A client that still sends would not see the answer if the connection were closed at once.
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
    if media_type != "application/json":  # a web page may not send this type to another host without leave
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


async def _unless_gone(request: Request, answer: Awaitable[Any]) -> Any:
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
