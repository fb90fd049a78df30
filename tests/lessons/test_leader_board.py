"""The leader board of a learner's own tries."""

import re

import pytest

from inflight.lessons.kv_cache.leader_board import NO_WORKSPACE, leader_board
from inflight.notebook import record, workspace

POINTS = "points, fewer is better"


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "around", lambda _: tmp_path)
    return tmp_path


def note(status, iterations=None, points=None):
    figures = [] if points is None else [{"what": "iterations", "value": iterations}, {"what": POINTS, "value": points}]
    record.note("exercise", exercise="5.4", status=status, seed=1, figures=figures)


def test_right_ones_come_first_and_the_best_of_them_before_the_others(work):
    note("wrong", 990, 0.9)
    note("done", 1200, 1.4)
    note("wrong")  # a file that is no Python: nothing was measured
    note("done", 1100, 1.25)
    rows = re.findall(r"<tr>(.*?)</tr>", leader_board("5.4", by=POINTS).data)[1:]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert [(row[0], row[2], row[3], row[4]) for row in cells] == [
        ("4", "done", "1,100", "1.25"),
        ("2", "done", "1,200", "1.40"),
        ("1", "wrong", "990", "0.90"),
    ]


def test_where_there_is_none_it_says_why(work, monkeypatch):
    assert leader_board("5.4", by=POINTS) == "No try of exercise 5.4 was measured yet."
    note("wrong")
    assert leader_board("5.4", by=POINTS) == "No try of exercise 5.4 was measured yet."
    monkeypatch.setattr(workspace, "around", lambda _: None)
    assert leader_board("5.4", by=POINTS) == NO_WORKSPACE
