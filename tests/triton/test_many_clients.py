"""Five hundred requests at once from fifty connections: each gets its own answer, once."""

import threading

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from inflight.engine.config import Request
from inflight.engine.executor import Executor
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import SMALL_VOCAB, active_requests, wait_until

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
