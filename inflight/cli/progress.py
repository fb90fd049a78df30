"""`inflight progress`: what a learner has done, what they hand in, and what a class has handed in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inflight.cli import terminal
from inflight.cli.terminal import console
from inflight.errors import CourseError

if TYPE_CHECKING:
    import pandas as pd


MARKS = {"": "", "tried": "·"}  # of an exercise, where the terminal has little room; one that passed is a tick


def progress(
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    hand_in: Annotated[
        str | None,
        typer.Option("--hand-in", metavar="NAME", help="Write a file that you may hand in, under this name."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Where that file goes; by default the current folder, with your name.")
    ] = None,
    of_class: Annotated[
        Path | None, typer.Option("--class", metavar="FOLDER", help="Show who passed what, from the files handed in.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="With --class: print a CSV, a row per learner.")] = False,
) -> None:
    """Show what you have done: exercises, predictions, and the parts of your own stack.

    Nothing is sent: what you hand in is a file, and you give it to whom you like.

    Example: [bold]inflight progress --hand-in "Ada Lovelace"[/] or [bold]inflight progress --class handed-in[/]
    """
    if (save and hand_in is None) or (as_csv and of_class is None) or (hand_in is not None and (of_class or as_json)):
        raise CourseError(
            "--save goes with --hand-in NAME, --csv with --class FOLDER; --hand-in with neither --class nor --json."
        )
    if of_class is not None:
        return _show_class(of_class, as_json, as_csv)
    from inflight.notebook.checks import parts, record
    from inflight.notebook.pages import workspace

    folder = workspace.around(Path.cwd()) or workspace.home()
    if hand_in is not None:
        path = record.hand_in(folder, hand_in, save)
        terminal.tell(
            f"{path} is a text file, and you may read it before you hand it in: your name, and the record of "
            f"{folder / record.FILE}, with every checked answer and prediction, and what was said of it."
        )
        return
    done = {
        "exercises": record.exercises(folder),
        "predictions": record.predictions(record.read(folder / record.FILE)),
        "parts": parts.table(folder),
    }
    if as_json:
        print(json.dumps({name: table.to_dict("records") for name, table in done.items()}, indent=2))
        return
    for title, table in done.items():
        terminal.show(table.to_dict("records"), title)


def _show_class(folder: Path, as_json: bool, as_csv: bool) -> None:
    from inflight.notebook.checks import record

    found, problems = record.read_class(folder)
    marks, hints = record.marks(found), record.hints(found)
    if as_csv:
        print(marks.to_csv(index=False), end="")
    elif as_json:
        tables = {"learners": marks.to_dict("records"), "exercises": hints.to_dict("records")}
        print(json.dumps(tables | {"problems": problems}, indent=2))
    else:
        _show_marks(marks)
        terminal.show(hints.to_dict("records"), "exercises")
    for problem in problems:
        terminal.tell(problem)


def _show_marks(marks: pd.DataFrame) -> None:
    """Show a row a learner and a column an exercise that anybody tried, in parts that fit the terminal's width."""
    import pandas as pd

    ends = ["passed", "predictions"]
    names = [name for name in marks.columns if name not in ("learner", *ends) and marks[name].any()]
    ticks = marks.assign(**{name: [MARKS.get(mark, "✓") for mark in marks[name]] for name in names})
    print("who passed what: ✓ passed, · tried")
    with pd.option_context("display.unicode.east_asian_width", True):
        print(ticks.set_index("learner")[[*names, *ends]].to_string(line_width=console.width))
