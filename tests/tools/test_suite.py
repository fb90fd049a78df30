"""The whole suite's run, on suites of one or a few tests."""

import time

import nbformat
import pytest

from inflight.paths import COURSE
from tools import suite

WORKERS = suite.WORKERS
BESIDE = """
from pathlib import Path

def test_it():
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first
"""

CONFTEST = """
import sys
sys.path.insert(0, {course!r})
from tests.conftest import Hurry

def pytest_configure(config):
    config.pluginmanager.register(Hurry({until}))
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "WORKERS", ("-p", "no:xdist"))
    for name in suite.PATHS:
        (tmp_path / name).mkdir()
    (tmp_path / "tests" / "nbval_sanitize.cfg").touch()
    (tmp_path / "tests" / "test_right.py").write_text("def test_right(): pass\n")
    return tmp_path


def test_one_that_fails_only_beside_others_is_named(root, capfd, monkeypatch):
    monkeypatch.setattr(suite, "WORKERS", WORKERS)
    (root / "tests" / "test_beside.py").write_text(BESIDE)
    assert suite.run([]) == 0
    said = capfd.readouterr().out
    assert "Once more, with nothing beside: tests/test_beside.py\n" in said
    assert "passed alone:\n  tests/test_beside.py::test_it\n" in said


def test_of_a_file_only_what_failed_runs_again(root, capfd):
    (root / "tests" / "test_beside.py").write_text(f"{BESIDE}\n\ndef test_other(): pass\n")
    assert suite.run([]) == 0
    assert "1 passed, 1 deselected" in capfd.readouterr().out.partition("Once more")[2]


def test_a_notebook_runs_again_from_its_first_cell(root, capfd):
    cells = [
        nbformat.v4.new_code_cell("from pathlib import Path"),
        nbformat.v4.new_code_cell("first = not Path('seen').exists(); Path('seen').touch(); assert not first"),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), root / "notebooks" / "one.ipynb")
    assert suite.run([]) == 0
    assert "2 passed" in capfd.readouterr().out.partition("Once more")[2]


@pytest.mark.parametrize("left_s, said", [(-1, "1 passed, 2 skipped"), (3600, "3 passed")])
def test_a_notebook_is_not_begun_when_time_is_nearly_over(root, capfd, left_s, said):
    cells = [nbformat.v4.new_code_cell(source) for source in ("number = 1", "number")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), root / "notebooks" / "one.ipynb")
    (root / "conftest.py").write_text(CONFTEST.format(course=str(COURSE), until=time.time() + left_s))
    assert suite.run(["-rs"]) == 0
    out = capfd.readouterr().out
    assert said in out and ("the time that this run has is nearly over" in out) == (left_s < 0)


def test_one_that_fails_twice_fails_the_run(root, capfd):
    (root / "tests" / "test_wrong.py").write_text("def test_wrong(): assert 0\n")
    assert suite.run([]) == 1
    assert "passed alone" not in capfd.readouterr().out


def test_many_files_with_failures_are_not_tried_again(root, capfd):
    for number in range(suite.MOST_FILES + 1):
        (root / "tests" / f"test_{number}.py").write_text("def test_wrong(): assert 0\n")
    assert suite.run([]) == 1
    assert "Once more" not in capfd.readouterr().out


def test_failures_of_an_earlier_run_play_no_part(root, capfd):
    test = root / "tests" / "test_other.py"
    test.write_text("def test_wrong(): assert 0\n")
    assert suite.run([]) == 1
    test.unlink()
    assert suite.run([]) == 0
    capfd.readouterr()


def test_what_cannot_be_collected_fails_the_run(root, capfd):
    (root / "tests" / "test_broken.py").write_text("import nothing_of_that_name\n")
    assert suite.run([]) != 0


def test_paths_are_run_once(root, capfd):
    (root / "tests" / "test_beside.py").write_text(BESIDE)
    assert suite.run(["tests/test_beside.py"]) == 1
    assert "Once more" not in capfd.readouterr().out
