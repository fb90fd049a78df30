"""A notebook as an experiment: run once for each set of settings by papermill, its results gathered into one table.

    ran = grid.run({"as it is": {}, "reuse": {"enable_kv_cache_reuse": True}}, folder, pace=1.0)
    ran.table                                      # a row each; of a run that failed, its error

Each run leaves its notebook, with all that it printed, and its result in the folder. What is there is not run again:
an interrupted grid goes on where it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import papermill
from nbclient.exceptions import DeadKernelError
from papermill.exceptions import PapermillExecutionError

from inflight.bench import service
from inflight.bench.service import Served
from inflight.errors import CourseError
from inflight.notebook import progress
from inflight.notebook.execution import KernelOfThisPython
from inflight.paths import ASSETS

EXPERIMENT = ASSETS / "experiments" / "deployment.ipynb"


@dataclass
class Grid:
    """What became of the runs.

    Attributes
    ----------
    served : dict of str to Served
        By the run's name; failed runs have none.
    errors : dict of str to str
        Why the others failed.
    """

    served: dict[str, Served] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def table(self) -> pd.DataFrame:
        """A row a run, in their order: name, settings, figures, and the error of one that failed."""
        rows = [{"run": name, **served.row()} for name, served in self.served.items()]
        rows += [{"run": name, "error": error} for name, error in self.errors.items()]
        return pd.DataFrame(rows)


def run(
    settings: Mapping[str, dict],
    folder: str | Path,
    notebook: Path = EXPERIMENT,
    **parameters,
) -> Grid:
    """Run a notebook for each of some settings, one after the other.

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

    Raises
    ------
    CourseError
        A result that is there is not one. A run that fails raises nothing: its error is kept.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    found = Grid()
    for name, chosen in progress.over(list(settings.items()), "Experiment", "{0[0]}".format):
        stem = re.sub(r"\W+", "_", name)
        result, copy = folder / f"{stem}.json", folder / f"{stem}.ipynb"
        asked = {**parameters, "settings": chosen}
        try:
            if not _is_of(result, folder / f"{stem}.asked.json", asked):
                _execute(notebook, copy, {**asked, "result": str(result)})
                (folder / f"{stem}.asked.json").write_text(json.dumps(asked, default=str))
            found.served[name] = service.from_json(result.read_text(encoding="utf-8"))
        except CourseError as error:
            found.errors[name] = str(error)
    return found


def _is_of(result: Path, asked_file: Path, asked: dict) -> bool:
    """Whether a result of the same parameters is there."""
    is_there = result.exists() and asked_file.exists()
    return is_there and asked_file.read_text() == json.dumps(asked, default=str)


def _execute(notebook: Path, copy: Path, parameters: dict) -> None:
    try:
        papermill.execute_notebook(
            notebook, copy, parameters, cwd=copy.parent, kernel_name="python3", progress_bar=False,
            kernel_manager_class=KernelOfThisPython, store_widget_state=False,
        )  # fmt: skip
    except PapermillExecutionError as error:
        raise CourseError(f"{error.evalue.splitlines()[0] if error.evalue else error.ename}") from None
    except DeadKernelError:
        raise CourseError(f"The kernel of the experiment died; its notebook is {copy}.") from None
