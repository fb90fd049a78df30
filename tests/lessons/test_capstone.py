"""Lesson 09's dashboard, without a server: what runs came to is made up."""

import pandas as pd
import pytest

from inflight.errors import CourseError
from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import BRIEF, Deployment
from inflight.lessons.capstone.tuning_board import TuningBoard


class NoServer:
    """Stands where a dashboard wants a server that runs."""

    def start(self):
        return self


NO_SERVER = NoServer()  # boards refer to theirs weakly
REQUESTS = pd.DataFrame({"ttft_ms": [5000.0] * 12 + [900.0] * 4, "itl_ms": 40.0, "error": ""})


@pytest.fixture
def board(monkeypatch, tmp_path):
    """A board whose runs end at once; with one slot they fail."""

    def follow(server, chosen, brief, seed, number):
        yield 0
        if chosen.max_batch_size == 4:
            raise CourseError("Four slots are refused here.")
        yield number // 2
        yield service.Served(chosen, REQUESTS, brief)

    monkeypatch.setattr(service, "follow", follow)
    scheduler = tmp_path / "scheduler.py"
    scheduler.write_text("")
    return TuningBoard(NO_SERVER, BRIEF, 16, scheduler)


def test_each_run_is_a_row_and_the_last_two_are_drawn(board):
    for settings, load in (({}, 1.0), ({"enable_kv_cache_reuse": True, "max_batch_size": 16}, 1.0), ({}, 2.0)):
        board.set(settings, load).run()
    assert [run.deployment.max_batch_size for run in board.runs] == [8, 16, 8]
    assert [run.brief.rate / BRIEF.rate for run in board.runs] == [1, 1, 2] and "2 ×" in board._table.value
    assert [trace.name.split(",")[0] for trace in board.figure.data] == ["in time", "run 2", "run 3"]
    assert board._table.value.count("<tr") == 4 and "enable_kv_cache_reuse: True" in board._table.value
    assert f"{board.runs[-1].met} of 16" in board.status.value


def test_a_run_that_was_stopped_tells_nothing_of_the_one_before_it(board, monkeypatch):
    board.run()

    def stopped(server, chosen, brief, seed, number):
        board.stop()
        yield 0
        yield 1

    monkeypatch.setattr(service, "follow", stopped)
    board.run()
    assert len(board.runs) == 1 and "Stopped" in board.status.value and "in time" not in board.status.value


def test_a_run_that_fails_is_a_row_with_its_error_and_the_next_one_runs(board):
    board.set({"max_batch_size": 4})
    with pytest.raises(CourseError, match="refused here"):
        board.run()
    assert not board.runs and "refused here" in board._table.value and "Failed" in board.status.value
    board.set({}).run()
    assert len(board.runs) == 1 and board._table.value.count("<tr") == 3


def test_settings_are_brought_into_the_controls_and_back(board):
    wanted = {"kv_cache_quant_algo": "INT8", "max_queue_size": 4, "allotted_time_ms": 3000}
    board.set(wanted).run()
    assert board.set({}).deployment == Deployment()
    assert board.set(board.runs[0].deployment).deployment == Deployment(**wanted)
    board.controls["scheduler_path"].label = "mine"
    assert board.deployment.scheduler_path.endswith("scheduler.py")
    with pytest.raises(CourseError, match="does not offer"):
        board.set({"scheduler_path": "/elsewhere.py"})
