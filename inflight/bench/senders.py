"""Who sends a request and takes its times: to a Triton, to a server with OpenAI's endpoints, to an engine without one.

    with Sender("127.0.0.1:8001") as send:
        send(request).last_ns

A load calls one from many threads: `Sends` says what it relies on.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
from httpx_sse import EventSource, SSEError

from inflight.bench.workload import TimedRequest, count_tokens
from inflight.checkpoint.tokenizer import ChatTokenizer, load_tokenizer
from inflight.engine.executor import Executor
from inflight.engine.messages import Request
from inflight.errors import CourseError
from inflight.triton.client.client import Client
from inflight.triton.repository.layout import BASELINE, ENSEMBLE

KEY_VARIABLE = "INFLIGHT_PEER_API_KEY"
TIMEOUT_S = 300
NEVER = -1  # an end id that no token has: answers are exactly as long as asked for


@dataclass(frozen=True)
class Timing:
    """When one request was sent and answered, in nanoseconds of `time.perf_counter_ns`.

    `first_ns` is the arrival of the first piece of a streamed answer, None for a whole one; `output_len` counts tokens;
    `request_id` is the request's name in the server's log, blank where the sender gave it none.
    """

    sent_ns: int
    first_ns: int | None
    last_ns: int
    output_len: int
    request_id: str = ""


class Sends(Protocol):
    """Protocol of an object that sends requests; a load calls it from several threads.

    Attributes
    ----------
    url : str
        Where they go, for messages.
    """

    @property
    def url(self) -> str: ...

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        ...

    def is_alive(self) -> bool:
        """Say whether another request should be sent."""
        ...

    def abort(self) -> None:
        """End what is under way."""
        ...


class Sender:
    """Sends requests to one text model of a Triton and takes the times of each. May be called from several threads.

    Every answer is made exactly as long as asked for: no token ends it early. So the tokens received are the request's
    `max_tokens`, however many pieces a stream brings them in: a piece may hold two tokens, or back half a character.
    Keep prompt and answer within the engine's `max_seq_len`, where every answer ends. With a `tokenizer`, answers end
    by themselves instead, `max_tokens` is the most, and the tokens are those that their text is cut into.

    Parameters
    ----------
    url : str
        As `Client` takes it.
    model : str
    stream : bool
        Ask for the answer in pieces, which gives TTFT and TPOT. The model must be decoupled. Each stream under way has
        a connection of its own, which later ones use again; whole answers share the client's.
    tokenizer : ChatTokenizer, optional
        The model's; answers end by themselves then.
    timeout_s : float
        Longest time to wait for a whole answer, or for the next piece of one.
    """

    def __init__(
        self,
        url: str,
        model: str = ENSEMBLE,
        stream: bool = False,
        tokenizer: ChatTokenizer | None = None,
        timeout_s: float = 120,
    ):
        self.client, self.stream = Client(url, model, timeout_s), stream
        self._tokenizer = tokenizer
        self._aborted = False

    @property
    def url(self) -> str:
        return self.client.url

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        options = {}
        if self._tokenizer is None:
            options = {"min_length": request.max_tokens} if self.client.model == BASELINE else {"end_id": NEVER}
        sent = time.perf_counter_ns()
        if not self.stream:
            answer = self.client.ask(request.text, request.max_tokens, **options)
            return Timing(sent, None, time.perf_counter_ns(), self._tokens(request, answer.pieces), answer.request_id)
        first = last = None
        stream = self.client.stream(request.text, request.max_tokens, **options)
        for _ in stream:
            last = time.perf_counter_ns()
            first = first or last
            if self._aborted:
                raise CourseError("The request was ended before its answer was there.")
        if last is None:
            if self._tokenizer is None:
                raise CourseError(f"{self.client.model} at {self.client.url} ended the stream without an answer.")
            first = last = time.perf_counter_ns()  # its first token was the one that ends it
        return Timing(sent, first, last, self._tokens(request, stream.answer.pieces), stream.answer.request_id)

    def _tokens(self, request: TimedRequest, pieces: list[str]) -> int:
        if self._tokenizer is None:
            return request.max_tokens
        text = "".join(pieces).removeprefix(request.text)  # some servers repeat the prompt
        return min(request.max_tokens, count_tokens(text, self._tokenizer))

    def is_alive(self) -> bool:
        """Say whether the server still answers, and `abort` has not been called."""
        return not self._aborted and self.client.is_live()

    def abort(self) -> None:
        """End what is under way: whole answers at once, streams at their next piece."""
        self._aborted = True
        self.client.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_) -> None:
        self.client.close()


class OpenAISender:
    """Sends requests to a server with OpenAI's endpoints such as vLLM's, llama.cpp's, SGLang's or TensorRT-LLM's.

    It is asked at /v1/completions, greedily, with our chat template, for answers of exactly `max_tokens` tokens. Tokens
    are those of our tokenizer in the text that comes, whatever the server says of itself.

    Parameters
    ----------
    url : str
        http://host:port; /v1 at its end may be there. A key comes from the environment, INFLIGHT_PEER_API_KEY.
    tokenizer : ChatTokenizer
        Of the model that it serves.
    stream : bool
        Ask for answers in pieces, which gives TTFT and TPOT.

    Raises
    ------
    CourseError
        It does not answer, lists no model, or does not answer a short request.
    """

    def __init__(self, url: str, tokenizer: ChatTokenizer, stream: bool = False):
        self.url = url.rstrip("/").removesuffix("/v1")
        self._tokenizer, self._stream = tokenizer, stream
        self._tls = httpx.create_ssl_context()
        self._clients = threading.local()  # one a thread: of one for all, each would wait for the others
        self._aborted = False
        self._model = self._first_model()
        self._forgets = True
        short = TimedRequest("Hi", 1, 0.0, 1)
        try:
            self(short)
        except CourseError:  # it may be the field that this server does not know
            self._forgets = False
            self(short)

    def __call__(self, request: TimedRequest) -> Timing:
        """Send `request` now and wait for the end of its answer; CourseError when there is none."""
        first = last = None
        pieces = []
        sent = time.perf_counter_ns()
        for text in self._pieces(self._body(request)):
            if self._aborted:
                raise CourseError("The request was ended before its answer was there.")
            if text:
                last = time.perf_counter_ns()
                first = first or last
                pieces.append(text)
        if last is None:
            raise CourseError(f"The server at {self.url} answered without a character of text. See its log.")
        tokens = min(request.max_tokens, count_tokens("".join(pieces), self._tokenizer))
        return Timing(sent, first if self._stream else None, last, tokens)

    def is_alive(self) -> bool:
        """Say whether the server still answers, whatever it says, and `abort` has not been called."""
        try:
            self._client.get(f"{self.url}/v1/models", timeout=5)
        except httpx.HTTPError:
            return False
        return not self._aborted

    def abort(self) -> None:
        """End what is under way: streams at their next piece, whole answers when they come."""
        self._aborted = True

    @property
    def _client(self) -> httpx.Client:
        if not hasattr(self._clients, "one"):
            key = os.environ.get(KEY_VARIABLE)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._clients.one = httpx.Client(headers=headers, timeout=TIMEOUT_S, verify=self._tls)
        return self._clients.one

    def _first_model(self) -> str:
        try:
            return self._client.get(f"{self.url}/v1/models", timeout=20).raise_for_status().json()["data"][0]["id"]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._trouble(error) from None
        except (ValueError, LookupError, TypeError):
            raise CourseError(f"The server at {self.url} lists no model at /v1/models: check its address.") from None

    def _body(self, request: TimedRequest) -> dict:
        body = {
            "model": self._model,
            "prompt": self._prompt(request.text),
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": self._stream,
            # Beyond the protocol: an answer as long as asked for, in the words of vLLM and llama.cpp; below, by
            # llama.cpp, nothing remembered of an earlier prompt, which other servers may refuse to read.
            "ignore_eos": True,
            "min_tokens": request.max_tokens,
        }
        return {**body, "cache_prompt": False} if self._forgets else body

    def _pieces(self, body: dict) -> Iterator[str]:
        """Yield the text of an answer as it comes."""
        try:
            with self._client.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                if response.status_code != 200:
                    said = " ".join(response.read().decode("utf-8", "replace").split())
                    raise CourseError(
                        f"The server at {self.url} answered with status {response.status_code}: {said[:200]}"
                    )
                if not self._stream:
                    yield self._choices(response.read())[0]["text"]
                    return
                for event in EventSource(response).iter_sse():
                    if event.data == "[DONE]":
                        return
                    choices = self._choices(event.data)
                    yield choices[0].get("text", "") if choices else ""
            raise CourseError(f"The server at {self.url} broke off its stream. See its log.")
        except (SSEError, ValueError, LookupError, TypeError, AttributeError):
            raise CourseError(
                f"The server at {self.url} does not answer in OpenAI's form: check its address."
            ) from None
        except httpx.HTTPError as error:
            raise self._trouble(error) from None

    def _choices(self, content: str | bytes) -> list[dict]:
        """Return the `choices` of an answer or a piece of one; raise an error in the server's own words."""
        told = json.loads(content)
        if error := told.get("error"):
            words = error.get("message") if isinstance(error, dict) else error
            raise CourseError(f"The server at {self.url} ended an answer with an error: {words}")
        return told["choices"]

    def _prompt(self, text: str) -> str | list[int]:
        """Make a chat of `text`: as text, or as tokens where the text would be read as a control token."""
        chat, ids = self._tokenizer.chat(text), self._tokenizer.encode_chat(text)
        return chat if self._tokenizer.encode(chat) == ids else ids

    def _trouble(self, error: Exception) -> CourseError:
        return CourseError(
            f"The server at {self.url} does not answer ({error or type(error).__name__}). Start it, and check host and "
            "port."
        )


class InProcess:
    """Sends requests to an engine in this process, without a server.

    Prompts are tokens already, and answers stay tokens.
    """

    url = "in this process"

    def __init__(self, executor: Executor, engine_dir: Path, requests: list[TimedRequest]):
        tokenizer = load_tokenizer(engine_dir)
        self._executor = executor
        self._ids = {request.text: tokenizer.encode_chat(request.text) for request in requests}
        self._aborted = threading.Event()

    def __call__(self, request: TimedRequest) -> Timing:
        """Have `request` answered; the engine batches it with the others that are under way."""
        sent = time.perf_counter_ns()
        response = self._executor.generate(Request(self._ids[request.text], request.max_tokens))
        return Timing(sent, None, time.perf_counter_ns(), len(response.token_ids))

    def is_alive(self) -> bool:
        return not self._aborted.is_set()

    def abort(self) -> None:
        """Send nothing more; what is under way ends with the engine."""
        self._aborted.set()
