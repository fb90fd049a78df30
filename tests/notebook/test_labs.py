"""A lab that nobody has touched runs from top to bottom, and every check in it says that there is something to do."""

import nbformat
import papermill
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec

from inflight.notebook.execution import KernelOfThisPython
from inflight.paths import COURSE

LABS = sorted((COURSE / "labs").glob("*.ipynb"))


class LearnersPython(KernelOfThisPython):
    """As in JupyterLab, where a check that is not passed does not stop the lab."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict(), env={"COURSE_STRICT": "0"})


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_untouched_lab_runs_and_is_not_done(path, checkpoint):
    lab = nbformat.read(path, as_version=4)
    ran = papermill.execute_notebook(
        lab,
        None,
        cwd=path.parent,
        kernel_name="python3",
        progress_bar=False,
        kernel_manager_class=LearnersPython,
        store_widget_state=False,
    )
    checks = [cell for cell in ran.cells if cell.cell_type == "code" and cell.source.lstrip().startswith("check(")]
    assert checks
    for cell in checks:
        assert "not done yet" in str(cell.outputs).lower(), cell.source
