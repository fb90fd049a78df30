"""Five hundred requests at once from fifty connections: each gets its own answer, once, and nothing is left behind."""

import json
import queue
import subprocess
import sys
import threading

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from inflight.engine.config import Request
from inflight.engine.executor import Executor
from inflight.triton import client, repository
from inflight.triton.client import Connection
from inflight.triton.server import Server
from tests.engines import SMALL_VOCAB, active_requests, metric, wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

CONNECTIONS, EACH, LENGTH = 50, 10, 6
PROMPTS = [[number % SMALL_VOCAB, (number * 7) % SMALL_VOCAB, 5] for number in range(CONNECTIONS * EACH)]
# Else gRPC sends all channels of a process through one connection.
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(scope="module")
def expected(small_engine):
    with Executor.load(small_engine) as executor:
        return [response.token_ids for response in executor.generate_all([Request(ids, LENGTH) for ids in PROMPTS])]


@pytest.fixture(scope="module")
def server(small_engine, tmp_path_factory):
    repo = repository.assemble(tmp_path_factory.mktemp("many") / "repo", small_engine, decoupled_mode=False)
    with Server(repo) as server:
        yield server


def tensors(prompt):
    values = {"input_ids": [prompt], "input_lengths": [[len(prompt)]], "request_output_len": [[LENGTH]]}
    arrays = {name: np.array(value, np.int32) for name, value in values.items()}
    return [
        triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


def ask_all(connections):
    """Send everything, then wait for everything; answers by request, each a list of what came for it."""
    answers, all_there = [[] for _ in PROMPTS], threading.Semaphore(0)

    def note(number):
        def on_answer(result, error):
            answers[number].append(error or result.as_numpy("output_ids").reshape(-1).tolist())
            all_there.release()

        return on_answer

    for number, prompt in enumerate(PROMPTS):
        connections[number % CONNECTIONS].async_infer("tensorrt_llm", tensors(prompt), note(number))
    for _ in PROMPTS:
        assert all_there.acquire(timeout=60), "an answer did not come"
    return answers


def test_each_of_500_requests_gets_its_own_answer_once(server, expected):
    connections = [
        triton.InferenceServerClient(server.grpc_url, channel_args=OWN_CONNECTION) for _ in range(CONNECTIONS)
    ]
    try:
        assert ask_all(connections) == [[answer] for answer in expected]
        wait_until(lambda: active_requests(server) == 0, "the engine is idle")
    finally:
        for connection in connections:
            connection.close()


# Clients that vanish --------------------------------------------------------------------------------------------------

NUM_KILLED, NUM_STAYING = 25, 25  # connections, of ten requests each
LONG, SHORT = 80, 24  # tokens of an answer: of those who vanish, of those who stay
# Streams of the ensemble, ten on each of so many connections; says so when some have begun.
VANISHING_CLIENTS = """
import sys, queue
import numpy as np
from inflight.triton import client
url, num_connections, each, length = sys.argv[1], *map(int, sys.argv[2:])
arrived, begun = queue.SimpleQueue(), set()
arrays = {"text_input": client.text("One two three"), "max_tokens": np.array([[length]], np.int32)}
arrays |= {"min_length": arrays["max_tokens"], "stream": np.array([[True]])}
connections = [client.Connection(url, arrived) for _ in range(num_connections)]
for number, connection in enumerate(connections):
    connection.open_stream(number)
    for turn in range(each):
        connection.send_on_stream("ensemble", arrays, f"{number} {turn}")
print("sent", flush=True)
while True:
    begun.add(arrived.get().result.get_response().id)
    if len(begun) == 5:
        print("begun", flush=True)
"""


@pytest.fixture(scope="module")
def streaming(small_engine, tmp_path_factory):
    values = {"decoupled_mode": True, "apply_chat_template": False}
    folder = tmp_path_factory.mktemp("vanishing")
    log = folder / "iterations.jsonl"
    repo = repository.assemble(folder / "repo", small_engine, iteration_log_path=log, **values)
    with Server(repo) as server:
        yield server, log


def test_of_500_requests_half_vanish_and_the_others_lose_nothing(streaming):
    server, log = streaming
    arguments = [server.grpc_url, *map(str, (NUM_KILLED, EACH, LONG))]
    vanishing = subprocess.Popen(
        [sys.executable, "-c", VANISHING_CLIENTS, *arguments], stdout=subprocess.PIPE, text=True
    )
    assert vanishing.stdout.readline().strip() == "sent"
    arrived, arrays = queue.SimpleQueue(), streams(SHORT)
    connections = [Connection(server.grpc_url, arrived) for _ in range(NUM_STAYING)]
    try:
        for connection in connections:
            connection.open_stream()
        for number in range(NUM_STAYING * EACH):
            connection = connections[number % NUM_STAYING]
            connection.send_on_stream("ensemble", arrays, str(number), enable_empty_final_response=True)
        assert vanishing.stdout.readline().strip() == "begun"
        vanishing.kill()
        vanishing.wait()
        vanishing.stdout.close()
        texts, num_unfinished = {str(number): [] for number in range(NUM_STAYING * EACH)}, NUM_STAYING * EACH
        while num_unfinished:
            reply = arrived.get(timeout=120)
            assert reply.error is None
            num_unfinished -= reply.is_final
            if not reply.is_empty:
                texts[reply.result.get_response().id].append(reply.result.as_numpy("text_output").item())
    finally:
        for connection in connections:
            connection.close()
    assert {len(pieces) for pieces in texts.values()} == {SHORT}
    assert len({b"".join(pieces) for pieces in texts.values()}) == 1  # all have asked the same, and for the likeliest
    wait_until(lambda: active_requests(server) == 0, "all slots are free")
    used = lambda: metric(server, "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used")
    wait_until(lambda: used() == 0, "all blocks are free")
    computed = sum(json.loads(line)["generation_tokens"] for line in log.read_text().splitlines())
    for_nobody = computed - NUM_STAYING * EACH * (SHORT - 1)  # the first of each is made with the prompt
    print(f"{for_nobody} tokens were computed for those who vanished, who had asked for {NUM_KILLED * EACH * LONG}")
    assert for_nobody < NUM_KILLED * EACH * LONG / 2


def streams(length: int) -> dict[str, np.ndarray]:
    """A request for so many tokens, one by one."""
    whole = {"text_input": client.text("One two three"), "max_tokens": np.array([[length]], np.int32)}
    return {**whole, "min_length": whole["max_tokens"], "stream": np.array([[True]])}
