"""What a learner has done so far, for the terminal and for the page: `inflight progress`, `achieved.board()`."""

from __future__ import annotations

import html
from pathlib import Path

import ipywidgets
import pandas as pd

from inflight.notebook import journal, mine, workspace
from inflight.notebook.panel import Panel


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Three tables of the workspace `folder`, as they are shown: exercises by lesson, predictions, parts.

    Returns
    -------
    dict of str to DataFrame
        "exercises": `lesson`, `exercises`, `done`, `open`, `tries`, lessons with a lab only. "predictions":
        `question`, `said`, `measured`, `right`. "parts": `part`, `whose`, `exercise` that it passed, and what it
        `changed`, as measured by that check.
    """
    lessons, parts = journal.progress(folder), mine.table(folder)
    parts["changed"] = [journal.changed_by(folder, exercise) if exercise else "" for exercise in parts["exercise"]]
    return {
        "exercises": lessons[lessons["exercises"] > 0].reset_index(drop=True),
        "predictions": journal.predictions(folder),
        "parts": parts,
    }


class Board(Panel):
    """The tables of `read`, and a button that reads them again.

    Attributes
    ----------
    tables : HTML
    button : Button
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder or workspace.around(Path.cwd())
        self.tables = ipywidgets.HTML()
        self.button = ipywidgets.Button(description="Look again", icon="refresh")
        self.button.on_click(lambda _: self.look())
        super().__init__([self.tables, self.button], label="What you have done")
        self.look()

    def __repr__(self) -> str:
        return self._text

    def look(self) -> None:
        """Show what the workspace says now."""
        if self._folder is None:
            self._text = "This is the course's own copy: your work is kept where inflight lab opens JupyterLab."
            self.tables.value = f"<p>{html.escape(self._text).replace('inflight lab', '<code>inflight lab</code>')}</p>"
            return
        done = read(self._folder)
        exercises, predictions = done["exercises"], done["predictions"]
        self._text = (
            f"{exercises['done'].sum()} of {exercises['exercises'].sum()} exercises done; "
            f"{predictions['right'].eq(True).sum()} of {len(predictions)} predictions right; "
            f"{(done['parts']['whose'] == 'yours').sum()} of {len(done['parts'])} parts your own."
        )
        tables = [
            f"<h4>{title.capitalize()}</h4>{table.to_html(index=False, border=0)}"
            for title, table in done.items()
            if len(table)
        ]
        self.tables.value = f"<p role='status'>{html.escape(self._text)}</p>{''.join(tables)}"


def board() -> Board:
    """What you have done so far, as a widget."""
    return Board()
