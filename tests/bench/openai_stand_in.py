"""A small server with OpenAI's endpoints, standing for another's: it answers as it is told to, rightly or not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn:
    """A server on loopback, in threads of this process.

    Attributes
    ----------
    got : list of (path, headers, body)
    known : set of str or None
        Fields that it takes; None: all.
    tokens : function
        Tokens asked for -> how many it sends.
    odd : function or None
        Writes an answer of its own instead: gets the handler and the request's body.
    """

    def __init__(self, word: str):
        self.word = word  # text of one token
        self.got: list[tuple[str, dict, dict]] = []
        self.known: set[str] | None = None
        self.tokens: Callable[[int], int] = lambda asked: asked
        self.odd: Callable[[BaseHTTPRequestHandler, dict], None] | None = None
        handler = type("Handler", (_Handler,), {"stand_in": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def die(self) -> None:
        """Let nobody in any more, while what is under way is still answered."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> StandIn:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
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
        send(self, 200, {"object": "list", "data": [{"id": "their-model"}, {"id": "another"}]})

    def do_POST(self) -> None:
        stand_in = self.stand_in
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stand_in.got.append((self.path, dict(self.headers), body))
        if stand_in.known is not None and (extra := set(body) - stand_in.known):
            return send(self, 400, {"error": {"message": f"extra fields: {sorted(extra)}"}})
        if stand_in.odd is not None:
            return stand_in.odd(self, body)
        words = [stand_in.word] * stand_in.tokens(body["max_tokens"])
        if not body["stream"]:
            return send(self, 200, {"choices": [{"text": "".join(words), "finish_reason": "length"}]})
        begin(self)
        for word in words:
            event(self, {"choices": [{"text": word, "finish_reason": None}]})
        event(self, {"choices": [{"text": "", "finish_reason": "length"}]})
        self.wfile.write(b"data: [DONE]\n\n")


def send(handler: BaseHTTPRequestHandler, status: int, content: dict) -> None:
    data = json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def begin(handler: BaseHTTPRequestHandler) -> None:
    """The head of a stream of events, which ends with its connection."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()


def event(handler: BaseHTTPRequestHandler, content: dict) -> None:
    handler.wfile.write(b": a comment\n\ndata: " + json.dumps(content).encode() + b"\n\n")
