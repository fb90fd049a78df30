"""Who goes away without a word frees the slot: killed while it streams, while it waits, or behind a whole answer.

What is measured are iterations: what the engine still computed for somebody who was gone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from inflight.triton import repository
from inflight.triton.client import Client, Connection, text
from inflight.triton.server import Server
from tests.engines import active_requests, metric, wait_until

pytestmark = pytest.mark.server

LONG = 1500  # tokens that the killed clients ask for
NO_END = {"min_length": LONG}
STORY = "Tell me a long story of a ship."
PROTOCOLS = ["grpc", "http"]

# Clients for a process of their own: they send the given requests at once and say so when `num_begun` have a token.
HTTP_CLIENTS = """
import json, selectors, socket, sys
url, path, bodies, num_begun = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
host, port = url.removeprefix("http://").split(":")
arriving, begun = selectors.DefaultSelector(), set()
for body in bodies:
    body = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
    connection = socket.create_connection((host, int(port)))
    connection.sendall(head.encode() + body)
    arriving.register(connection, selectors.EVENT_READ)
print("sent", flush=True)
while True:
    for key, _ in arriving.select():
        if b"data:" in key.fileobj.recv(65536):
            begun.add(key.fd)
            if len(begun) == num_begun:
                print("begun", flush=True)
"""
GRPC_CLIENTS = """
import json, sys
import numpy as np
from inflight.triton.client import Connection
url, model, bodies, num_begun = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
types = {"text_input": np.object_, "stream": np.bool_, "streaming": np.bool_}
connection, begun = Connection(url), 0
connection.open_stream()
for body in bodies:
    options = {"timeout": body.pop("timeout", None)}
    arrays = {name: np.array([np.atleast_1d(value)], types.get(name, np.int32)) for name, value in body.items()}
    connection.send_on_stream(model, arrays, **options)
print("sent", flush=True)
while True:
    reply = connection.next_reply(600)
    begun += 1
    if begun == num_begun:
        print("begun", flush=True)
"""


@dataclass
class Place:
    """A server of the course's model, and the log of its engine's iterations."""

    server: Server
    log: Path

    def iterations(self) -> list[dict]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def last_id(self) -> int:
        """The highest id that the engine has computed for."""
        return max((row[0] for iteration in self.iterations() for row in iteration["requests"]), default=0)

    def start(self, protocol: str, bodies: list[dict], num_begun: int = 1, model: str = "ensemble") -> subprocess.Popen:
        """Clients in a process of their own, one a body, `num_begun` of which have a token by now; 0: all are sent."""
        scripts = {
            "http": (HTTP_CLIENTS, self.server.http_url, f"/v2/models/{model}/generate_stream"),
            "grpc": (GRPC_CLIENTS, self.server.grpc_url, model),
        }
        arguments = [*scripts[protocol], json.dumps(bodies), str(num_begun)]
        process = subprocess.Popen([sys.executable, "-c", *arguments], stdout=subprocess.PIPE, text=True)
        for word in ["sent", "begun"] if num_begun else ["sent"]:
            assert process.stdout.readline().strip() == word
        return process

    def kill(self, process: subprocess.Popen) -> float:
        """SIGKILL; returns when the process and its connections are gone, in seconds since 1970."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        return time.time()

    def wait_until_idle(self) -> None:
        wait_until(lambda: active_requests(self.server) == 0, "all slots are free")

    def iterations_after(self, killed_s: float, ids: range) -> int:
        """Iterations begun after the kill in which a request with one of these ids took part."""
        return sum(
            iteration["timestamp"] > killed_s and any(row[0] in ids for row in iteration["requests"])
            for iteration in self.iterations()
        )


@pytest.fixture(scope="module")
def place(course_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vanished")
    log = folder / "iterations.jsonl"
    repo = repository.assemble(folder / "repo", course_engine, decoupled_mode=True, iteration_log_path=log)
    with Server(repo) as server, Client(server.grpc_url) as client:
        client.ask("Hello", 2)
        yield Place(server, log)


@pytest.fixture(autouse=True)
def nobody_is_left(place):
    yield
    place.wait_until_idle()
    used = lambda: metric(place.server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    wait_until(lambda: used() == 0, "all blocks are free")  # exported one after the other


def stream_body(**options) -> dict:
    return {"text_input": STORY, "max_tokens": LONG, **NO_END, "stream": True, **options}


# Streams --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_client_of_a_stream_frees_its_slot(place, protocol):
    mark = place.last_id() + 1
    killed_s = place.kill(place.start(protocol, [stream_body()]))
    place.wait_until_idle()
    assert place.iterations_after(killed_s, range(mark, mark + 1)) < LONG / 2, "computed for nobody"


def test_who_comes_after_16_that_are_gone_does_not_wait_for_them(place):
    mark = place.last_id() + 1
    gone = range(mark, mark + 16)
    process = place.start("http", [stream_body()] * 16, num_begun=8)  # eight have the slots, eight wait
    wait_until(lambda: active_requests(place.server) == 16, "all are in the engine")
    with Connection(place.server.grpc_url) as connection:
        connection.open_stream()
        arrays = {"text_input": text("Hello"), "max_tokens": np.array([[3]], np.int32)}
        connection.send_on_stream("ensemble", arrays)
        wait_until(lambda: active_requests(place.server) == 17, "the live one waits behind them")
        killed_s = place.kill(process)
        assert connection.next_reply(120).error is None
    assert place.iterations_after(killed_s, gone) < LONG, "the 16 were computed to their ends"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_engines_log_calls_a_request_what_its_client_calls_it(place, protocol):
    with Client({"grpc": place.server.grpc_url, "http": place.server.http_url}[protocol]) as client:
        answers = [client.ask("Hello", 3), client.stream("Hello", 4).read(), client.stream("Hello", 5).read()]
    called = [name for iteration in place.iterations() for name in iteration["client_ids"]]
    assert [called.count(answer.request_id) for answer in answers] == [3, 4, 5]


# The engine asked directly --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(  # that an HTTP client has gone is seen by Triton when it writes to it
    "protocol, streaming", [("grpc", True), ("grpc", False), ("http", True)], ids=["grpc", "grpc-whole", "http"]
)
def test_a_killed_client_of_the_engine_itself_is_noticed_in_its_period(place, protocol, streaming):
    body = {
        "input_ids": [5, 6, 7],
        "input_lengths": 3,
        "request_output_len": LONG,
        "min_length": LONG,
        "streaming": streaming,
    }
    mark = place.last_id() + 1
    process = place.start(protocol, [body], num_begun=int(streaming), model="tensorrt_llm")
    wait_until(lambda: place.last_id() == mark, "the engine computes for it")
    killed_s = place.kill(process)
    place.wait_until_idle()
    assert place.iterations_after(killed_s, range(mark, mark + 1)) < LONG / 5


@pytest.mark.parametrize("guess", ["0", "1", "a" * 32])
def test_nobody_else_can_stop_a_request_by_guessing(place, guess):
    with Client(place.server.grpc_url) as client, Connection(place.server.grpc_url) as stranger:
        pieces = iter(client.stream(STORY, 30, min_length=30))
        next(pieces)
        stranger.open_stream()
        zero = np.zeros((1, 1), np.int32)
        stop = {"input_ids": zero, "input_lengths": zero, "request_output_len": zero, "stop": np.array([[True]])}
        stranger.send_on_stream("tensorrt_llm", stop, guess)
        assert stranger.next_reply(60).error is None
        assert sum(1 for _ in pieces) == 29


def test_who_goes_ends_his_own_request_and_none_that_is_called_the_same(place):
    arrays = {"text_input": text(STORY), "stream": np.array([[True]])}
    lengths = {
        name: {field: np.array([[length]], np.int32) for field in ("max_tokens", "min_length")}
        for name, length in (("going", LONG), ("staying", 200))
    }
    with Connection(place.server.grpc_url) as staying:
        staying.open_stream()
        with Connection(place.server.grpc_url) as going:
            going.open_stream()
            going.send_on_stream("ensemble", {**arrays, **lengths["going"]}, "1")
            staying.send_on_stream("ensemble", {**arrays, **lengths["staying"]}, "1")
            assert going.next_reply(60).error is None
        replies = [staying.next_reply(60) for _ in range(200)]
    assert not any(reply.error for reply in replies)
    place.wait_until_idle()
    called = [name for iteration in place.iterations() for name in iteration["client_ids"]]
    assert called.count("1") < LONG, "the one that has gone was computed to its end"


# Whole answers --------------------------------------------------------------------------------------------------------


def whole_body(**options) -> dict:
    return {"text_input": STORY, "max_tokens": LONG, **NO_END, **options}


def ends_for_nobody(place: Place, protocol: str, **options) -> None:
    """Twelve clients wait for whole answers and are killed: eight have slots, four wait. All end long before theirs."""
    before = len(place.iterations())
    process = place.start(protocol, [whole_body(**options)] * 12, num_begun=0)
    wait_until(lambda: active_requests(place.server) == 12, "all are in the engine")
    place.kill(process)
    place.wait_until_idle()
    assert 0 < len(place.iterations()) - before < LONG


def test_a_whole_answer_for_nobody_ends_with_the_time_that_its_client_allowed(place):
    ends_for_nobody(place, "grpc", timeout=4_000_000)


def test_who_waits_longer_than_he_allowed_is_told_so(place):
    with Connection(place.server.grpc_url) as connection:
        connection.open_stream()
        arrays = {"text_input": text(STORY), "max_tokens": np.array([[LONG]], np.int32)}
        connection.send_on_stream("ensemble", {**arrays, "min_length": arrays["max_tokens"]}, timeout=1_500_000)
        error = connection.next_reply(60).error
    assert str(error).startswith("The request was not finished within 1,500 ms, its wait included, and was ended: ask ")
