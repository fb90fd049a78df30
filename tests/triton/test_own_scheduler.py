"""A scheduler of one's own in the running server: it takes effect at a load, and a bad one hurts nobody."""

import json

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client.connection import Connection
from inflight.triton.serving.server import Server
from tests.engines import ask_tokens, model_process

pytestmark = pytest.mark.server

OLDEST_ALONE = """
from inflight.engine import Plan


class Scheduler:
    def schedule(self, now):
        request = [*now.running, *now.waiting][0]
        admit = [] if now.running else [request.id]
        # HERE
        return Plan(admit=admit, compute={request.id: min(request.pending_tokens, now.max_num_tokens)})
"""
TWO_AT_ONCE = """
from inflight.engine import Plan


class Scheduler:
    def schedule(self, now):
        running, room = list(now.running), now.max_num_tokens - len(now.running)
        plan = Plan()
        for request in list(now.waiting)[: 2 - len(running)]:
            if request.pending_tokens <= room:
                plan.admit.append(request.id)
                running.append(request)
                room -= request.pending_tokens
        plan.compute = {request.id: request.pending_tokens for request in running}
        return plan
"""
HERE, DEFINED = (
    next(number for number, line in enumerate(OLDEST_ALONE.splitlines(), 1) if text in line)
    for text in ("# HERE", "def schedule")
)
PROMPT = [5] * 12


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def server(small_engine, files):
    path = files / "my_scheduler.py"
    path.write_text(OLDEST_ALONE)
    repo = repository.assemble(
        files / "repo", small_engine, decoupled_mode=True, scheduler_path=path, iteration_log_path=files / "log.jsonl"
    )
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.fixture
def load(server, files):
    """Load the engine with another scheduler in the file; the good one comes back after the test."""

    def load(text: str) -> None:
        (files / "my_scheduler.py").write_text(text)
        server.load("tensorrt_llm")

    yield load
    load(OLDEST_ALONE)


def most_at_once(server, files) -> int:
    """Requests in the fullest iteration of three prompts that come at once."""
    start = (files / "log.jsonl").stat().st_size if (files / "log.jsonl").exists() else 0
    values = {"input_ids": PROMPT, "input_lengths": [len(PROMPT)], "request_output_len": [30], "end_id": [-1]}
    with Connection(server.grpc_url) as connection:
        connection.open_stream()
        arrays = {name: np.array([value] * 3, np.int32) for name, value in values.items()}
        connection.send_on_stream("tensorrt_llm", arrays)
        assert [connection.next_reply(60).error for _ in range(3)] == [None] * 3
    lines = (files / "log.jsonl").read_text()[start:].splitlines()
    return max(json.loads(line)["scheduled"] for line in lines)


def ask(server, tokens: int = 5) -> list[int]:
    return ask_tokens(server, PROMPT, tokens, end_id=-1, exclude_input_in_output=True)


def test_it_schedules_from_the_start_and_a_changed_file_takes_effect_at_the_next_load(server, files, load):
    assert most_at_once(server, files) == 1
    before = model_process(server, "tensorrt_llm").pid
    server.load("tensorrt_llm")
    first = model_process(server, "tensorrt_llm").pid  # with the digest, which the first start had not
    server.load("tensorrt_llm")
    assert model_process(server, "tensorrt_llm").pid == first, "nothing has changed, and it was loaded anew"
    load(TWO_AT_ONCE)
    assert model_process(server, "tensorrt_llm").pid not in (before, first)
    assert most_at_once(server, files) == 2


def test_the_log_tells_who_is_left_out(server, files):
    most_at_once(server, files)
    waits = [json.loads(line)["longest_wait"] for line in (files / "log.jsonl").read_text().splitlines()]
    assert max(iterations for wait in waits if wait for _, iterations in [wait]) >= 30


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import no_such_module\n", 1),
        ("class Scheduler: ...\n", 1),
        (OLDEST_ALONE.replace("# HERE", "admit = [99]"), DEFINED),
    ],
)
def test_a_bad_one_is_refused_with_its_line_and_the_one_before_serves_on(server, files, load, text, line):
    serving = model_process(server, "tensorrt_llm").pid
    with pytest.raises(CourseError, match=rf"my_scheduler\.py, line {line}: "):
        load(text)
    assert model_process(server, "tensorrt_llm").pid == serving
    assert len(ask(server)) == 5


HANGS_LATER = """
        if request.prompt_tokens == 13:
            while True: pass
"""


def test_one_that_does_not_return_ends_its_server_which_says_where(small_engine, tmp_path):
    path = tmp_path / "mein plänër.py"
    path.write_text(OLDEST_ALONE.replace("        # HERE", HANGS_LATER))
    repo = repository.assemble(tmp_path / "repo", small_engine, decoupled_mode=True, scheduler_path=path)
    with Server(repo, drain_s=0) as server:
        assert len(ask(server)) == 5
        said = (
            rf"mein plänër\.py, line {HERE + 2}: schedule\(\) did not return\. The process of the model 'tensorrt_llm'"
        )
        with pytest.raises(CourseError, match=rf"^{said} ended with exit status 1"):
            ask_tokens(server, [5] * 13, 5)
        path.write_text(OLDEST_ALONE)
        server.start()
        assert len(ask(server)) == 5
