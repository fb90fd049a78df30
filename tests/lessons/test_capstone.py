"""Lesson 09's dashboard and experiment, without a server: what runs came to is made up."""

import re

import nbformat
import pytest

from inflight.errors import CourseError
from inflight.lessons import capstone
from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import BRIEF, Deployment, Progress
from inflight.lessons.capstone.tuning_board import TuningBoard
from inflight.paths import ASSETS
from tests.notebook.chart_samples import POINTS


class NoServer:
    """Stands where a dashboard wants a server that runs."""

    def start(self):
        return self


NO_SERVER = NoServer()  # boards refer to theirs weakly


@pytest.fixture
def board(monkeypatch, tmp_path):
    """A board whose runs end at once: with a cache above 9,999 tokens they fail."""

    def follow(server, chosen, brief, seed, number):
        yield Progress(0, 40)
        if (chosen.cache_tokens or 0) > 9999:
            raise CourseError("A KV cache of this size takes more than the brief has.")
        yield Progress(20, 40)
        yield service.Served(chosen, POINTS[min(seed, 3)].run, brief)

    monkeypatch.setattr(service, "follow", follow)
    scheduler = tmp_path / "scheduler.py"
    scheduler.write_text("")
    return TuningBoard(NO_SERVER, BRIEF, {"mine": scheduler})


def test_each_run_adds_a_point_and_a_row(board):
    board.run()
    board.set({"enable_kv_cache_reuse": True, "max_batch_size": 16}).run()
    assert [point.deployment.max_batch_size for point in board.points] == [8, 16]
    assert board.points[1].deployment.enable_kv_cache_reuse and len(board.table()) == 2
    assert "Point 2" in board.status.value and "enable_kv_cache_reuse: True" in board._table.value


def test_a_run_that_was_stopped_tells_nothing_of_the_point_before_it(board, monkeypatch):
    board.run()

    def stopped(server, chosen, brief, seed, number):
        board.stop()
        yield Progress(0, 40)
        yield Progress(20, 40)

    monkeypatch.setattr(service, "follow", stopped)
    board.run()
    assert len(board.points) == 1
    assert "Stopped" in board.status.value and "Point" not in board.status.value


def test_the_settings_of_a_point_are_brought_back(board):
    wanted = {"kv_cache_quant_algo": "INT8", "cache_tokens": 2048, "max_queue_size": 3, "instances": 2}
    board.set(wanted).run()
    assert board.set({}).deployment == Deployment()
    assert board.set(board.points[0].deployment).deployment == Deployment(**wanted)


def test_a_run_that_fails_is_a_row_with_its_error_and_the_next_one_runs(board):
    board.set({"cache_tokens": 12000})
    with pytest.raises(CourseError, match="more than the brief"):
        board.run()
    assert not board.points and "more than the brief has" in board._table.value and "Failed" in board.status.value
    board.set({}).run()
    assert len(board.points) == 1 and len(board.rows) == 2


def test_a_scheduler_of_ones_own_is_in_the_list(board):
    assert board.controls["scheduler_path"].options == ("policy", "mine")
    board.controls["scheduler_path"].value = "mine"
    assert board.deployment.scheduler_path.endswith("scheduler.py")
    with pytest.raises(CourseError, match="has no scheduler"):
        board.set({"scheduler_path": "/elsewhere.py"})


# The picture ----------------------------------------------------------------------------------------------------------


def test_the_front_has_what_nothing_beats_and_the_corner_is_the_objective():
    figure = capstone.pareto(POINTS, BRIEF)
    by_name = {trace.name: trace for trace in figure.data}
    assert max(by_name["the objective"].x) == BRIEF.objective.ttft_ms
    front = list(zip(by_name["the Pareto front"].x, by_name["the Pareto front"].y))
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in zip(front, front[1:]))
    assert sum(len(by_name[name].x) for name in ("keeps the objective", "does not")) == 4


def test_the_experiment_takes_what_the_lecture_gives():
    notebook = nbformat.read(ASSETS / "experiments" / "deployment.ipynb", as_version=4)
    parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    assert set(re.findall(r"^(\w+) =", parameters.source, re.M)) == {"settings", "pace", "seed", "number", "result"}
