"""A wrong address is told by what answers there: each mistake has its own sentence, at real listeners."""

import json
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import pytest
from typer.testing import CliRunner

from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.triton import doors, keys
from inflight.triton.attached import Address
from inflight.triton.client import Client
from inflight.triton.server import Server
from inflight.triton.transport import Connection

TRITON = {"/v2": (200, json.dumps({"name": "triton", "version": "2.51.0", "extensions": ["statistics"]}))}
METRICS = {"/metrics": (200, "nv_inference_request_success 3\n"), "": (200, "")}  # "": any other path
A_PAGE = {"/v2": (404, "<html>nginx</html>"), "/metrics": (404, "<html>nginx</html>")}
A_GREETING = {"": (200, '{"hello": 1}')}
ANOTHERS_API = {"/v2": (404, '{"detail": "Not Found"}'), "/metrics": (200, "vllm_requests 1\n")}


@pytest.fixture
def web():
    """Starts a web server that answers some paths, and everything else with 404; gives its "host:port"."""
    servers = []

    def start(pages):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = pages.get(self.path) or pages.get("", (404, '{"detail": "Not Found"}'))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET

            def log_message(self, *_):
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def grpc_port():
    """Address of a gRPC server that knows no method."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def next_port(address, step):
    host, port = address.split(":")
    return f"{host}:{int(port) + step}"


def said_of(action):
    with pytest.raises(CourseError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def ask(url):
    with Client(url, timeout_s=20) as client:
        client.ask("Hi", 2)


def of_the_command_line(*words):
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, CourseError), done.output
    return str(done.exception)


@pytest.mark.parametrize("action", [ask, Server.attach, lambda url: of_the_command_line("ask", "Hi", "--url", url)])
def test_the_port_of_http_is_asked_for_grpc(web, action):
    address = web(TRITON)
    expected = (
        f"{address} is asked for gRPC, and Triton's HTTP answers there. Write http://{address} to ask it by HTTP, or "
        f"name the server's port for gRPC, by default one higher: {next_port(address, 1)}."
    )
    if action in (ask, Server.attach):
        assert said_of(lambda: action(address)) == expected
    else:
        assert action(address) == expected


@pytest.mark.parametrize("action", [ask, Server.attach])
def test_the_port_of_grpc_is_asked_for_http(grpc_port, action):
    said = said_of(lambda: action(f"http://{grpc_port}"))
    assert said == (
        f"http://{grpc_port} is asked for HTTP, and gRPC answers there. Write {grpc_port} to ask it by gRPC, or name "
        f"the server's port for HTTP, by default one lower: http://{next_port(grpc_port, -1)}."
    )


@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("action", [ask, Server.attach])
def test_the_port_of_the_metrics(web, scheme, action):
    address = web(METRICS)
    said = said_of(lambda: action(scheme + address))
    assert said.startswith(f"Only Triton's metrics are at {scheme}{address}. Name the server's port for HTTP or gRPC")
    assert said.endswith(f"http://{next_port(address, -2)} or {next_port(address, -1)}.")


@pytest.mark.parametrize("pages", [A_PAGE, ANOTHERS_API, A_GREETING], ids=["a page", "an API", "a greeting"])
@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("action", [ask, Server.attach])
def test_some_other_web_server(web, pages, scheme, action):
    url = scheme + web(pages)
    said = said_of(lambda: action(url))
    assert said == (
        f"A web server answers at {url}, and it is no Triton. Name the address of a Triton, or start one there."
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1", "'127.0.0.1' has no port. Write 127.0.0.1:8001 for gRPC or http://127.0.0.1:8000 for HTTP,"),
        ("http://lab", "'http://lab' has no port. Write lab:8001 for gRPC or http://lab:8000 for HTTP,"),
        ("http://lab/", "'http://lab/' has no port. Write lab:8001"),
        ("lab:", "'lab:' has no port. Write lab:8001"),
        ("lab:http", "'lab:http' has no port. Write lab:8001"),
        (":8001", "':8001' has no host. Write 127.0.0.1:8001"),
        ("", "'' has no port. Write 127.0.0.1:8001"),
        ("grpc://lab:8001", "'grpc://lab:8001' is no address of a server. Write http://host:port for HTTP, or host"),
    ],
)
@pytest.mark.parametrize("use", [Client, Server.attach, Address.at, Connection])
def test_an_address_that_lacks_something(url, said, use):
    found = said_of(lambda: use(url))
    assert found.startswith(said) or (use is Connection and "is an address for HTTP" in found and "://" in url)


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "Hi"),
        ("bench", "load"),
        ("bench", "perf-analyzer"),
        ("bench", "compare", "--url", "lab:1"),
        ("gpt2", "race", "iterative-gpt2"),
    ],
)
def test_the_command_line_says_it_before_anything_starts(command):
    said = of_the_command_line(*command, "--url", "127.0.0.1")
    assert said.startswith("'127.0.0.1' has no port. Write 127.0.0.1:8001 for gRPC")


def test_where_nobody_listens_it_is_said_as_ever():
    silent = "127.0.0.1:1"
    assert doors.mistaken(silent) is None and doors.mistaken(f"http://{silent}") is None
    assert said_of(lambda: ask(silent)).startswith(f"The server at {silent} does not answer")
    assert doors.mistaken("unix:/tmp/nowhere") is None


def test_where_nobody_listens_no_processes_are_looked_through(monkeypatch):
    """A server that dies leaves hundreds of requests that fail at once, and each would."""
    monkeypatch.setattr(keys, "_processes", lambda *names: pytest.fail(f"looked for {names}"))
    for address in ("127.0.0.1:1", "http://127.0.0.1:1"):
        assert doors.mistaken(address) is None and keys.of(address) is None


def test_a_right_door_is_no_mistake(web, grpc_port):
    assert doors.mistaken(grpc_port) is None
    assert doors.mistaken(f"http://{web(TRITON)}") is None
