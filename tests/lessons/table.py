"""Every answer in the labs' tables gets its verdict and its words; and the tables have what they must have."""

import importlib
import os
import re
from pathlib import Path

import pytest

from inflight.notebook.checks import check
from inflight.notebook.checks import grading as checks
from inflight.paths import PACKAGE
from tests.lessons.answers import Answer, handed_in

SEED = os.environ.get("INFLIGHT_SEED", "48151")
LABS = {
    path.parent.name: importlib.import_module(f"tests.lessons.{path.parent.name}.lab")
    for path in sorted(Path(__file__).parent.glob("*/lab.py"))
}
ROWS = [row for lab in LABS.values() for row in lab.ANSWERS]
FAR = {exercise: why for lab in LABS.values() for exercise, why in getattr(lab, "FAR_FROM_BUDGET", {}).items()}
FROM_THE_LAB = [row for row in ROWS if row.name in ("the solution", "as handed out") and not row.marks]
_results: dict[Answer, checks.Result] = {}


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch):
    """Checks report and do not raise; the hidden cases are those of one seed."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", SEED)


def result_of(row: Answer, request: pytest.FixtureRequest, folder: Path) -> checks.Result:
    if row not in _results:
        _results[row] = check(row.exercise, handed_in(row, request, folder))
    return _results[row]


@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.exercise} {row.name}", marks=row.marks) for row in ROWS])
def test_an_answer_gets_its_verdict_and_its_words(row, request, tmp_path):
    result = result_of(row, request, tmp_path)
    assert result.status == row.status and row.says in repr(result), f"seed {SEED}: {result!r}"


EXERCISES = sorted({row.exercise for row in ROWS})


def test_every_exercise_of_the_labs_is_in_a_table():
    labs = "".join(lab.read_text(encoding="utf-8") for lab in (PACKAGE / "lessons").glob("*/lab.py"))
    assert sorted(set(re.findall(r'check\("(\d+\.\d+)"', labs))) == EXERCISES


@pytest.mark.parametrize("exercise", EXERCISES)
def test_an_exercise_has_right_and_wrong_answers(exercise):
    rows = [row for row in ROWS if row.exercise == exercise]
    kinds = [row.status for row in rows]
    assert len({row.name for row in rows}) == len(rows), "two answers have one name"
    assert kinds.count("done") >= 2 and kinds.count("not done yet") >= 1
    assert kinds.count("wrong") + kinds.count("partly") >= 3


def budget_params():
    for exercise in EXERCISES:
        marks = [mark for row in ROWS if row.exercise == exercise and not slow(row) for mark in row.marks]
        yield pytest.param(exercise, marks=marks[:1])


def slow(row: Answer) -> bool:
    return any(mark.name == "slow" for mark in row.marks)


@pytest.mark.parametrize("exercise", list(budget_params()))
def test_a_budget_has_an_answer_just_inside_and_one_just_outside(exercise, request, tmp_path_factory):
    """Just: by one, where it counts, or by two per cent."""
    inside: dict[str, float] = {}
    outside: dict[str, float] = {}
    for number, row in enumerate(row for row in ROWS if row.exercise == exercise and not slow(row)):
        for figure in result_of(row, request, tmp_path_factory.mktemp(f"row{number}")).figures:
            limit = figure.at_most if figure.at_most is not None else figure.at_least
            if limit is None:
                continue
            is_count = float(figure.value).is_integer() and float(limit).is_integer()
            off = abs(figure.value - limit) / max(abs(limit) * 0.02, 1.0 if is_count else 1e-9)
            of = inside if figure.is_right else outside
            for each in (inside, outside):
                each.setdefault(figure.what, float("inf"))
            of[figure.what] = min(of[figure.what], off)
    far = {what for each in (inside, outside) for what, off in each.items() if off > 1}
    far -= {what for what in far if any(what.startswith(known) for known in FAR.get(exercise, {}))}
    assert not far, f"{exercise}: no answer is just inside, or none just outside: {far}; {inside=} {outside=}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("row", [pytest.param(row, id=f"{row.exercise} {row.name}") for row in FROM_THE_LAB])
def test_the_solution_is_right_whatever_is_hidden(row, seed, request, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", str(seed))
    assert check(row.exercise, handed_in(row, request, tmp_path)).status == row.status
