"""A small server with OpenAI's endpoints, standing for another's: it answers as it is told to, rightly or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


class StandIn:
    """A server on loopback, in threads of this process.

    Attributes
    ----------
    got : list of (path, headers, body)
    endpoints : tuple of str
        Those it has.
    known : set of str or None
        Fields that it takes; None: all.
    tokens : function
        Tokens asked for -> how many it sends. `claims` the same for what it says of them; None: nothing.
    odd : function or None
        Writes an answer of its own instead: gets the handler and the request's body.
    """

    def __init__(self, word: str):
        self.word = word  # text of one token
        self.got: list[tuple[str, dict, dict]] = []
        self.endpoints: tuple[str, ...] = (COMPLETIONS, CHAT)
        self.known: set[str] | None = None
        self.tokens: Callable[[int], int] = lambda asked: asked
        self.claims: Callable[[int], int] | None = lambda asked: asked
        self.odd: Callable[[BaseHTTPRequestHandler, dict], None] | None = None
        self.over = threading.Event()  # what an odd answer that hangs waits for
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def die(self) -> None:
        """Let nobody in any more, while what is under way is still answered."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: _Handler, body: dict) -> None:
        """What it answers unless it is told to do something odd."""
        handler.answer_as_told(body)

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def log_message(self, *_) -> None:
        """Keep quiet."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # a client that has heard enough
            self.close_connection = True

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            send(self, 200, {"object": "list", "data": [{"id": "their-model"}, {"id": "another"}]})
        else:
            send(self, 404, {"error": {"message": "not found"}})

    def do_POST(self) -> None:
        stand_in = self.stand_in
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stand_in.got.append((self.path, dict(self.headers), body))
        if self.path not in stand_in.endpoints:
            return send(self, 404, {"error": {"message": "not found"}})
        if stand_in.known is not None and (extra := set(body) - stand_in.known):
            return send(self, 400, {"error": {"message": f"extra fields: {sorted(extra)}"}})
        if stand_in.odd is not None:
            return stand_in.odd(self, body)
        return stand_in.answer(self, body)

    def answer_as_told(self, body: dict) -> None:
        stand_in = self.stand_in
        asked = body["max_tokens"]
        words = [stand_in.word] * stand_in.tokens(asked)
        usage = None if stand_in.claims is None else {"completion_tokens": stand_in.claims(asked)}
        reason = "length" if len(words) >= asked else "stop"
        if body.get("stream"):
            begin(self)
            for word in words:
                event(self, {"choices": [choice(self.path, word, None, "delta")]})
            event(self, {"choices": [choice(self.path, "", reason, "delta")]})
            if usage and body.get("stream_options"):
                event(self, {"choices": [], "usage": usage})
            self.wfile.write(b"data: [DONE]\n\n")
        else:
            answer = {"choices": [choice(self.path, "".join(words), reason, "message")]}
            send(self, 200, {**answer, **({"usage": usage} if usage else {})})


def choice(path: str, text: str, reason: str | None, holder: str) -> dict:
    content = {"text": text} if path == COMPLETIONS else {holder: {"content": text}}
    return {"index": 0, **content, "finish_reason": reason}


def send(handler: BaseHTTPRequestHandler, status: int, content: dict | list | bytes, **headers: str) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def begin(handler: BaseHTTPRequestHandler) -> None:
    """The head of a stream of events, which ends with its connection."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def event(handler: BaseHTTPRequestHandler, content: dict) -> None:
    handler.wfile.write(b": a comment\n\ndata: " + json.dumps(content).encode() + b"\n\n")
