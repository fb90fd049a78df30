"""Your own tries at an exercise, the best first: from the journal of the workspace that you work in.

leader_board("5.4", by="points, fewer is better")
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from IPython.display import HTML

from inflight.notebook import charts, record, workspace

NO_WORKSPACE = "Your tries are kept in the folder that `inflight lab` opens; this notebook is in none."
NO_TRIES = "No try of exercise {} was measured yet."
MOST_ROWS = 10


def leader_board(exercise: str, by: str, folder: Path | None = None) -> HTML | str:
    """A table of the tries whose check has measured `by`, the fewest first and right ones before wrong ones.

    Parameters
    ----------
    exercise : str
    by : str
        Name of a figure of its check; hidden cases differ from try to try, so one that is a ratio.
    folder : path, optional
        The workspace; by default the one around the notebook.

    Returns
    -------
    HTML or str
        The table, or why there is none.
    """
    folder = folder or workspace.around(Path.cwd())
    if folder is None:
        return NO_WORKSPACE
    tries = record.tries(folder, exercise)
    if by not in tries or tries[by].isna().all():
        return NO_TRIES.format(exercise)
    tries = tries.assign(number=range(1, len(tries) + 1)).dropna(subset=[by])
    ranked = tries.assign(is_open=tries["status"] != "done").sort_values(["is_open", by], kind="stable").head(MOST_ROWS)
    counted = [name for name in tries if name not in ("at", "status", "seed", "number", by)]
    table = pd.DataFrame({
        "try": ranked["number"],
        "at": ranked["at"].str.replace("T", " ").str.removesuffix("Z"),
        "check": ranked["status"],
        **{name: ranked[name].astype(int) for name in counted},
        by: ranked[by].astype(float),
    })  # fmt: skip
    return charts.table(table, decimals=2)
