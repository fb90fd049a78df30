"""A lab that nobody has touched runs from top to bottom, and every check in it says that there is something to do.

It runs on the small model, as no word of it matters here: the solutions run the same cells on the course's model.
"""

import nbformat
import papermill
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec

from inflight.notebook.pages.execution import KernelOfThisPython
from inflight.paths import COURSE

pytestmark = [pytest.mark.slow, pytest.mark.server]  # each lab from top to bottom, in a kernel and with its servers

LABS = sorted((COURSE / "labs").glob("*.ipynb"))
# What a kernel runs before its first cell.
TAKE_THE_SMALL_MODEL = """
from pathlib import Path
from inflight.checkpoint import sources
from inflight.lessons.capstone import deployment

sources.course_model, sources.SHA256 = lambda: Path({path!r}), {sha256!r}
# Its vocabulary is small: lesson 09's prompts have more tokens.
deployment.LONGEST_PROMPT = 1024
"""


@pytest.fixture(scope="module")
def environment(small_checkpoint, tmp_path_factory):
    """Of a kernel: a check that is not passed does not stop the lab, and the small model is the course's."""
    home, profile = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("ipython")
    startup = profile / "profile_default" / "startup" / "00_small_model.py"
    startup.parent.mkdir(parents=True)
    startup.write_text(TAKE_THE_SMALL_MODEL.format(path=str(small_checkpoint.path), sha256=small_checkpoint.sha256))
    return {"COURSE_STRICT": "0", "INFLIGHT_HOME": str(home), "IPYTHONDIR": str(profile)}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_untouched_lab_runs_and_is_not_done(path, environment):
    class LearnersPython(KernelOfThisPython):
        @property
        def kernel_spec(self) -> KernelSpec:
            return KernelSpec(**get_kernel_dict(), env=environment)

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
