"""What the labs' tables take: the server that lab 03 starts."""

import pytest

from inflight.triton import repository
from inflight.triton.serving.server import Server


@pytest.fixture(scope="module")
def lab_server(course_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    repo = repository.assemble(
        folder / "repo", course_engine, decoupled_mode=True, iteration_log_path=folder / "iterations.jsonl"
    )
    with Server(repo) as started:
        yield started
