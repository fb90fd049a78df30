"""What a learner has done: what is kept of it, where, and what becomes of a damaged record."""

import json
import threading

import numpy as np
import pytest

from inflight.errors import CourseError
from inflight.notebook import journal, workspace
from inflight.notebook.grading import Measured, check, checker
from inflight.notebook.prediction import predict


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A workspace, with the current folder where a learner's kernel has it."""
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    return folder


def lesson_of(table, number):
    return table[table["lesson"].str.startswith(number)].iloc[0]


def test_checks_are_kept_and_counted(work, monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    check("4.4", None)
    for answer in ([[8] * 24, [8] * 24], [[9], [9]]):
        assert check("4.4", tuple(answer)).status == "wrong"
    row = lesson_of(journal.progress(work), "04")
    assert (row.done, row.open, row.tries) == (0, "4.4", 2)
    assert row.exercises >= 3
    journal.note("exercise", exercise="4.4", status="done")
    journal.note("exercise", exercise="4.4", status="wrong")  # what was right once stays so
    row = lesson_of(journal.progress(work), "04")
    assert (row.done, row.open, row.tries) == (1, "", 4)


def test_every_lab_has_its_exercises(work):
    table = journal.progress(work)
    assert table["exercises"].tolist()[0] == 0
    assert (table["exercises"].iloc[1:] >= 3).all(), table


def test_outside_of_a_workspace_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal.note("exercise", exercise="4.1", status="done")
    assert not list(tmp_path.iterdir())


def test_damaged_lines_are_left_out(work):
    journal.note("exercise", exercise="4.1", status="done")
    with open(work / journal.FILE, "ab") as file:
        file.write(b'{"kind": "exer\n[1]\n"x"\n{"kind": 1}\n\xff\xfe\n{"kind": "exercise"}\n')
    journal.note("exercise", exercise="4.2", status="done")
    assert [entry.get("exercise") for entry in journal.read(work)] == ["4.1", None, "4.2"]
    assert lesson_of(journal.progress(work), "04").done == 2


def test_several_notebooks_note_at_once(work):
    threads = [
        threading.Thread(target=lambda: [journal.note("exercise", exercise="4.1", text="x" * 500) for _ in range(50)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (work / journal.FILE).read_text().splitlines()
    assert len(lines) == 400
    assert all(json.loads(line)["kind"] == "exercise" for line in lines)


def test_what_cannot_be_kept_is_said_and_the_answer_stands(work, capsys):
    (work / journal.FILE).mkdir()
    journal.note("exercise", exercise="4.1", status="done")
    assert "not kept" in capsys.readouterr().out


def test_a_file_that_is_no_journal(work, monkeypatch):
    monkeypatch.setattr(journal, "MOST_BYTES", 10)
    (work / journal.FILE).write_text("x" * 11)
    with pytest.raises(CourseError, match="move it away"):
        journal.read(work)


def test_figures_of_numpy_are_kept_as_numbers(work, monkeypatch):
    figure = Measured("iterations", np.int64(3), at_most=np.int64(4), course=np.float32(2.5))
    monkeypatch.setitem(checker._graders, "4.99", checker._Grader(lambda answer, choose: figure, "", ""))
    assert check("4.99", 1).status == "done"
    assert predict("How many?", given=8).score(np.float64(8)) == "Your prediction, 8, is right."
    assert predict("How many more?", given=8).score(np.int64(9)).startswith("Your prediction: 8. It is 9")
    kept, right, wrong = journal.read(work)
    assert kept["figures"] == [{"what": "iterations", "value": 3, "course": 2.5, "nothing": None}]
    assert (right["measured"], right["right"], wrong["measured"], wrong["right"]) == (8.0, True, 9, False)


def test_what_json_does_not_know_is_kept_as_it_is_printed(work):
    journal.note("exercise", exercise="4.1", status="done", seed=work)
    assert journal.read(work)[0]["seed"] == str(work)
