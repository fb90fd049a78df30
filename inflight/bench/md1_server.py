"""A stand-in for a server that takes one request at a time and as long for each: `python -m … SERVICE_S FIRST_SHARE`.

It speaks OpenAI's /v1/completions with streamed answers on loopback, prints its address, and ends with its standard
input. A request is served from the moment at which the one before it is done, or at once; nothing is computed, so it is
done exactly then, however busy the machine is before.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Queue:
    """One server; who comes while it is busy waits in line.

    Parameters
    ----------
    service_s : float
        Seconds that each request takes.
    """

    def __init__(self, service_s: float):
        self._service_s = service_s
        self._lock = threading.Lock()
        self._free_from = 0.0

    def join(self) -> float:
        """When a request that comes now begins to be served, on the clock `time.perf_counter`."""
        with self._lock:
            start = max(self._free_from, time.perf_counter())
            self._free_from = start + self._service_s
            return start


class Handler(BaseHTTPRequestHandler):
    """Answers a request in as many pieces as tokens are asked for, evenly after the first."""

    queue: Queue
    service_s: float
    first_share: float

    def log_message(self, *_) -> None:
        """Keep quiet."""

    def do_POST(self) -> None:
        start = self.queue.join()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = body["max_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        first, rest = self.service_s * self.first_share, self.service_s * (1 - self.first_share)
        for number in range(tokens):
            sleep_until(start + first + rest * number / max(1, tokens - 1))
            reason = "length" if number == tokens - 1 else None
            piece = {"choices": [{"index": 0, "text": " the", "finish_reason": reason}]}
            self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")


def sleep_until(moment: float) -> None:
    """Sleep until a moment on the clock `time.perf_counter`."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # connections that come at the same moment


def main() -> None:
    service_s, first_share = map(float, sys.argv[1:])
    Handler.queue, Handler.service_s, Handler.first_share = Queue(service_s), service_s, first_share
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    main()
