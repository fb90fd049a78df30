"""What the libraries raise becomes one of three sentences; what comes back is read the same way everywhere."""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import httpx
import pytest
from tritonclient.utils import InferenceServerException

from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.client.client import Client
from inflight.triton.client.connection import (
    Connection,
    NoAnswer,
    Refused,
    ServerGone,
    course_error,
    get_json,
    is_ok,
    text,
)

URL = "127.0.0.1:8001"


def of_triton(message, status=None):
    return InferenceServerException(message, status and f"StatusCode.{status}")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (of_triton("failed to connect to all addresses", "UNAVAILABLE"), ServerGone, f"The server at {URL} does not"),
        (httpx.ConnectError("Connection refused"), ServerGone, "went away in the middle of a request. Start it"),
        (httpx.InvalidURL("Invalid port"), ServerGone, "check the port"),
        (grpc.RpcError(), ServerGone, "does not answer"),
        (
            of_triton("Deadline Exceeded", "DEADLINE_EXCEEDED"),
            NoAnswer,
            f"No answer from {URL} within 3 s. Wait longer",
        ),
        (httpx.ReadTimeout("timed out"), NoAnswer, f"No answer from {URL} within 3 s. Wait longer with timeout_s"),
        (of_triton("Locally cancelled by application!", "CANCELLED"), NoAnswer, "was ended before its answer"),
        (of_triton("[request id: 7] Exceeds maximum queue size", "UNAVAILABLE"), Refused, "Exceeds maximum queue size"),
        (of_triton("Exceeds maximum queue size", "UNAVAILABLE"), Refused, "Exceeds maximum queue size"),
        (of_triton("Request for unknown model: 'x'", "UNAVAILABLE"), Refused, "Request for unknown model: 'x'"),
        (of_triton("in ensemble 'e', [request id: 1] too long", "UNAVAILABLE"), Refused, "too long"),
        (of_triton("text_input is empty"), Refused, "text_input is empty"),
    ],
)
def test_each_error_of_the_libraries_is_one_of_three_kinds(error, kind, message):
    found = course_error(error, URL, 3)
    assert type(found) is kind and isinstance(found, CourseError) and message in str(found)
    if kind is Refused:
        assert str(found) == message


def test_nobody_there_is_told_by_every_call():
    url = "http://127.0.0.1:1"
    for call in (
        lambda: get_json(url, "/v2"),
        lambda: telemetry.page(f"{url}/metrics"),
        lambda: Client("127.0.0.1:1").ask("Hello"),
        lambda: Client("127.0.0.1:1").stream("Hello").read(),
        lambda: telemetry.statistics(url, "model"),
        lambda: Connection("127.0.0.1:1").connect(),
        lambda: Connection("127.0.0.1:1").infer("model", {}, timeout_s=30),
    ):
        with pytest.raises(ServerGone, match="does not answer.* Start it"):
            call()
    assert not is_ok(url, "/v2/health/live") and not Client("127.0.0.1:1").is_ready()
    with pytest.raises(CourseError, match="is an address for HTTP, and here gRPC is needed"):
        Connection(url)


def test_a_stream_to_nobody_has_one_reply_and_it_says_so():
    with Connection("127.0.0.1:1") as connection:
        connection.open_stream(number=5)
        reply = connection.next_reply(timeout_s=60)
        connection.send_on_stream("model", {"text": text("to a broken stream")})
        assert reply.number == 5 and isinstance(reply.error, ServerGone)
        with pytest.raises(NoAnswer, match="within 0.01 s"):
            connection.next_reply(timeout_s=0.01)


def test_a_server_that_keeps_quiet_is_given_up():
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen()
        url = f"http://127.0.0.1:{quiet.getsockname()[1]}"
        with pytest.raises(NoAnswer, match=f"No answer from {url} within 0.1 s"):
            get_json(url, "/v2", timeout_s=0.1)
        assert not is_ok(url, "/v2/health/live", timeout_s=0.1)


ANSWERS = {
    "/number": (200, "3"),
    "/error": (400, '{"error": "[request id: 1] no such thing "}'),
    "/page": (404, "<html>"),
}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        """Keep the test's output clean."""

    def do_GET(self):
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def http_url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_an_endpoint_answers(http_url):
    assert get_json(http_url, "/number") == 3
    assert is_ok(http_url, "/number") and not is_ok(http_url, "/page")
    with pytest.raises(Refused, match=r"^no such thing$"):
        get_json(http_url, "/error")
    with pytest.raises(Refused, match="status 404 and '<html>'"):
        get_json(http_url, "/page")
