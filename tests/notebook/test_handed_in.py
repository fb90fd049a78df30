"""What learners hand in: what is in it, and that no file of whatever kind keeps a class from being read."""

import json
import os

import pytest
from typer.testing import CliRunner

from inflight import CourseError
from inflight.cli.commands import app
from inflight.notebook import handed_in, journal, workspace
from inflight.notebook.grading import check

ESCAPE = "\x1b[2J\x1b]0;mine\x07"
TURNED = "\u202egnp.exe"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A workspace with two exercises passed, one tried in vain and two predictions."""
    folder = tmp_path / "work"
    (folder / "labs").mkdir(parents=True)
    (folder / workspace.VERSIONS).write_text("{}")
    monkeypatch.chdir(folder / "labs")
    monkeypatch.setenv("HOME", str(tmp_path))
    for exercise, status, said in (
        ("4.1", "wrong", f"{tmp_path}/x.py\nis {ESCAPE} 12 iterations too slow"),
        ("4.1", "done", ""),
        ("4.1", "wrong", "9 iterations"),
        ("1.1", "done", ""),
        ("5.2", "partly", "Too many pauses."),
    ):
        journal.note("exercise", exercise=exercise, status=status, said=said)
    for number, right in ((1, True), (2, False)):
        journal.note("prediction", question=f"{number}?", said=1, measured=number, right=right)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFLIGHT_WORK", str(folder))
    return folder


def inflight(*arguments):
    return CliRunner().invoke(app, ["progress", *map(str, arguments)])


def valid(**changes):
    return {
        "kind": "inflight hand-in",
        "course": "0.1.0",
        "name": "Ada",
        "at": "2026-11-22T10:00:00Z",
        "exercises": [{"exercise": "4.1", "passed": "2026-11-21T09:00:00Z", "tries": 3, "said": "118 iterations."}],
        "predictions": {"right": 1, "made": 2},
        "parts": ["scheduler"],
    } | changes


@pytest.fixture
def handed(tmp_path):
    """A class's folder, and a function that adds a file to it: text, bytes, or changes to what is valid."""
    folder = tmp_path / "class"
    folder.mkdir()

    def add(file, content=None, **changes):
        if content is None:
            content = json.dumps(valid(**changes))
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        return folder

    return add


def test_what_is_handed_in_is_what_is_said_and_nothing_else(work, tmp_path):
    ran = inflight("--hand-in", "Ada Lovelace")
    assert ran.exit_code == 0, ran.output
    written = json.loads((tmp_path / "hand-in-ada-lovelace.json").read_text())
    assert set(written) == {"kind", "course", "name", "at", "exercises", "predictions", "parts"}
    assert written["predictions"] == {"right": 1, "made": 2} and written["parts"] == []
    assert [(row["exercise"], row["tries"], bool(row["passed"])) for row in written["exercises"]] == [
        ("1.1", 1, True), ("4.1", 3, True), ("5.2", 1, False)
    ]  # fmt: skip
    assert all(set(row) == {"exercise", "passed", "tries", "said"} for row in written["exercises"])
    assert [row["said"] for row in written["exercises"]] == ["", "9 iterations", "Too many pauses."]
    said = " ".join(ran.output.split())
    assert "hand-in-ada-lovelace.json is a text file" in said and "nothing else: the name Ada Lovelace;" in said
    assert "tried (3)" in said and "those that passed (2)" in said and "right (1 of 2)" in said and "own (none)" in said


def test_a_finding_is_one_line_that_does_not_tell_whose_home_it_is(work, tmp_path, monkeypatch):
    monkeypatch.chdir(work)
    journal.note("exercise", exercise="4.1", status="wrong", said=f"{tmp_path}/x.py\nis {ESCAPE} slow" + "." * 999)
    said = handed_in.collected(work, "Ada").exercises[1].said
    assert said.startswith("~/x.py is �[2J") and len(said) == handed_in.MOST_SAID and said.isprintable()


def test_what_a_check_says_is_in_the_record(work, monkeypatch):
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    monkeypatch.chdir(work / "labs")
    result = check("4.4", ([9], [9]))
    assert result.hint and journal.read(work)[-1]["said"] == result.hint


def test_it_is_replaced_and_no_other_file_is(work, tmp_path):
    for _ in range(2):
        assert inflight("--hand-in", "Ada").exit_code == 0
    (tmp_path / "thesis.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "hand-in-ada.json")
    for name in ("thesis.json", "link.json", "nowhere/x.json"):
        ran = inflight("--hand-in", "Ada", "--save", tmp_path / name)
        assert isinstance(ran.exception, CourseError) and "--save" in str(ran.exception)
    assert (tmp_path / "thesis.json").read_text() == "{}" and (tmp_path / "link.json").is_symlink()


@pytest.mark.parametrize("name", ["Ada", "李 小龙", "José Ñandú-O’Neil (2b)", "आद्या", "3.1", "a@example.org"])
def test_names_of_all_the_world(work, tmp_path, name):
    path, _ = handed_in.write(work, name, tmp_path / "x.json")
    assert handed_in.read(path).name == name


@pytest.mark.parametrize("name", ["", " Ada", "=1+1", "<b>Ada</b>", f"Ada{ESCAPE}", f"Ada{TURNED}", "A\nB", "A" * 81])
def test_a_name_that_is_none_is_refused_on_both_sides(work, handed, name):
    with pytest.raises(CourseError) as caught:
        handed_in.collected(work, name)
    assert str(caught.value).isprintable()
    folder = handed("a.json", name=name)
    handed("b.json", name="Grace")
    found = handed_in.read_class(folder)
    assert [called for called, _ in found.learners] == ["Grace"] and len(found.problems) == 1


def test_without_a_workspace_there_is_nothing_to_hand_in(tmp_path):
    with pytest.raises(CourseError, match="no workspace"):
        handed_in.collected(tmp_path, "Ada")


def test_a_record_that_somebody_has_edited(work, monkeypatch):
    monkeypatch.chdir(work)
    for fields in (
        {"exercise": 7},
        {"exercise": "1.2", "status": "done", "at": "soon"},
        {"exercise": "1.2", "said": 3},
    ):
        journal.note("exercise", **fields)
    assert [(a.exercise, a.passed is not None) for a in handed_in.collected(work, "Ada").exercises] == [
        ("1.1", True), ("1.2", False), ("4.1", True), ("5.2", False)
    ]  # fmt: skip
    journal.note("exercise", exercise="x" * 9)
    with pytest.raises(CourseError, match="mend the record"):
        handed_in.collected(work, "Ada")


def test_who_passed_what(handed):
    handed(
        "b.json", name="Grace", exercises=[{"exercise": "4.1", "passed": None, "tries": 9, "said": "120 iterations."}]
    )
    folder = handed("a.json")
    handed("c.json", name="Linus", exercises=[{"exercise": "9.9", "passed": None, "tries": 1, "said": ""}])
    (folder / "notes.txt").write_text("not read")
    found = handed_in.read_class(folder)
    assert found.problems == []
    marks = handed_in.marks(found).set_index("learner")
    assert marks["4.1"].to_dict() == {"Ada": "2026-11-21", "Grace": "tried", "Linus": ""}
    assert marks["passed"].to_dict() == {"Ada": 1, "Grace": 0, "Linus": 0}
    assert "9.9" not in marks.columns and len(marks.columns) > 30
    row = handed_in.exercises(found).set_index("exercise").loc["4.1"]
    assert (row["passed"], row["tried"], row["often"]) == (1, 1, "118 iterations. (2 of 2)")


def test_two_of_one_name_are_two_rows(handed):
    folder = handed("a.json", name="Ada (b.json)")
    for file in ("b.json", "c.json"):
        handed(file)
    assert handed_in.marks(handed_in.read_class(folder))["learner"].tolist() == [
        "Ada (b.json)", "Ada (b.json)", "Ada (c.json)"
    ]  # fmt: skip


HOSTILE = {
    "huge": b"[" + b"0," * 2**20,
    "deep": b'{"name": ' + b"[" * 100_000,
    "no JSON": b"\x00\xff\xfe",
    "empty": b"",
    "a list": b"[]",
    "not a hand-in": b'{"kind": "grades"}',
    "name in HTML": json.dumps(valid(name="<script>alert(1)</script>")),
    "name that clears the screen": json.dumps(valid(name=ESCAPE)),
    "finding that clears the screen": json.dumps(
        valid(exercises=[{"exercise": "4.1", "passed": None, "tries": 1, "said": ESCAPE}])
    ),
    "year one": json.dumps(valid(at="0001-01-01T00:00:00+14:00")),
    "day that is none": json.dumps(
        valid(exercises=[{"exercise": "4.1", "passed": "9999-12-31T23:59:59-12:00", "tries": 1}])
    ),
    "endless number": b'{"kind": "inflight hand-in", "predictions": {"right": 1' + b"0" * 9_000 + b"}}",
    "not a number": json.dumps(valid()).replace('"made": 2', '"made": NaN').encode(),
    "more right than made": json.dumps(valid(predictions={"right": 3, "made": 2})),
    "an exercise twice": json.dumps(valid(exercises=valid()["exercises"] * 2)),
    "too many exercises": json.dumps(valid(exercises=valid()["exercises"] * 301)),
    "an exercise with a path": json.dumps(valid(exercises=[{"exercise": "../1", "passed": None, "tries": 1}])),
    "a part with markup": json.dumps(valid(parts=["[red]x[/]"])),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_a_sentence_and_the_others_are_read(handed, kind):
    content = HOSTILE[kind]
    folder = handed("a.json", content)
    handed("b.json", name="Grace")
    found = handed_in.read_class(folder)
    [problem] = found.problems
    assert (
        [called for called, _ in found.learners] == ["Grace"]
        and str(folder / "a.json") in problem
        and problem.isprintable()
        and len(problem) < 500
    )


def test_what_is_no_plain_file_is_not_followed(handed, tmp_path):
    folder = handed("b.json")
    (tmp_path / "elsewhere.json").write_text(json.dumps(valid(name="Eve")))
    (folder / "link.json").symlink_to(tmp_path / "elsewhere.json")
    (folder / "gone.json").symlink_to(tmp_path / "gone")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / f"a{ESCAPE}.json").write_text("{}")
    found = handed_in.read_class(folder)
    assert [called for called, _ in found.learners] == ["Ada"] and len(found.problems) == 5
    assert all(problem.isprintable() for problem in found.problems)
    ran = inflight("--class", folder, "--csv")
    assert ran.exit_code == 0 and ran.stdout.splitlines()[1].startswith("Ada,") and "\x1b" not in ran.output
    assert " ".join(ran.stderr.split()).count("The hand-in ") == 5


def test_more_files_than_a_class_has(handed, monkeypatch):
    monkeypatch.setattr(handed_in, "MOST_FILES", 2)
    for file in ("a.json", "b.json", "c.json"):
        folder = handed(file, name=file[0])
    found = handed_in.read_class(folder)
    assert len(found.learners) == 2 and found.problems == ["Only the first 2 of 3 files were read."]


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_folder_in_which_nobody_has_handed_in(tmp_path, handed, content):
    folder = tmp_path / "class"
    if content:
        handed("a.json", content)
    with pytest.raises(CourseError, match="Nobody has handed in anything"):
        handed_in.read_class(folder)
    with pytest.raises(CourseError, match="cannot be read"):
        handed_in.read_class(tmp_path / "nowhere")


def test_a_class_as_table_json_and_csv(handed):
    for number in range(3):
        folder = handed(f"{number}.json", name=f"Learner {number}")
    shown = inflight("--class", folder)
    assert shown.exit_code == 0 and "Learner 2" in shown.output and "✓" in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    facts = json.loads(inflight("--class", folder, "--json").stdout)
    assert [row["learner"] for row in facts["learners"]] == ["Learner 0", "Learner 1", "Learner 2"]
    assert next(row for row in facts["exercises"] if row["exercise"] == "4.1")["passed"] == 3
    lines = inflight("--class", folder, "--csv").stdout.splitlines()
    assert lines[0].startswith("learner,1.1,1.2") and lines[0].endswith("passed,predictions,parts") and len(lines) == 4


@pytest.mark.parametrize(
    "options", [["--save", "x"], ["--csv"], ["--hand-in", "A", "--class", "."], ["--hand-in", "A", "--json"]]
)
def test_options_that_do_not_go_together(options):
    ran = inflight(*options)
    assert isinstance(ran.exception, CourseError) and "goes with" in str(ran.exception)
