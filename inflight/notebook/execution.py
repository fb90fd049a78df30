"""Runs the lectures from first to last and leaves pages that can be read without a kernel or a network.

    run(["00", "01"], Path("build/course"))

Each notebook of `notebooks/` is executed with papermill into a copy; the copy becomes a page; an index lists the pages.
"""

import html
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas as pd
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from plotly.offline import get_plotlyjs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from traitlets import default

from inflight.errors import CourseError
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.linked_marks import SCRIPT
from inflight.notebook.progress import is_progress
from inflight.paths import COURSE

NOTEBOOKS = COURSE / "notebooks"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

# The page is nbconvert's own, without the three scripts that it would fetch from elsewhere.
PAGE = f"""{{%- extends 'lab/index.html.j2' -%}}
{{%- block html_head_js -%}}<script src="plotly.min.js"></script><script>{SCRIPT}</script>{{%- endblock -%}}
{{%- block html_head_js_mathjax -%}}{{%- endblock -%}}
{{%- block html_head_js_mermaidjs -%}}{{%- endblock -%}}
{{%- block jupyter_widgets -%}}{{%- endblock -%}}
"""

INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The course</title><style>
body {{ font: 17px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; vertical-align: top; padding: .6rem .8rem; border-bottom: 1px solid #ddd; }}
td.number, th.number {{ text-align: right; white-space: nowrap; }}
</style></head><body><h1>The course</h1>
<p>Each page is an executed notebook. “Reading” is the time a lesson asks of you; “machine” is what this run took.</p>
<table><thead><tr><th>Lesson</th><th class="number">Reading</th><th class="number">Machine</th></tr></thead>
<tbody>{rows}</tbody></table></body></html>
"""


class KernelOfThisPython(AsyncKernelManager):
    """Starts kernels with the interpreter that runs this code, in which a lab's failed check raises."""

    @property
    def kernel_spec(self) -> KernelSpec:
        # What a kernel logs when it is ended in the middle of a cell is nothing for who ended it.
        # A kernel named python3 that a user installed earlier would otherwise win and lack the package.
        return KernelSpec(**get_kernel_dict(["--log-level=CRITICAL"]), env={"COURSE_STRICT": "1"})

    @default("transport_encryption")
    def _encrypt(self) -> str:
        return "auto"  # the kernel complains on stderr of anything less


def run(lessons: list[str] | None, out: Path, notebooks: Path = NOTEBOOKS) -> pd.DataFrame:
    """Execute the lectures in order, write them to `out` and print where they are.

    Parameters
    ----------
    lessons : list of str or None
        Numbers or names to run, such as `["00", "03_serve"]`; None runs all.
    out : Path
        Receives NN_topic.ipynb, NN_topic.html, index.html and one plotly.min.js.
    notebooks : Path
        Where the lectures are; each runs with this folder as its working directory.

    Returns
    -------
    DataFrame
        One row a notebook: `notebook`, `cells` (code cells), `seconds`.

    Raises
    ------
    CourseError
        No such lesson, or a cell failed: then its notebook's partial copy is in `out`.
    """
    found = sorted(notebooks.glob("[0-9][0-9]_*.ipynb"))
    if not found:
        raise CourseError(f"No notebooks in {notebooks}; run `make notebooks` in a clone of the course first.")
    paths = select(found, lessons)
    out.mkdir(parents=True, exist_ok=True)
    (out / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    rows, cards = [], []
    for path in paths:
        row, executed = _run_one(path, out)
        rows.append(row)
        cards.append(card(executed))
        page = to_html(executed, path, out, [p.name for p in paths])
        (out / f"{path.stem}.html").write_text(page, encoding="utf-8")
    table = pd.DataFrame(rows, columns=["notebook", "cells", "seconds"])
    (out / "index.html").write_text(_index(table, cards), encoding="utf-8")
    _print_table(table, out)
    return table


def select(found: list[Path], lessons: list[str] | None) -> list[Path]:
    """Those of `found` that `lessons` names by number or name (None: all); CourseError for a name not there."""
    for name in lessons or []:
        if not any(name in (path.stem, path.stem[:2]) for path in found):
            raise CourseError(f"No lesson {name!r}; the lessons are {', '.join(path.stem for path in found)}.")
    return [path for path in found if not lessons or path.stem in lessons or path.stem[:2] in lessons]


def execute(
    notebook: NotebookNode, name: str, cwd: Path, output: Path | None = None, on_cell: Callable[[], None] = lambda: None
) -> NotebookNode:
    """Execute `notebook` in a fresh kernel of this interpreter and return it with its outputs.

    Parameters
    ----------
    name : str
        What an error message calls the notebook.
    cwd : Path
        The kernel's working directory.
    output : Path or None
        Where the copy goes, also when a cell fails; None writes none.
    on_cell : callable
        Called as each code cell starts.

    Raises
    ------
    CourseError
        A cell raised or the kernel died; names notebook, cell number, its first line and the error.
    """
    started: list[str] = []

    def cell_starts(cell: NotebookNode, cell_index: int) -> None:
        started.append(cell.source)
        on_cell()

    try:
        executed = papermill.execute_notebook(
            notebook, output, cwd=cwd, kernel_name="python3", progress_bar=False, on_cell_execute=cell_starts,
            kernel_manager_class=KernelOfThisPython, store_widget_state=False, coalesce_streams=True,
        )  # fmt: skip
    except PapermillExecutionError as error:
        raise CourseError(_failure(name, started, f"{error.ename}: {error.evalue}", output)) from None
    except (DeadKernelError, CellTimeoutError) as error:
        raise CourseError(_failure(name, started, f"the kernel stopped ({type(error).__name__})", output)) from None
    if len(started) < _code_cells(notebook):  # papermill takes sys.exit() for a good end
        raise CourseError(_failure(name, started, "SystemExit", output))
    return executed


def to_html(notebook: NotebookNode, path: Path, out: Path, names: list[str]) -> str:
    """One page for an executed notebook: plotly charts alive, widgets as text, nothing fetched from a network.

    `path` is the notebook's own file, from where its links lead; `names` are the notebooks with a page in `out`.
    """
    page = nbformat.from_dict(notebook)
    page.metadata["title"] = card(page)[0]
    for cell in page.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    for index, output in enumerate(o for cell in page.cells for o in cell.get("outputs", [])):
        if "data" in output:
            output["data"] = _static(output["data"], index)
    exporter = HTMLExporter(raw_template=PAGE, embed_images=True)
    body, _ = exporter.from_notebook_node(page, resources={"metadata": {"path": str(path.parent)}})
    outside = re.search(r"<(?:script|link)\b[^>]*(?:src|href)\s*=\s*[\"']?(?:https?:)?//[^>]*>", body)
    if outside:
        raise CourseError(f"{path.name} has an output that needs a network: {outside[0]}. Show it without that script.")
    return re.sub(r'(<a\b[^>]*?\bhref=")([^"#:]+)(?=["#])', lambda m: m[1] + _moved(m[2], path, out, names), body)


def card(notebook: NotebookNode) -> tuple[str, str, str]:
    """Title, minutes and goals from a lecture's first cell: its h1, its "NN min", the sentence with "able to"."""
    text = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    title, minutes = re.search(r"^# (.+)$", text, re.M), re.search(r"(\d+) min", text)
    goals = re.search(r"[^.\n]*able to.*(?:\n+[-*\d].*)*", text, re.I)
    first, *rest = [line.strip("-*;. ") for line in goals[0].splitlines() if line.strip()] if goals else [""]
    goals_line = f"{first} {'; '.join(rest)}".replace("*", "")
    return title[1] if title else "Untitled", minutes[0] if minutes else "", goals_line


def _run_one(path: Path, out: Path) -> tuple[tuple[str, int, float], NotebookNode]:
    notebook = nbformat.read(path, as_version=4)
    cells = _code_cells(notebook)
    counter = TextColumn("cell"), MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), *counter, TimeElapsedColumn()
    start = time.monotonic()
    with Progress(*columns, console=Console()) as progress:
        task = progress.add_task(path.stem, total=cells, completed=0)
        copy = (out / path.name).resolve()
        executed = execute(notebook, path.stem, path.parent, copy, lambda: progress.advance(task))
    return (path.stem, cells, round(time.monotonic() - start, 1)), executed


def _code_cells(notebook: NotebookNode) -> int:
    return sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)


def _failure(name: str, started: list[str], error: str, output: Path | None) -> str:
    first_line = started[-1].strip().splitlines()[0] if started else "(the kernel did not start)"
    where = f" The copy up to there is {output}." if output else ""
    return f"{name}, cell [{len(started)}] `{first_line}` failed with {error}.{where}"


def _static(data: dict, index: int) -> dict:
    """The mime bundle a page without a kernel can show: a chart as plotly.js, a widget as its text."""
    text = html.escape("".join(data.get("text/plain", "")))
    if PLOTLY_MIME in data:
        figure = data[PLOTLY_MIME]
        # "</" would end the script element early, wherever it stands inside a string of the JSON.
        arguments = ", ".join(json.dumps(figure.get(k, {})).replace("</", "<\\/") for k in ("data", "layout", "config"))
        chart = f'<div id="chart-{index}" role="img" aria-label="{text}"></div>'
        return {"text/html": f'{chart}<script>Plotly.newPlot("chart-{index}", {arguments});</script>'}
    if WIDGET_MIME in data:
        note = "<p><em>Interactive: open this lesson in JupyterLab (<code>make lab</code>) to use it.</em></p>"
        picture = "".join(data.get("text/html", "")) or f"<pre>{text}</pre>"
        return {"text/html": note + picture}
    return data


def _moved(target: str, path: Path, out: Path, names: list[str]) -> str:
    """Where a lecture's relative link leads from `out`: to a sibling's page, else to the file in the clone."""
    if target in names:
        return Path(target).stem + ".html"
    return Path(os.path.relpath(path.parent / target, out)).as_posix()


def _index(table: pd.DataFrame, cards: list[tuple[str, str, str]]) -> str:
    rows = []
    for name, seconds, texts in zip(table["notebook"], table["seconds"], cards, strict=True):
        title, minutes, goals = map(html.escape, texts)
        rows.append(
            f'<tr><td><a href="{name}.html"><strong>{title}</strong></a><br>{goals}<br>'
            f'<small><a href="{name}.ipynb">{name}.ipynb</a></small></td>'
            f'<td class="number">{minutes}</td><td class="number">{seconds:.1f} s</td></tr>'
        )
    return INDEX.format(rows="\n".join(rows))


def _print_table(table: pd.DataFrame, out: Path) -> None:
    shown = Table("notebook")
    shown.add_column("cells", justify="right")
    shown.add_column("seconds", justify="right")
    for row in [*table.itertuples(index=False), ("all", table["cells"].sum(), table["seconds"].sum())]:
        shown.add_row(row[0], str(row[1]), f"{row[2]:.1f}")
    Console().print(shown, f"Open {out / 'index.html'} in a browser.", sep="\n", soft_wrap=True)
