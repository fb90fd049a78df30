"""The tests of a lab's table: every answer in it gets its verdict and its words, and the table has what it must have.

A table, `test_lab.py` in a lesson's folder, imports them: `from tests.lessons.table import *`.
"""

import os
import re
from pathlib import Path

import pytest

from inflight.notebook.checks import check, checking
from inflight.paths import PACKAGE
from tests.lessons.answers import Answer, handed_in

__all__ = [
    "as_in_a_lab",
    "pytest_generate_tests",
    "test_a_budget_has_an_answer_just_inside_and_one_just_outside",
    "test_an_answer_gets_its_verdict_and_its_words",
    "test_an_exercise_has_right_and_wrong_answers",
    "test_every_exercise_of_the_lab_is_in_its_table",
    "test_the_solution_is_right_whatever_is_hidden",
]

SEED = os.environ.get("INFLIGHT_SEED", "48151")
_results: dict[Answer, checking.Result] = {}


def pytest_generate_tests(metafunc):
    rows, names = metafunc.module.ANSWERS, metafunc.fixturenames
    if "row" in names:
        some = [row for row in rows if metafunc.function.__name__.startswith("test_an_answer") or is_the_labs(row)]
        params = [pytest.param(row, id=f"{row.exercise} {row.name}", marks=row.marks) for row in some]
        metafunc.parametrize("row", params)
    if "exercise" in names:
        metafunc.parametrize("exercise", sorted({row.exercise for row in rows}))
    if "quick" in names:  # rows of an exercise that run in the gate
        quick: dict[str, list[Answer]] = {row.exercise: [] for row in rows}
        for row in rows:
            if not any(mark.name == "slow" for mark in row.marks):
                quick[row.exercise].append(row)
        marks = {exercise: [mark for row in some for mark in row.marks][:1] for exercise, some in quick.items()}
        params = [pytest.param(some, id=exercise, marks=marks[exercise]) for exercise, some in quick.items()]
        metafunc.parametrize("quick", params)


def is_the_labs(row: Answer) -> bool:
    return row.name in ("the solution", "as handed out") and not row.marks


@pytest.fixture(autouse=True)
def as_in_a_lab(monkeypatch, graders_are_forked):
    """Checks report and do not raise; the hidden cases are those of one seed."""
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("INFLIGHT_SEED", SEED)


def result_of(row: Answer, request: pytest.FixtureRequest, folder: Path) -> checking.Result:
    if row not in _results:
        _results[row] = check(row.exercise, handed_in(row, request, folder))
    return _results[row]


def test_an_answer_gets_its_verdict_and_its_words(row, request, tmp_path):
    result = result_of(row, request, tmp_path)
    assert result.status == row.status and row.says in repr(result), f"seed {SEED}: {result!r}"


def test_every_exercise_of_the_lab_is_in_its_table(request):
    lab = (PACKAGE / "lessons" / request.path.parent.name / "lab.py").read_text(encoding="utf-8")
    assert set(re.findall(r'check\("(\d+\.\d+)"', lab)) == {row.exercise for row in request.module.ANSWERS}


def test_an_exercise_has_right_and_wrong_answers(exercise, request):
    rows = [row for row in request.module.ANSWERS if row.exercise == exercise]
    kinds = [row.status for row in rows]
    assert len({row.name for row in rows}) == len(rows), "two answers have one name"
    assert kinds.count("done") >= 2 and kinds.count("not done yet") >= 1
    assert kinds.count("wrong") + kinds.count("partly") >= 3


def test_a_budget_has_an_answer_just_inside_and_one_just_outside(quick, request, tmp_path_factory):
    """Just: by one, where it counts, or by two per cent."""
    inside: dict[str, float] = {}
    outside: dict[str, float] = {}
    for number, row in enumerate(quick):
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
    known_far = getattr(request.module, "FAR_FROM_BUDGET", {}).get(quick[0].exercise, {})
    far = {what for each in (inside, outside) for what, off in each.items() if off > 1}
    far -= {what for what in far if any(what.startswith(known) for known in known_far)}
    assert not far, f"no answer is just inside, or none just outside: {far}; {inside=} {outside=}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_solution_is_right_whatever_is_hidden(row, seed, request, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_SEED", str(seed))
    assert check(row.exercise, handed_in(row, request, tmp_path)).status == row.status
