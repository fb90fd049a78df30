"""The schedulers of labs 04 and 05 decide in the real server, and a wrong one is refused there."""

import pytest

from inflight.bench import trace_run
from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.notebook.parts import COURSES_OWN
from inflight.triton import repository, telemetry
from inflight.triton.client import Client
from inflight.triton.server import Server
from tests.engines import ask_tokens, wait_until
from tests.lessons import lab_04, lab_05
from tests.lessons.answers import written

pytestmark = pytest.mark.server
LENGTHS = [80, 4, 4, 4, 4, 4, 4, 4] * 2


def test_the_server_decides_by_the_learners_file(small_engine, tmp_path):
    """Read from what begins beside somebody who runs: how many iterations it takes is a matter of who arrives when."""
    path, log_path = tmp_path / "my_scheduler.py", tmp_path / "log.jsonl"
    path.write_text(written("04_batching", "solutions", "scheduler.py"))
    repo = repository.assemble(
        tmp_path / "repo", small_engine, apply_chat_template=False, iteration_log_path=log_path, scheduler_path=path
    )
    requests = [TimedRequest("Tell me a story.", length, 0.0, 5) for length in LENGTHS]
    with Server(repo) as server, Client(server.grpc_url) as client:
        in_flight = trace_run.run(client, requests, log_path).log
        path.write_text(lab_04.scheduler(lab_04.IN_FLIGHT, ("while waiting", "while not now.running and waiting")).text)
        server.load("tensorrt_llm", scheduler_path=path)
        static = trace_run.run(client, requests, log_path).log
    assert joins_beside_others(in_flight) > 0 and joins_beside_others(static) == 0


def joins_beside_others(log):
    """Iterations in which a request begins while another one runs on."""
    return int(((log["context_tokens"] > 0) & (log["generation_tokens"] > 0)).sum())


def test_a_right_one_serves_and_a_wrong_one_is_refused(small_engine, tmp_path):
    wrong, log_path = tmp_path / "own.py", tmp_path / "log.jsonl"
    wrong.write_text(lab_05.scheduler("joining += now.running[:1] or list(now.waiting)[:1]").text)
    repo = repository.assemble(
        tmp_path / "repo", small_engine, iteration_log_path=log_path, scheduler_path=COURSES_OWN / "scheduler.py"
    )
    with Server(repo) as server:
        ask = lambda: ask_tokens(server, [5] * 12, 9, end_id=-1, exclude_input_in_output=True)
        right = ask()
        assert len(right) == 9
        wait_until(lambda: log_path.exists() and len(telemetry.iterations(log_path)) == 9, "nine rows are in the log")
        with pytest.raises(CourseError, match=r"own\.py, line \d+: schedule\(\) admits request \d+, which is neither"):
            server.load("tensorrt_llm", scheduler_path=str(wrong))
        assert ask() == right
