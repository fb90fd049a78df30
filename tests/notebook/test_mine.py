"""The parts of a learner's own stack: whose is used, and that nothing of theirs is lost."""

import re
from pathlib import Path

import nbformat
import pytest

from inflight.errors import CourseError
from inflight.notebook import achieved, journal, mine, workspace
from inflight.paths import COURSE


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A workspace, with the current folder where a lab's kernel has it; the course has a scheduler of its own."""
    courses = tmp_path / "parts"
    courses.mkdir()
    (courses / "scheduler.py").write_text("WHO = 'the course'\n")
    monkeypatch.setattr(mine, "COURSES_OWN", courses)
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    return folder


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "written.py"
    path.write_text("WHO = 'a learner'\n")
    return path


def test_what_has_passed_is_used_and_says_so(work, written):
    before = mine.part("scheduler")
    assert not before.is_mine and "the course's; yours has not passed yet" in repr(before)
    assert mine.load("scheduler").WHO == "the course"
    assert mine.keep("scheduler", written, "5.3") == "Kept as mine/scheduler.py, your scheduler from here on."
    after = mine.part("scheduler")
    assert after.is_mine and repr(after) == "scheduler: yours, passed 5.3"
    assert Path(after).read_text() == written.read_text() and mine.load("scheduler").WHO == "a learner"


def test_what_was_changed_since_is_not_used(work, written):
    mine.keep("scheduler", written, "5.3")
    (work / "mine" / "scheduler.py").write_text("WHO = 'untested'\n")
    assert mine.load("scheduler").WHO == "the course"
    assert "changed since it passed: check it again" in repr(mine.part("scheduler"))
    assert "changed since" in mine.table(work).set_index("part").loc["scheduler", "whose"]
    (work / "mine" / "scheduler.py").unlink()
    assert "no longer in mine/" in repr(mine.part("scheduler"))


def test_what_was_kept_before_is_set_aside(work, written):
    mine.keep("scheduler", written, "4.2")
    mine.keep("scheduler", written, "4.2")
    assert not (work / "mine" / "earlier").exists(), "the same again is no other"
    old = written.read_text()
    for number in range(3):
        written.write_text(f"WHO = {number}\n")
        mine.keep("scheduler", written, "5.3")
    earlier = {path.read_text() for path in (work / "mine" / "earlier").iterdir()}
    assert earlier == {old, "WHO = 0\n", "WHO = 1\n"} and mine.load("scheduler").WHO == 2


def test_a_part_is_replaced_by_the_same_exercise_or_a_later_one(work, written):
    def passes(exercise, who):
        written.write_text(f"WHO = {who!r}\n")
        return mine.keep("scheduler", written, exercise)

    passes("4.3", "first")
    passes("5.9", "better")
    passes("5.10", "best")
    assert mine.load("scheduler").WHO == "best"
    said = passes("4.3", "first, again")
    assert said == "mine/scheduler.py stays as it is: yours of exercise 5.10, a later one."
    assert passes("5.9", "best") == said, "the same words, in an earlier exercise"
    assert repr(mine.part("scheduler")) == "scheduler: yours, passed 5.10" and mine.load("scheduler").WHO == "best"
    assert len(list((work / "mine" / "earlier").iterdir())) == 2, "what stays is not set aside"
    passes("5.10", "best yet")
    assert mine.load("scheduler").WHO == "best yet"


@pytest.mark.parametrize("happens", ["changed", "removed"])
def test_a_part_that_no_longer_counts_gives_way_to_an_earlier_exercise(work, written, happens):
    mine.keep("scheduler", written, "5.4")
    own = work / "mine" / "scheduler.py"
    own.write_text("WHO = 'untested'\n") if happens == "changed" else own.unlink()
    assert mine.keep("scheduler", written, "4.3").startswith("Kept as mine/scheduler.py")
    assert repr(mine.part("scheduler")) == "scheduler: yours, passed 4.3"


def test_a_folder_is_kept_whole_and_without_litter(work, tmp_path):
    repository = tmp_path / "repo"
    (repository / "tiny" / "1" / "__pycache__").mkdir(parents=True)
    (repository / "tiny" / "config.pbtxt").write_text('name: "tiny"')
    (repository / "tiny" / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    mine.keep("repository", repository, "2.1")
    kept = mine.part("repository")
    assert kept.is_mine and (kept.path / "tiny" / "config.pbtxt").read_text() == 'name: "tiny"'
    assert not list(kept.path.rglob("*.pyc"))
    (kept.path / "tiny" / "1" / "__pycache__").mkdir()
    (kept.path / "tiny" / "1" / "__pycache__" / "model.pyc").write_bytes(b"y")
    assert mine.part("repository").is_mine, "what Python leaves beside it changes nothing"
    (kept.path / "tiny" / "config.pbtxt").write_text('name: "other"')
    (mine.COURSES_OWN / "repository").mkdir()
    assert not mine.part("repository").is_mine


def test_outside_of_a_workspace_there_is_only_the_courses(work, written, tmp_path, monkeypatch):
    mine.keep("scheduler", written, "5.3")
    monkeypatch.chdir(tmp_path)
    assert mine.load("scheduler").WHO == "the course" and "no workspace" in repr(mine.part("scheduler"))
    assert mine.keep("scheduler", written, "5.3") == ""


@pytest.mark.parametrize("record", ["", "[1]", '{"scheduler": 1}', '{"scheduler": {"exercise": 1}}', "\x00"])
def test_a_damaged_record_means_that_nothing_has_passed(work, written, record):
    mine.keep("scheduler", written, "5.3")
    (work / "mine" / mine.PASSED).write_text(record)
    assert not mine.part("scheduler").is_mine


def test_what_cannot_be_used_is_one_sentence(work, tmp_path, monkeypatch):
    with pytest.raises(CourseError, match="no part 'engine'; there are quantizer"):
        mine.part("engine")
    with pytest.raises(CourseError, match="no client to use: yours has not passed yet.*Do its lab first"):
        mine.part("client")
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere\n")
    mine.keep("client", broken, "3.2")
    with pytest.raises(CourseError, match="client.py cannot be imported .ModuleNotFoundError"):
        mine.load("client")
    monkeypatch.setattr(mine, "MOST_BYTES", 3)
    with pytest.raises(CourseError, match="Leave engines out"):
        mine.keep("client", broken, "3.2")


def test_a_fresh_start_sets_the_parts_aside(work, written):
    mine.keep("scheduler", written, "5.3")
    prepared = workspace.prepare(work, fresh="all")
    assert (prepared.aside / "mine" / "scheduler.py").read_text() == written.read_text()
    assert not mine.part("scheduler").is_mine


def test_what_was_achieved_is_shown(work, written):
    mine.keep("scheduler", written, "5.3")
    figures = [{"what": "iterations", "value": 118, "course": 104, "nothing": 240}]
    journal.note("exercise", exercise="5.3", status="done", figures=figures)
    journal.note("prediction", question="How many <b>?", said=8, measured=9, right=False)
    journal.note("prediction", question="How many <b>?", said=9, measured=9, right=True)  # the first counts
    board = achieved.board()
    assert "0 of 1 predictions right; 1 of 7 parts your own" in repr(board)
    assert "iterations 118 (doing nothing 240, the course's 104)" in board.tables.value
    assert "<b>?" not in board.tables.value.replace("&lt;b&gt;?", "")
    done = achieved.read(work)
    assert done["exercises"].query("lesson.str.startswith('05')")["done"].item() == 1


def test_a_board_outside_of_a_workspace_says_where_work_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "inflight lab" in repr(achieved.board())


def test_tries_are_rows_with_a_column_a_figure(work):
    journal.note("exercise", exercise="5.3", status="wrong", seed=3, figures=[{"what": "iterations", "value": 130}])
    journal.note("exercise", exercise="5.3", status="done", seed=4, figures=[{"what": "iterations", "value": 118}])
    journal.note("exercise", exercise="5.3", status="wrong", figures=[7, {"what": 1}, {"what": "x", "value": "y"}])
    table = journal.tries(work, "5.3")
    assert table["iterations"].tolist()[:2] == [130, 118] and table["status"].tolist() == ["wrong", "done", "wrong"]
    assert journal.tries(work, "9.9").empty


@pytest.mark.parametrize(
    "name, kept_in",
    [("quantizer", "01"), ("repository", "02"), ("client", "03"), ("scheduler", "05"), ("iterative_model", "07")],
)
def test_a_part_that_a_later_lab_can_use_is_used_by_one(name, kept_in):
    taken = re.compile(rf"mine\.(part|load)\(\"{name}\"\)")
    labs = [path.name for path in sorted((COURSE / "labs").glob("*.ipynb")) if taken.search(_code(path))]
    assert any(lab[:2] > kept_in for lab in labs), labs


def _code(path):
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
