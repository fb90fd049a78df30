"""Any server with OpenAI's endpoints as a target: vLLM's, llama.cpp's, SGLang's, TensorRT-LLM's.

    send = OpenAISender("http://127.0.0.1:8080", tokenizer, stream=True)
    run = send_all(send, requests)

It is asked at /v1/completions, greedily, with our chat template, for answers of exactly `max_tokens` tokens. Tokens are
those of our tokenizer in the text that comes, whatever the server says of itself.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator

import httpx
from httpx_sse import EventSource, SSEError

from inflight.bench.load import Timing
from inflight.bench.workload import TimedRequest, count_tokens
from inflight.checkpoint.tokenizer import ChatTokenizer
from inflight.errors import CourseError

KEY_VARIABLE = "INFLIGHT_PEER_API_KEY"
TIMEOUT_S = 300
# Beyond the protocol: an answer as long as asked for, in the words of vLLM and llama.cpp; and, by llama.cpp, nothing
# remembered of an earlier prompt, which other servers may refuse to read.
EXACT, FORGET = ("ignore_eos", "min_tokens"), "cache_prompt"


class OpenAISender:
    """Sends requests to a server with OpenAI's endpoints and takes the times of each. For several threads.

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
        tokens = min(request.max_tokens, count_tokens(self._tokenizer, "".join(pieces)))
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
            **dict(zip(EXACT, (True, request.max_tokens))),
        }
        return {**body, FORGET: False} if self._forgets else body

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
