"""Lesson 06's dashboard."""

import re

import pytest

from inflight import CourseError
from inflight.lessons import batchers
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers import dashboard as boards
from inflight.triton import repository
from inflight.triton.server import Server


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("board") / "repo", models=("batch-cost",), execution_log_path=log_path
    )
    with Server(repo) as server:
        yield server


@pytest.mark.server
def test_the_board_edits_the_config_draws_and_keeps_the_run_before(server, log_path):
    board = batchers.board(server, log_path)
    board.controls["arrivals"].value = "all at once"
    assert re.search(r"now: no batcher: 20 requests in 20 batches", board.run().alt)
    board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "30000"
    alt = board.run().alt
    assert "before: no batcher: 20 requests in 20 batches" in alt
    assert re.search(r"now: max_batch_size 8, max_queue_delay_microseconds 30000: 20 requests in [34] batches", alt)
    assert sum(board.frame.sizes) == 20
    assert "now: max_batch_size 8, max_queue_delay_microseconds 30000: 20" in board.run().alt, (
        "the batcher is still there"
    )
    board.controls["dynamic_batching.max_queue_delay_microseconds"].value = ""
    assert "now: max_batch_size 8: 20 requests in" in board.run().alt, "the delay goes, and the batcher stays"
    repository.edit(server.repo, "batch-cost", dynamic_batching=False)


def test_the_batcher_and_its_fields_say_the_same():
    fields = {name: boards._field(name, "") for name in boards.BATCHER_FIELDS}
    boards._in_step(fields)
    delay = fields["dynamic_batching.max_queue_delay_microseconds"]
    delay.value = "30000"
    assert fields["dynamic_batching"].value == "true"
    delay.value = ""
    assert fields["dynamic_batching"].value == "true", "a batcher needs no field"
    delay.value, fields["dynamic_batching"].value = "500", ""
    assert delay.value == "" and fields["max_batch_size"].value == ""


@pytest.mark.server
def test_a_value_that_triton_refuses_is_told_and_the_file_is_as_it_was(server, log_path):
    board, config = batchers.board(server, log_path), server.repo / "batch-cost" / "config.pbtxt"
    before = config.read_text()
    board.controls["dynamic_batching.preferred_batch_size"].value = "99"
    with pytest.raises(CourseError, match="preferred size"):
        board.run()
    assert "<b>Failed.</b>" in board.status.value and config.read_text() == before


@pytest.mark.server
@pytest.mark.parametrize("arrivals", [name for name in boards.ARRIVALS if name != "all at once"])
def test_every_choice_of_arrivals_is_answered(server, log_path, arrivals):
    repository.edit(server.repo, "batch-cost", "dynamic_batching { }")
    board = batchers.board(server, log_path)
    board.controls["arrivals"].value = arrivals
    assert f"{len(boards.ARRIVALS[arrivals])} requests in" in board.run().alt
    assert batch_run.QUEUE_FULL not in board.status.value
