"""Another server, asked by OpenAI's protocol: what it is told, what it answers, and the tokens counted here.

    server = OpenAIServer("http://127.0.0.1:8080", tokenizer)
    asking = server.find(requests[0], stream=True)      # endpoint, model's name, and the fields it takes
    with PeerSender(server, asking, stream=True) as send:
        run = load_generator.load(send, requests)

It is nobody's server here: it gets no key of ours, nothing it says is believed, and whatever it sends is bounded.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from inflight.bench.load_generator import Timing
from inflight.bench.time_limits import TimeLimits
from inflight.bench.workload import TimedRequest, count_tokens
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError

KEY_VARIABLE = "INFLIGHT_PEER_API_KEY"
CONNECT_S = 5
MODELS_S = 20  # for the list of models, which a server has at hand
MOST_BYTES, MOST_BYTES_A_TOKEN = 1 << 20, 1 << 14  # of an answer: its frame, and what a piece with one token may take
SHOWN = 200  # characters of what a server said that a message repeats
PROBE_TOKENS = 16

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LACKING = (404, 405, 501)  # statuses of an endpoint that is not there
REFUSING = (400, 422)  # and of a request with a field that is not known
# What makes an answer exactly as long as asked for, in the words of llama.cpp and of vLLM, and keeps a prompt that was
# sent before from being remembered. From everything to nothing: some servers refuse what they do not know.
EXACT, FORGET = ("ignore_eos", "min_tokens"), ("cache_prompt",)


class Wire:
    """The socket of one HTTP request, which another thread may cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: dict) -> None:
        """Called by httpx as the request goes on."""
        if event.startswith("connection.connect_") and event.endswith(".complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_cut:
                self.cut()

    def cut(self) -> None:
        """Have whoever reads from the socket find it closed, now or as soon as it is there."""
        self.is_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)


class Answered(CourseError):
    """The server answered with a status that is no answer."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Asking:
    """How a server is asked: its endpoint, its model's name, the fields beyond the protocol that it takes."""

    endpoint: str
    model: str
    fields: tuple[str, ...]


@dataclass
class Heard:
    """What came of one request.

    Attributes
    ----------
    asked : int
        Tokens asked for.
    text : str
    claimed : int or None
        `completion_tokens` of its `usage`; None where there is none.
    is_stopped : bool
        Its `finish_reason` says that the answer ended by itself.
    sent_ns, first_ns, last_ns : int
        As in `load_generator.Timing`.
    """

    asked: int
    text: str = ""
    claimed: int | None = None
    is_stopped: bool = False
    sent_ns: int = 0
    first_ns: int | None = None
    last_ns: int = 0


class OpenAIServer:
    """A server with OpenAI's endpoints.

    Parameters
    ----------
    url : str
        http://host:port or https://…; a path before /v1 is kept, /v1 itself may be there.
    tokenizer : ChatTokenizer
        Of the model that both servers have: makes the prompt, counts the answer.
    timeout_s : float
        Most seconds for one answer, from its request to its end.

    Raises
    ------
    CourseError
        The address is none, or the key in the environment cannot be sent.
    """

    def __init__(self, url: str, tokenizer: ChatTokenizer, timeout_s: float = 300):
        self.url, self.tokenizer, self.timeout_s = _address(url), tokenizer, timeout_s
        self._headers = {"Accept-Encoding": "identity"}
        if key := os.environ.get(KEY_VARIABLE):
            if not (key.isascii() and key.isprintable()) or key != key.strip():
                raise CourseError(f"{KEY_VARIABLE} is no key that a header can carry: set it to one line of ASCII.")
            self._headers["Authorization"] = f"Bearer {key}"
        self._limits = TimeLimits()
        # Made before the first request: the very first of a process takes longer than many an answer.
        self._idle = [self._new_client()]

    def find(
        self,
        request: TimedRequest,
        stream: bool,
        model: str | None = None,
        exact: bool = True,
        remember: bool = False,
    ) -> Asking:
        """How this server is to be asked, found by a short answer to `request`.

        Parameters
        ----------
        exact : bool
            Whether answers are to be exactly as long as asked for; if not, they end by themselves.
        remember : bool
            Whether it may keep what it computed of a prompt for later ones.

        Raises
        ------
        CourseError
            It does not answer, is not OpenAI-compatible, or has no model of that name: one sentence each.
        """
        name = model or self._first_model()
        short = TimedRequest(request.text, min(PROBE_TOKENS, request.max_tokens), 0.0, request.input_len)
        refused: Answered | None = None
        exactly, forget = EXACT if exact else (), () if remember else FORGET
        for endpoint in (COMPLETIONS, CHAT):
            for fields in dict.fromkeys(((*exactly, *forget), exactly, ())):
                asking = Asking(endpoint, name, fields)
                try:
                    self.ask(short, asking, stream, Wire())
                    return asking
                except Answered as error:
                    if refused is None or error.status not in LACKING:
                        refused = error
                    if error.status in LACKING:
                        break
                    if error.status not in REFUSING:
                        raise
        if refused is not None and refused.status not in LACKING:
            raise refused
        raise CourseError(
            f"The server at {self.url} is not OpenAI-compatible: it has neither {COMPLETIONS} nor {CHAT}. "
            "Check the address, or start it with its OpenAI endpoints."
        )

    def is_live(self) -> bool:
        """Whether it answers at all, whatever it says."""
        try:
            for _ in self._exchange("GET", "/v1/models", None, CONNECT_S, MOST_BYTES, Wire()):
                pass
        except Answered:
            return True
        except CourseError:
            return False
        return True

    def ask(self, request: TimedRequest, asking: Asking, stream: bool, wire: Wire) -> Heard:
        """Send one request and take its answer; `wire` may be cut meanwhile by another thread.

        Raises
        ------
        CourseError
            There is no whole answer in the protocol's form within `timeout_s` and a bounded number of bytes.
        """
        heard = Heard(request.max_tokens)
        body = json.dumps(self._body(request, asking, stream))
        most = MOST_BYTES + MOST_BYTES_A_TOKEN * request.max_tokens
        heard.sent_ns = time.perf_counter_ns()
        with contextlib.closing(self._exchange("POST", asking.endpoint, body, self.timeout_s, most, wire)) as chunks:
            if stream:
                self._take_stream(chunks, heard)
            else:
                self._take(self._json(b"".join(chunks), "its answer"), heard)
                heard.last_ns = time.perf_counter_ns()
        return heard

    def _body(self, request: TimedRequest, asking: Asking, stream: bool) -> dict:
        values = {"ignore_eos": True, "min_tokens": request.max_tokens, "cache_prompt": False}
        body: dict[str, Any] = {"model": asking.model, "max_tokens": request.max_tokens, "temperature": 0}
        body |= {name: values[name] for name in asking.fields}
        if asking.endpoint == COMPLETIONS:
            body["prompt"] = self.tokenizer.chat(request.text)
        else:
            body["messages"] = [{"role": "user", "content": request.text}]
        if stream:
            body["stream"] = True
            if asking.fields:
                body["stream_options"] = {"include_usage": True}
        return body

    # What comes back --------------------------------------------------------------------------------------------------

    def _take_stream(self, chunks: Iterator[bytes], heard: Heard) -> None:
        """Server-sent events: lines `data: {…}`, the last of them `data: [DONE]`."""
        is_complete = False
        for line in _lines(chunks):
            if not line.startswith(b"data:"):  # blank, a comment, another field; or no stream at all
                if line.lstrip()[:1] in (b"{", b"<"):
                    raise CourseError(f"{self._who()} sent no stream of events but {_shown(line)}.{_NOT_ONE}")
                continue
            if line[5:].strip() == b"[DONE]":
                is_complete = True
                break
            before = len(heard.text)
            is_complete |= self._take(self._json(line[5:], "a piece of its stream"), heard)
            if len(heard.text) > before:
                heard.last_ns = time.perf_counter_ns()
                heard.first_ns = heard.first_ns or heard.last_ns
        if not is_complete:
            raise CourseError(f"{self._who()} broke off its stream after {len(heard.text)} characters. {_LOOK}")
        if heard.first_ns is None:
            raise CourseError(f"{self._who()} ended its stream without a character of text. {_LOOK}")

    def _take(self, content: Any, heard: Heard) -> bool:
        """Add an answer, or a piece of one; whether it says that the answer is at its end."""
        if isinstance(content, dict) and content.get("error"):
            raise CourseError(f"{self._who()} answered with an error: {_shown(_reason(content['error']))}. {_LOOK}")
        try:
            usage, choices = content.get("usage"), content["choices"]
            claimed = usage["completion_tokens"] if usage else None
            if claimed is not None and (not isinstance(claimed, int) or not 0 <= claimed < 1 << 53):
                raise TypeError("completion_tokens")
            # A piece may bring usage alone.
            text, reason = ("", None) if choices == [] and usage else _choice(choices[0])
        except (AttributeError, KeyError, IndexError, TypeError):
            found = json.dumps(content)
            raise CourseError(f"{self._who()} does not answer in OpenAI's form: {_shown(found)}.{_NOT_ONE}") from None
        heard.text += text
        heard.claimed = claimed if claimed is not None else heard.claimed
        heard.is_stopped |= reason == "stop"
        return reason is not None

    def _first_model(self) -> str:
        """The first name of its list of models."""
        try:
            found = b"".join(self._exchange("GET", "/v1/models", None, MODELS_S, MOST_BYTES, Wire()))
            content = self._json(found, "its list of models")
            name = content["data"][0]["id"]
            if isinstance(name, str):
                return name
        except (KeyError, IndexError, TypeError):
            pass  # a list in another form is no list: told below
        except Answered as error:
            if error.status not in LACKING:
                raise
        raise CourseError(f"{self._who()} names no model at /v1/models: name one with --model, or check the address.")

    # The wire ---------------------------------------------------------------------------------------------------------

    def _exchange(
        self, method: str, path: str, body: str | None, limit_s: float, most: int, wire: Wire
    ) -> Generator[bytes]:
        """The bytes of a good answer as they come, of a connection of its own."""
        headers = {**self._headers, **({} if body is None else {"Content-Type": "application/json"})}
        timeout = httpx.Timeout(limit_s, connect=min(CONNECT_S, limit_s))
        started = time.monotonic()
        try:
            with (
                self._limits.within(limit_s, wire.cut),
                self._client() as client,
                client.stream(
                    method,
                    self.url + path,
                    content=body,
                    headers=headers,
                    timeout=timeout,
                    extensions={"trace": wire.trace},
                ) as response,
            ):
                if response.status_code != 200:
                    raise self._refused(response, most)
                yield from self._bounded(response, most)
            if wire.is_cut:  # an answer that ends with its connection looks whole then
                raise httpx.ReadError("cut")
        except httpx.RequestError as error:
            is_late = time.monotonic() - started >= limit_s
            raise CourseError(self._trouble(error, is_late, limit_s, wire)) from None

    @contextlib.contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        """A client for one request, which the next one gets. One for all would have them wait for its lock."""
        try:
            client = self._idle.pop()
        except IndexError:  # as many are under way as never before
            client = self._new_client()
        try:
            yield client
        finally:
            self._idle.append(client)

    def _new_client(self) -> httpx.Client:
        return httpx.Client(
            limits=httpx.Limits(max_keepalive_connections=0),  # a connection is of one request, which may cut it
            verify=_tls(self.url.startswith("https")),
            trust_env=not _is_loopback(self.url),  # a proxy would get what is sent
            follow_redirects=False,  # another address would get the key
        )

    def _bounded(self, response: httpx.Response, most: int) -> Iterator[bytes]:
        """Never decompressed: what a server packs, though asked not to, is no answer."""
        so_far = 0
        for chunk in response.iter_raw():
            so_far += len(chunk)
            if so_far > most:
                raise CourseError(f"{self._who()} sent more than {most:,} bytes for one answer. {_LOOK}")
            yield chunk

    def _refused(self, response: httpx.Response, most: int) -> Answered:
        status = response.status_code
        found = b"".join(self._bounded(response, most))
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            found = _reason(json.loads(found)["error"])
        if status in (401, 403):
            advice = f"Put its key into the environment variable {KEY_VARIABLE}."
        elif 300 <= status < 400:
            advice = "Give the address that it points to."
        else:
            advice = _LOOK
        return Answered(f"{self._who()} answered with status {status}: {_shown(found)}. {advice}", status)

    def _trouble(self, error: httpx.RequestError, is_late: bool, limit_s: float, wire: Wire) -> str:
        if is_late or (isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)):
            return (
                f"{self._who()} had not ended its answer after {limit_s:g} s. See whether it still works, or allow "
                "more with --timeout."
            )
        if wire.is_cut:
            return f"The request to {self.url} was ended before its answer was there."
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            return (
                f"The server at {self.url} does not answer ({_shown(str(error))}). Start it, and check host and port."
            )
        return f"{self._who()} broke off its answer, or speaks no HTTP ({_shown(str(error))}). {_LOOK}"

    def _json(self, found: bytes, what: str) -> Any:
        try:
            return json.loads(found)
        except (ValueError, RecursionError):
            raise CourseError(
                f"{self._who()} is not OpenAI-compatible: {what} is no JSON but {_shown(found)}.{_NOT_ONE}"
            ) from None

    def _who(self) -> str:
        return f"The server at {self.url}"


class PeerSender:
    """Sends requests to another server and takes the times of each, as `load_generator.Sender` does to ours.

    A token of an answer is one of our tokenizer's in the text that came, at most as many as asked for. That is exact
    where a model writes words as its tokenizer cuts them; a token without text, such as the end of an answer, is not
    seen, and a word written in two halves counts as one token.

    Parameters
    ----------
    goes_on : bool
        Whether requests are sent after one that failed, for as long as the server answers.

    Attributes
    ----------
    heard : list of Heard
        What came, in the order of its end.
    failure : str
        Why the first request failed; blank if none did.
    """

    def __init__(self, server: OpenAIServer, asking: Asking, stream: bool, goes_on: bool = False):
        self.url = server.url
        self._goes_on = goes_on
        self.heard: list[Heard] = []
        self.failure = ""
        self._server, self._asking, self._stream = server, asking, stream
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
        self._is_over = False

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        wire = Wire()
        with self._lock:
            if self._is_over:
                raise CourseError("The request was ended before it was sent.")
            self._wires.add(wire)
        try:
            heard = self._server.ask(request, self._asking, self._stream, wire)
        except CourseError as error:
            with self._lock:
                self.failure = self.failure or str(error)
            raise
        finally:
            with self._lock:
                self._wires.discard(wire)
        with self._lock:
            self.heard.append(heard)
        return Timing(heard.sent_ns, heard.first_ns, heard.last_ns, self.count(heard))

    def count(self, heard: Heard) -> int:
        """Tokens of an answer, at most as many as asked for."""
        return min(heard.asked, count_tokens(self._server.tokenizer, heard.text))

    def is_alive(self) -> bool:
        """Whether sending another request makes sense: `abort` has not been called, and no request has failed.

        If it goes on after one that failed: the server still answers.
        """
        return not self._is_over and (not self.failure or (self._goes_on and self._server.is_live()))

    def abort(self) -> None:
        """End what is under way."""
        with self._lock:
            self._is_over = True
            wires = list(self._wires)
        for wire in wires:
            wire.cut()


# ---- small things

_LOOK = "See what it writes to its log."
_NOT_ONE = " Give the address of a server with OpenAI's endpoints."


def _address(url: str) -> str:
    """`url` without /v1 and a slash at its end."""
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise CourseError(f"{_shown(url)} is no address ({error}): write http://127.0.0.1:8080.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CourseError(f"{_shown(url)} is no address of a server: write http://127.0.0.1:8080.")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise CourseError(
            f"Give the address of the server alone, http://host:port; a key comes from the environment, {KEY_VARIABLE}."
        )
    return str(parsed).rstrip("/").removesuffix("/v1").rstrip("/")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


@cache
def _tls(is_used: bool) -> ssl.SSLContext:
    """Made once: it takes longer than a request. For plain HTTP one that nothing is read for, as none is used."""
    return httpx.create_ssl_context() if is_used else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _choice(choice: dict) -> tuple[str, str | None]:
    """Text and `finish_reason` of a choice, in the form of either endpoint, whole or a piece."""
    reason = choice.get("finish_reason")
    if "text" in choice:
        text = choice["text"]
    else:
        message = choice["delta"] if "delta" in choice else choice["message"]
        text = (message.get("reasoning_content") or "") + (message.get("content") or "")
    if not isinstance(text, str) or not isinstance(reason, str | None):
        raise TypeError("text")
    return text, reason


def _reason(error: Any) -> str:
    found = error.get("message", error) if isinstance(error, dict) else error
    return str(found)


def _shown(found: bytes | str) -> str:
    """The beginning of what a server sent, on one line and without signs that a terminal would obey."""
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else found
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in text[: 4 * SHOWN]).split())
    return (text[:SHOWN] + "…" if len(text) > SHOWN else text) or "nothing"
