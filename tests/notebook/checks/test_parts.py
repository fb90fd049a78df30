"""The parts of a learner's own stack: whose is used, and that nothing of theirs is lost."""

import re
from pathlib import Path

import nbformat
import pytest

from inflight.errors import CourseError
from inflight.notebook.checks import parts
from inflight.notebook.pages import workspace
from inflight.paths import COURSE


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A workspace, with the current folder where a lab's kernel has it; the course has a scheduler of its own."""
    courses = tmp_path / "parts"
    courses.mkdir()
    (courses / "scheduler.py").write_text("WHO = 'the course'\n")
    monkeypatch.setattr(parts, "COURSES_OWN", {name: courses / file for name, file in parts.PARTS.items()})
    folder = workspace.prepare(tmp_path / "work").folder
    monkeypatch.chdir(folder / "labs")
    return folder


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "written.py"
    path.write_text("WHO = 'a learner'\n")
    return path


def test_what_has_passed_is_used_and_says_so(work, written):
    before = parts.part("scheduler")
    assert not before.is_own and "the course's; yours has not passed its check yet" in repr(before)
    assert parts.load("scheduler").WHO == "the course"
    assert parts.keep("scheduler", written, "5.3") == "Kept as mine/scheduler.py, your scheduler from here on."
    after = parts.part("scheduler")
    assert after.is_own and repr(after) == "scheduler: yours, passed 5.3"
    assert Path(after).read_text() == written.read_text() and parts.load("scheduler").WHO == "a learner"
    assert parts.table(work).set_index("part").loc["scheduler"].tolist() == ["yours", "5.3"]
    (work / "mine" / "scheduler.py").unlink()
    assert parts.load("scheduler").WHO == "the course"


def test_what_was_kept_before_stays_beside_it(work, written):
    parts.keep("scheduler", written, "4.2")
    parts.keep("scheduler", written, "4.2")
    parts.keep("scheduler", work / "mine" / "scheduler.py", "4.2")  # checked where it is kept
    assert not list((work / "mine").glob("*before*")), "the same again is no other"
    old = written.read_text()
    for number in range(2):
        written.write_text(f"WHO = {number}\n")
        parts.keep("scheduler", written, "5.3")
    assert {path.read_text() for path in (work / "mine").glob("*before*")} == {old, "WHO = 0\n"}
    assert parts.load("scheduler").WHO == 1


def test_a_part_is_replaced_by_the_same_exercise_or_a_later_one(work, written):
    def passes(exercise, who):
        written.write_text(f"WHO = {who!r}\n")
        return parts.keep("scheduler", written, exercise)

    passes("4.3", "first")
    passes("5.9", "better")
    passes("5.10", "best")
    said = passes("4.3", "first, again")
    assert said == "mine/scheduler.py stays as it is: yours of exercise 5.10, a later one."
    assert repr(parts.part("scheduler")) == "scheduler: yours, passed 5.10" and parts.load("scheduler").WHO == "best"
    passes("5.10", "best yet")
    assert parts.load("scheduler").WHO == "best yet"
    (work / "mine" / "scheduler.py").unlink()
    assert passes("4.3", "first, again").startswith("Kept as mine/scheduler.py")


def test_a_folder_is_kept_whole_and_without_litter(work, tmp_path):
    repository = tmp_path / "repo"
    (repository / "tiny" / "1" / "__pycache__").mkdir(parents=True)
    (repository / "tiny" / "config.pbtxt").write_text('name: "tiny"')
    (repository / "tiny" / "1" / "__pycache__" / "model.pyc").write_bytes(b"x")
    for _ in range(2):
        parts.keep("repository", repository, "2.1")
    kept = parts.part("repository")
    assert kept.is_own and (kept.path / "tiny" / "config.pbtxt").read_text() == 'name: "tiny"'
    assert not list(kept.path.rglob("*.pyc"))


def test_outside_of_a_workspace_there_is_only_the_courses(work, written, tmp_path, monkeypatch):
    parts.keep("scheduler", written, "5.3")
    monkeypatch.chdir(tmp_path)
    assert parts.load("scheduler").WHO == "the course" and "no workspace" in repr(parts.part("scheduler"))
    assert parts.keep("scheduler", written, "5.3") == ""


@pytest.mark.parametrize("record", ["", '{"scheduler": 1}'])
def test_a_damaged_record_means_that_nothing_has_passed(work, written, record):
    parts.keep("scheduler", written, "5.3")
    (work / "mine" / parts.PASSED).write_text(record)
    assert not parts.part("scheduler").is_own


def test_what_cannot_be_used_is_one_sentence(work, tmp_path):
    with pytest.raises(CourseError, match="no part 'engine'; there are quantizer"):
        parts.part("engine")
    with pytest.raises(CourseError, match="no client to use: yours has not passed its check yet.*Do its lab first"):
        parts.part("client")
    broken = tmp_path / "broken.py"
    broken.write_text("import nowhere\n")
    parts.keep("client", broken, "3.2")
    with pytest.raises(CourseError, match="client.py cannot be imported .ModuleNotFoundError"):
        parts.load("client")


def test_a_fresh_start_keeps_the_parts_beside_it(work, written):
    parts.keep("scheduler", written, "5.3")
    workspace.prepare(work, fresh="all")
    assert (work / "mine.before" / "scheduler.py").read_text() == written.read_text()
    assert not parts.part("scheduler").is_own


@pytest.mark.parametrize(
    "name, kept_in",
    [("quantizer", "01"), ("repository", "02"), ("client", "03"), ("scheduler", "05")],
)
def test_a_part_that_a_later_lab_can_use_is_used_by_one(name, kept_in):
    taken = re.compile(rf"parts\.(part|load)\(\"{name}\"\)")
    labs = [path.name for path in sorted((COURSE / "labs").glob("*.ipynb")) if taken.search(_code(path))]
    assert any(lab[:2] > kept_in for lab in labs), labs


def _code(path):
    return "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")
