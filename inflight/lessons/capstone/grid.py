"""A notebook as an experiment: run once for each set of settings by papermill.

    ran = grid.run({"as it is": {}, "reuse": {"enable_kv_cache_reuse": True}}, folder, pace=1.0)
    ran.served["reuse"].goodput                    # of a run that failed, `ran.errors` has the reason

Each run leaves its notebook, with all that it printed, and its result in the folder.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from inflight.lessons.capstone import service
from inflight.lessons.capstone.service import Served
from inflight.notebook import progress
from inflight.notebook.execution import KernelOfThisPython
from inflight.paths import ASSETS

EXPERIMENT = ASSETS / "experiments" / "deployment.ipynb"


@dataclass
class Grid:
    """What became of the runs: by the run's name what was served, or why it failed."""

    served: dict[str, Served] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def run(settings: Mapping[str, dict], folder: str | Path, notebook: Path = EXPERIMENT, **parameters) -> Grid:
    """Run a notebook for each of some settings, one after the other. A run that fails raises nothing.

    Parameters
    ----------
    settings : mapping of str to dict
        The parameter `settings` of each run, by the run's name.
    folder : path
        For a notebook and a result file a run.
    notebook : Path
        Takes `settings` and `result`, a path, and writes a `Served` there.
    **parameters
        Further parameters of the notebook, the same for all runs.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = Grid()
    for name, chosen in progress.over(list(settings.items()), "Experiment", "{0[0]}".format):
        copy = folder / f"{re.sub(r'[^A-Za-z0-9]+', '_', name)}.ipynb"
        result = copy.with_suffix(".json")
        try:
            papermill.execute_notebook(
                notebook, copy, {**parameters, "settings": chosen, "result": str(result)}, cwd=folder,
                kernel_name="python3", progress_bar=False, store_widget_state=False,
                kernel_manager_class=KernelOfThisPython,
            )  # fmt: skip
            found.served[name] = service.from_json(result.read_text(encoding="utf-8"))
        except PapermillExecutionError as error:
            found.errors[name] = error.evalue.splitlines()[0] if error.evalue else error.ename
        except DeadKernelError:
            found.errors[name] = f"The kernel of the experiment died; its notebook is {copy}."
    return found
