"""A scheduler of lab 04 decides in the real server."""

import pytest

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server
from tests.lessons.answers import written
from tests.lessons.batching import lab

pytestmark = pytest.mark.server
LENGTHS = [80, 4, 4, 4, 4, 4, 4, 4] * 2


def test_the_server_decides_by_the_learners_file(small_engine, tmp_path):
    """Read from what begins beside somebody who runs: how many iterations it takes is a matter of who arrives when."""
    path, log_path = tmp_path / "my_scheduler.py", tmp_path / "log.jsonl"
    path.write_text(written("batching", "solutions", "scheduler.py"))
    repo = repository.assemble(
        tmp_path / "repo", small_engine, apply_chat_template=False, iteration_log_path=log_path, scheduler_path=path
    )
    requests = [TimedRequest("Tell me a story.", length, 0.0, 5) for length in LENGTHS]
    with Server(repo) as server, Client(server.grpc_url) as client:
        in_flight = trace_run.run(client, requests, log_path).log
        path.write_text(lab.scheduler(lab.IN_FLIGHT, ("while waiting", "while not now.running and waiting")).text)
        server.load("tensorrt_llm", scheduler_path=path)
        static = trace_run.run(client, requests, log_path).log
    assert joins_beside_others(in_flight) > 0 and joins_beside_others(static) == 0


def joins_beside_others(log):
    """Iterations in which a request begins while another one runs on."""
    return int(((log["context_tokens"] > 0) & (log["generation_tokens"] > 0)).sum())
