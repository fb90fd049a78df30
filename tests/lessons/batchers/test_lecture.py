"""Lesson 06's dashboard."""

import re

import pytest

from inflight import CourseError
from inflight.lessons import batchers
from inflight.lessons.batchers import dashboard as boards
from inflight.triton import repository
from inflight.triton.serving.server import Server


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("board") / "repo", models=("batch-cost",), execution_log_path=log_path
    )
    with Server(repo, drain_s=0) as server:
        yield server


@pytest.mark.server
def test_the_board_edits_the_config_draws_and_keeps_the_run_before(server, log_path):
    board = batchers.board(server, log_path)
    batcher, delay = (
        board.controls[name] for name in ("dynamic_batching", "dynamic_batching.max_queue_delay_microseconds")
    )
    board.controls["arrivals"].value, delay.value = "all at once", "30000"
    assert "now: no batcher: 20 requests in 20 batches" in board.run().alt, "the delay is ignored"
    batcher.value = "true"
    alt = board.run().alt
    assert "before: no batcher: 20 requests in 20 batches" in alt
    assert re.search(r"now: max_batch_size 8, max_queue_delay_microseconds 30000: 20 requests in [34] batches", alt)
    delay.value = ""
    assert "now: max_batch_size 8: 20 requests in" in board.run().alt, "the delay goes, and the batcher stays"
    batcher.value = ""
    assert "now: no batcher: 20 requests in 20 batches" in board.run().alt


@pytest.mark.server
def test_a_value_that_triton_refuses_is_told_and_the_file_is_as_it_was(server, log_path):
    board, config = batchers.board(server, log_path), server.repo / "batch-cost" / "config.pbtxt"
    before = config.read_text()
    board.controls["dynamic_batching"].value = "true"
    board.controls["dynamic_batching.preferred_batch_size"].value = "99"
    with pytest.raises(CourseError, match="preferred size"):
        board.run()
    assert "<b>Failed.</b>" in board.status.value and config.read_text() == before


@pytest.mark.server
def test_every_choice_of_arrivals_is_answered(server, log_path):
    board = batchers.board(server, log_path)
    board.controls["dynamic_batching"].value = "true"
    for arrivals, requests in boards.ARRIVALS.items():
        board.controls["arrivals"].value = arrivals
        assert f"{len(requests)} requests in" in board.run().alt and "rejected" not in board.frame.alt
