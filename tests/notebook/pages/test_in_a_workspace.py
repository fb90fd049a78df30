"""A solution, run where a learner works: each check is noted, what passes is kept, and the next lab takes it."""

import nbformat
import pytest

from inflight.notebook.checks import parts, record
from inflight.notebook.pages import execution, workspace
from inflight.paths import COURSE

pytestmark = [pytest.mark.slow, pytest.mark.server]  # a whole solution, in a kernel

TAKES = 'yours = parts.part("iterative_model")'


@pytest.fixture
def work(tmp_path):
    return workspace.prepare(tmp_path / "work").folder


def solution(number: str) -> nbformat.NotebookNode:
    [path] = (COURSE / "solutions").glob(f"{number}_*.ipynb")
    return nbformat.read(path, as_version=4)


def run(notebook: nbformat.NotebookNode, work) -> str:
    """What the notebook shows in the workspace, as text; a check that is not passed raises."""
    ran = execution.execute(notebook, "solution", work / "labs")
    outputs = [output for cell in ran.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_a_solution_passes_and_the_next_lab_takes_its_part(work):
    said = run(solution("07"), work)
    assert "Kept as mine/model.py" in said
    assert "iterative_model: yours, passed 7." in said
    row = record.exercises(work).query("lesson.str.startswith('07')").iloc[0]
    assert row["exercises"] == row["done"] == row["tries"] >= 4 and row["open"] == ""
    assert parts.table(work).set_index("part").loc["iterative_model", "whose"] == "yours"

    assert any(TAKES in cell.source for cell in solution("08").cells), "as the next lab takes it"
    later = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(f"from inflight.notebook import parts\n{TAKES}\nprint(repr(yours))")]
    )
    assert run(later, work).startswith("iterative_model: yours, passed 7.")
