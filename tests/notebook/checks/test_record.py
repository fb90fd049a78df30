"""What a learner has done: what is kept of it, what becomes of a damaged record, what is handed in, and a class."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from inflight.cli.commands import app
from inflight.errors import CourseError
from inflight.notebook.checks import check, parts, record
from inflight.notebook.checks.findings import Measured
from inflight.notebook.checks.graders import Grader, graders
from inflight.notebook.pages import workspace
from inflight.notebook.widgets.prediction import predict
from inflight.paths import COURSE
from tests.engines import start_python


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A workspace, with the current folder where a learner's kernel has it."""
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    monkeypatch.setenv("INFLIGHT_WORK", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def inflight(*arguments):
    return CliRunner().invoke(app, ["progress", *map(str, arguments)])


def lesson_04(table):
    return table[table["lesson"].str.startswith("04")].iloc[0]


# A record -------------------------------------------------------------------------------------------------------------


def test_checks_are_kept_and_counted(work, monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    check("4.4", None)
    for answer in ([[8] * 24, [8] * 24], [[9], [9]]):
        result = check("4.4", tuple(answer))
        assert result.status == "wrong" and record.read(work / record.FILE)[-1]["said"] == result.hint
    row = lesson_04(record.exercises())
    assert (row.done, row.open, row.tries) == (0, "4.4", 2)
    record.note("exercise", exercise="4.4", status="done")
    record.note("exercise", exercise="4.4", status="wrong")  # what was right once stays so
    row = lesson_04(record.exercises())
    assert (row.done, row.open, row.tries) == (1, "", 4)


def test_every_lab_has_its_exercises(work):
    table = record.exercises()
    assert len(table) == len(list((COURSE / "labs").glob("*.ipynb"))) and (table["exercises"] >= 2).all(), table


def test_outside_of_a_workspace_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record.note("exercise", exercise="4.1", status="done")
    assert not list(tmp_path.iterdir())
    assert record.exercises()["tries"].sum() == 0


def test_damaged_lines_are_left_out(work):
    record.note("exercise", exercise="4.1", status="done")
    with open(work / record.FILE, "ab") as file:
        file.write(b'{"kind": "exer\n[1]\n"x"\n{"kind": 1}\n\xff\xfe\n' + b"[" * 100_000 + b'\n{"kind": "exercise"}\n')
    record.note("exercise", exercise="4.2", status="done")
    assert [entry.get("exercise") for entry in record.read(work / record.FILE)] == ["4.1", None, "4.2"]
    assert lesson_04(record.exercises()).done == 2


def test_what_cannot_be_kept_is_said_and_the_answer_stands(work, capsys):
    (work / record.FILE).mkdir()
    record.note("exercise", exercise="4.1", status="done")
    assert "not kept" in capsys.readouterr().out


ON_A_FULL_DISK = """
import resource
from inflight.notebook.checks import record
record.note("exercise", exercise="4.1", status="done")
size = record.workspace.around(record.Path.cwd()).joinpath(record.FILE).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, resource.RLIM_INFINITY))  # room for the half of a line
record.note("exercise", exercise="4.2", status="done")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
record.note("exercise", exercise="4.3", status="done")
"""


def test_on_a_full_disk_a_line_that_is_not_kept_is_said_and_costs_no_other(work):
    said, _ = start_python(ON_A_FULL_DISK).communicate()
    assert said == f"This is not kept: {work / record.FILE} cannot be written (No space left on device).\n"
    assert [entry["exercise"] for entry in record.read(work / record.FILE)] == ["4.1", "4.3"]


def test_figures_of_numpy_are_kept_as_numbers(work, monkeypatch):
    figure = Measured("iterations", np.int64(3), at_most=np.int64(4), course=np.float32(2.5))
    monkeypatch.setitem(graders, "4.99", Grader(lambda answer, choose: figure, "", "", None))
    assert check("4.99", 1).status == "done"
    for measured in (np.float64(8), np.int64(9)):
        guess = predict("How many?")
        guess.field.value = "8"
        guess.score(measured)
    kept, _, right, wrong = record.read(work / record.FILE)
    assert kept["figures"] == [{"what": "iterations", "value": 3, "course": 2.5, "nothing": None}]
    assert (right["measured"], right["right"], wrong["measured"], wrong["right"]) == (8.0, True, 9, False)


def test_tries_are_rows_with_a_column_a_figure(work):
    record.note("exercise", exercise="5.3", status="wrong", seed=3, figures=[{"what": "iterations", "value": 130}])
    record.note("exercise", exercise="5.3", status="done", seed=4, figures=[{"what": "iterations", "value": 118}])
    record.note("exercise", exercise="5.3", status="wrong")
    table = record.tries("5.3", work)
    assert table["iterations"].tolist()[:2] == [130, 118] and table["status"].tolist() == ["wrong", "done", "wrong"]
    assert record.tries("9.9").empty


def test_the_last_guess_is_that_of_its_question(work):
    for question, said in (("How many?", "7"), ("How many?", "8"), ("Which?", "both")):
        record.note("guess", question=question, said=said)
    record.note("prediction", question="How many?", said="9")
    assert [record.last_guess(question) for question in ("How many?", "Which?", "Why?")] == ["8", "both", None]


def test_progress_shows_exercises_predictions_and_parts(work, tmp_path):
    written = tmp_path / "written.py"
    written.write_text("")
    parts.keep("scheduler", written, "4.3")
    record.note("exercise", exercise="4.3", status="done")
    record.note("prediction", question="How many?", said=8, measured=9, right=False)
    record.note("prediction", question="How many?", said=9, measured=9, right=True)  # the first counts
    done = json.loads(inflight("--json").stdout)
    assert [row["right"] for row in done["predictions"]] == [False]
    assert sum(row["done"] for row in done["exercises"]) == 1
    assert [row["part"] for row in done["parts"] if row["whose"] == "yours"] == ["scheduler"]
    assert "How many?" in inflight().stdout


# A class --------------------------------------------------------------------------------------------------------------


def fill(work):
    for exercise, status, said in (
        ("4.1", "wrong", f"{work}/x.py is 12 iterations too slow"),
        ("4.1", "done", ""),
        ("5.2", "partly", "\x1b[2J 9 pauses are too many."),
    ):
        record.note("exercise", exercise=exercise, status=status, said=said)
    record.note("prediction", question="How many?", said=1, measured=1, right=True)


@pytest.mark.parametrize(
    ("home", "shown"),
    [
        ("/home/ann", "~/x.py, ~: a/b and /home/anna/x"),
        ("/home/ann/", "~/x.py, ~: a/b and /home/anna/x"),
        ('/home/jürgen "b"', "~/x.py, ~: a/b and /home/anna/x"),
        ("/", "//x.py, /: a/b and /home/anna/x"),
        ("", "/x.py, : a/b and /home/anna/x"),
    ],
)
def test_what_is_handed_in_has_the_home_folder_as_a_tilde_and_no_other_path(work, monkeypatch, tmp_path, home, shown):
    monkeypatch.setenv("HOME", home)
    said = f"{home.rstrip('/') if home != '/' else home}/x.py, {home.rstrip('/') or home}: a/b and /home/anna/x"
    record.note("exercise", exercise="4.1", status="wrong", said=said)
    [_, entry] = record.read(record.hand_in(work, "Ada", tmp_path / "handed-in"))
    assert entry["said"] == shown


def test_who_passed_what(work, tmp_path):
    fill(work)
    folder = tmp_path / "class"
    folder.mkdir()
    for name in ("Ada Lovelace", "李 小龙"):
        assert inflight("--hand-in", name, "--save", folder / f"{name}.jsonl").exit_code == 0
    text = (folder / "Ada Lovelace.jsonl").read_text()
    assert str(tmp_path) not in text and len(text.splitlines()) == 5
    (folder / "thesis.pdf").write_bytes(b"%PDF\x00")
    first = json.dumps({"kind": "hand-in", "name": "Eve\x1b[2J"})
    (folder / "b.jsonl").write_text(first + '\n{"kind": "exercise"}\nx\n')
    found, problems = record.read_class(folder)
    assert {name for name, _ in found} == {"Ada Lovelace", "Eve�[2J", "李 小龙"}
    assert any("thesis.pdf is no hand-in" in problem for problem in problems)
    marks = record.marks(found).set_index("learner")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", marks.loc["Ada Lovelace", "4.1"])
    assert marks.loc["Ada Lovelace", "5.2"] == "tried"
    assert marks.loc["Ada Lovelace", ["passed", "predictions"]].tolist() == [1, "1 of 1"]
    hints = record.hints(found).set_index("exercise")
    assert hints.loc["4.1", ["passed", "tried"]].tolist() == [2, 0]
    assert hints.loc["5.2", ["passed", "tried", "often"]].tolist() == [0, 2, "�[2J 9 pauses are too many. (2 of 2)"]

    shown = inflight("--class", folder)
    assert shown.exit_code == 0 and "✓" in shown.stdout and "\x1b" not in shown.stdout
    lines = inflight("--class", folder, "--csv").stdout.splitlines()
    assert lines[0].startswith("learner,1.1,1.2") and lines[0].endswith("passed,predictions")
    facts = json.loads(inflight("--class", folder, "--json").stdout)
    assert {row["learner"] for row in facts["learners"]} >= {"Ada Lovelace", "李 小龙"}


def test_what_cannot_be_done_is_one_sentence(work, tmp_path):
    (tmp_path / "class").mkdir()
    for arguments, words in (
        (["--hand-in", "Ada"], "nothing to hand in"),
        (["--class", tmp_path / "class"], "No file has been handed in"),
        (["--class", tmp_path / "nowhere"], "cannot be read"),
        (["--csv"], "--csv with --class"),
    ):
        error = inflight(*arguments).exception
        assert isinstance(error, CourseError) and words in str(error), error
    fill(work)
    error = inflight("--hand-in", "Ada", "--save", tmp_path / "nowhere" / "x").exception
    assert isinstance(error, CourseError) and "--save" in str(error)
