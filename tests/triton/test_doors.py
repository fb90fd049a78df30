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
from inflight.triton.attached import Address
from inflight.triton.client import Client
from inflight.triton.server import Server
from inflight.triton.transport import Connection

pytestmark = pytest.mark.server

TRITON = {"/v2": (200, json.dumps({"name": "triton", "version": "2.51.0", "extensions": ["statistics"]}))}


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
