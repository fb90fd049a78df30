"""Who goes away without a word frees the slot: killed while it streams, while it waits, or behind a whole answer.

What is measured are iterations: what the engine still computed for somebody who was gone.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from inflight.triton.client.client import Client
from inflight.triton.client.connection import Connection, text
from inflight.triton.serving.server import Server
from tests.engines import active_requests, metric, wait_until

pytestmark = pytest.mark.server

LONG = 1500  # tokens that the killed clients ask for
STORY = "Tell me a long story of a ship."
STREAM = {"text_input": STORY, "max_tokens": LONG, "min_length": LONG, "stream": True}

# Clients in a process of their own, one a request; says so when all are sent, and when so many tokens have come.
CLIENTS = """
import json, sys
import numpy as np
from inflight.triton.client.connection import Connection
url, model, requests, num_tokens = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
connection, types = Connection(url), {"text_input": np.object_, "stream": np.bool_}
connection.open_stream()
for request in requests:
    timeout = request.pop("timeout", None)
    arrays = {name: np.array([np.atleast_1d(value)], types.get(name, np.int32)) for name, value in request.items()}
    connection.send_on_stream(model, arrays, timeout=timeout)
if num_tokens == 0:
    print("sent", flush=True)
for number in range(1, 10**9):
    connection.next_reply(600)
    if number == num_tokens:
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

    def start(self, requests: list[dict], num_tokens: int = 1, model: str = "ensemble") -> subprocess.Popen:
        """Clients in a process of their own that have so many tokens by now; 0: all are sent."""
        arguments = [self.server.grpc_url, model, json.dumps(requests), str(num_tokens)]
        process = subprocess.Popen([sys.executable, "-c", CLIENTS, *arguments], stdout=subprocess.PIPE)
        assert process.stdout.read(4) in (b"sent", b"begu")
        return process

    def kill(self, process: subprocess.Popen) -> float:
        """SIGKILL; returns when the process and its connections are gone, in seconds since 1970."""
        process.kill()
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
def place(streaming_server):
    with Client(streaming_server.grpc_url) as client:
        client.ask("Hello", 2)
    return Place(streaming_server, streaming_server.repo.parent / "iterations.jsonl")


@pytest.fixture(autouse=True)
def nobody_is_left(place):
    yield
    place.wait_until_idle()
    used = lambda: metric(place.server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    wait_until(lambda: used() == 0, "all blocks are free")  # exported one after the other


@pytest.fixture
def stranger(place):
    with Connection(place.server.grpc_url) as connection:
        connection.open_stream()
        yield connection


# Streams --------------------------------------------------------------------------------------------------------------


def test_a_killed_client_of_a_stream_frees_its_slot(place):
    mark = place.last_id() + 1
    killed_s = place.kill(place.start([STREAM]))
    place.wait_until_idle()
    assert place.iterations_after(killed_s, range(mark, mark + 1)) < LONG / 2, "computed for nobody"


def test_who_comes_after_16_that_are_gone_does_not_wait_for_them(place, stranger):
    mark = place.last_id() + 1
    process = place.start([STREAM] * 16)  # eight have the slots, eight wait
    wait_until(lambda: active_requests(place.server) == 16, "all are in the engine")
    arrays = {"text_input": text("Hello"), "max_tokens": np.array([[3]], np.int32)}
    stranger.send_on_stream("ensemble", arrays)
    wait_until(lambda: active_requests(place.server) == 17, "the live one waits behind them")
    killed_s = place.kill(process)
    assert stranger.next_reply(120).error is None
    assert place.iterations_after(killed_s, range(mark, mark + 16)) < LONG, "the 16 were computed to their ends"


def test_the_engines_log_calls_a_request_what_its_client_calls_it(place):
    with Client(place.server.grpc_url) as client:
        answers = [client.ask("Hello", 3), client.stream("Hello", 4).read(), client.stream("Hello", 5).read()]
    called = [name for iteration in place.iterations() for name in iteration["client_ids"]]
    assert [called.count(answer.request_id) for answer in answers] == [3, 4, 5]


# The engine asked directly --------------------------------------------------------------------------------------------


def test_a_killed_client_of_the_engine_itself_is_noticed_in_its_period(place):
    ids = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": LONG, "min_length": LONG}
    mark = place.last_id() + 1
    process = place.start([ids], 0, "tensorrt_llm")
    wait_until(lambda: place.last_id() == mark, "the engine computes for it")
    killed_s = place.kill(process)
    place.wait_until_idle()
    assert place.iterations_after(killed_s, range(mark, mark + 1)) < LONG / 5


def test_nobody_else_can_stop_a_request_by_guessing(place, stranger):
    with Client(place.server.grpc_url) as client:
        pieces = iter(client.stream(STORY, 30, min_length=30))
        next(pieces)
        zero = np.zeros((1, 1), np.int32)
        stop = {"input_ids": zero, "input_lengths": zero, "request_output_len": zero, "stop": np.array([[True]])}
        stranger.send_on_stream("tensorrt_llm", stop, "1")
        assert stranger.next_reply(60).error is None
        assert sum(1 for _ in pieces) == 29


def test_who_goes_ends_his_own_request_and_none_that_is_called_the_same(place, stranger):
    def arrays(length):
        lengths = dict.fromkeys(("max_tokens", "min_length"), np.array([[length]], np.int32))
        return {"text_input": text(STORY), "stream": np.array([[True]]), **lengths}

    before = len(place.iterations())
    with Connection(place.server.grpc_url) as going:
        going.open_stream()
        going.send_on_stream("ensemble", arrays(LONG), "1")
        stranger.send_on_stream("ensemble", arrays(200), "1")
        assert going.next_reply(60).error is None
    assert not any(stranger.next_reply(60).error for _ in range(200))
    place.wait_until_idle()
    called = [name for iteration in place.iterations()[before:] for name in iteration["client_ids"]]
    assert called.count("1") < LONG, "the one that has gone was computed to its end"


# Whole answers --------------------------------------------------------------------------------------------------------


def test_a_whole_answer_for_nobody_ends_with_the_time_that_its_client_allowed(place):
    """Twelve clients are killed: eight have slots, four wait. All end long before their answers would."""
    before = len(place.iterations())
    whole = {name: value for name, value in STREAM.items() if name != "stream"}
    process = place.start([{**whole, "timeout": 4_000_000}] * 12, num_tokens=0)
    wait_until(lambda: active_requests(place.server) == 12, "all are in the engine")
    place.kill(process)
    place.wait_until_idle()
    assert 0 < len(place.iterations()) - before < LONG
