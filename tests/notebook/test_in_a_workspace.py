"""Solutions, run where a learner works: each check is noted, what passes is kept, and later labs use it."""

import nbformat
import pytest

from inflight.notebook import achieved, execution, journal, mine, workspace
from inflight.paths import COURSE


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return workspace.prepare(tmp_path_factory.mktemp("learner") / "work").folder


def solution(number: str) -> nbformat.NotebookNode:
    [path] = (COURSE / "solutions").glob(f"{number}_*.ipynb")
    return nbformat.read(path, as_version=4)


def printed(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)


def run(notebook: nbformat.NotebookNode, work) -> str:
    """What the notebook prints in the workspace; a check that is not passed would raise."""
    return printed(execution.execute(notebook, "solution", work / "labs"))


def only(notebook: nbformat.NotebookNode, *beginnings: str) -> nbformat.NotebookNode:
    """The notebook with those of its cells alone that begin so, each found once."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cells = []
    for beginning in beginnings:
        [cell] = [cell for cell in code if cell.source.startswith(beginning)]
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def test_a_whole_solution_passes_and_its_part_is_used_at_once(work):
    said = run(solution("01"), work)
    assert "Kept as mine/quantizer.py: later labs use it." in said
    row = achieved.read(work)["exercises"].query("lesson.str.startswith('01')").iloc[0]
    assert row["exercises"] == row["done"] == row["tries"] >= 4 and row["open"] == ""
    assert mine.table(work).set_index("part").loc["quantizer", "whose"] == "yours"
    kept = (work / "mine" / "quantizer.py").read_text()
    assert any(kept.strip() in cell.source for cell in solution("01").cells)


def test_what_passes_in_one_lab_is_used_by_the_next(work):
    part = nbformat.v4.new_code_cell('scheduler = mine.part("scheduler")\nprint(repr(scheduler))')
    before = nbformat.v4.new_code_cell(
        "import tempfile\nfrom pathlib import Path\nfrom inflight.notebook import check, mine\n"
        "workdir = tempfile.TemporaryDirectory()"
    )
    lab = only(solution("04"), "%%writefile {workdir.name}/scheduler.py", 'check("4.3"')
    lab.cells.insert(0, before)
    assert "Kept as mine/scheduler.py" in run(lab, work)
    assert any(cell.source.startswith(part.source) for cell in solution("05").cells), "as the next lab takes it"
    later = nbformat.v4.new_notebook(cells=[before, part], metadata=lab.metadata)
    assert run(later, work).strip() == "scheduler: yours, passed 4.3"
    (work / "mine" / "scheduler.py").write_text("changed")
    assert "the course's; yours was changed since it passed" in run(later, work)
    assert journal.tries(work, "4.3")["status"].tolist() == ["done"]
