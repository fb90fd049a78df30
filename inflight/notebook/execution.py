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
from datetime import datetime
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

from inflight import machine
from inflight.errors import CourseError
from inflight.notebook import linked_marks
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.progress import is_progress
from inflight.paths import COURSE

NOTEBOOKS = COURSE / "notebooks"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

# The page is nbconvert's own, without the three scripts that it would fetch from elsewhere.
PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}<script src="plotly.min.js"></script><script>{{ resources.course.script }}</script>
{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_css -%}<style>{{ resources.course.style }}</style>{%- endblock -%}
"""

# On a phone a picture has smaller letters, and does without buttons, which would cover its title.
DRAW = """
function drawChart(id, data, layout, config) {
  const phone = matchMedia("(max-width: 600px)");
  document.getElementById(id).style.height = `${layout.height}px`;  // which plotly forgets when the page gets wider
  function draw() {
    const fitted = structuredClone({ layout, config: { ...config, responsive: true } });
    if (phone.matches) {
      fitted.layout.font = { size: 12 };
      fitted.layout.margin = { ...layout.margin, r: 8 };
      for (const axis of ["xaxis", "yaxis"]) fitted.layout.template.layout[axis].title.font.size = 12;
      fitted.config.displayModeBar = false;
    }
    Plotly.react(id, structuredClone(data), fitted.layout, fitted.config);
  }
  phone.addEventListener("change", draw);
  draw();
}
"""

# Where the columns of a table have no room side by side, each of its rows is a list of "column: value".
FIT_TABLES = """
function fitTables() {
  for (const table of document.querySelectorAll(".jp-RenderedHTMLCommon table")) {
    table.classList.remove("stacked");
    table.classList.toggle("stacked", table.scrollWidth > table.clientWidth);
  }
}
function nameColumns(table) {
  const headings = [];
  for (const row of table.tHead?.rows ?? [])
    [...row.cells].forEach((cell, place) => { headings[place] ||= cell.textContent.trim(); });
  for (const row of table.tBodies[0]?.rows ?? []) {
    const shared = headings.length - row.cells.length;  // headings of earlier rows that reach down to this one
    [...row.cells].forEach((cell, place) => { cell.dataset.column = headings[shared + place] ?? ""; });
  }
}
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".jp-RenderedHTMLCommon table").forEach(nameColumns);
  fitTables();
  addEventListener("resize", fitTables);
  addEventListener("toggle", fitTables, true);  // what is folded has no width
});
"""

STYLE = """
body.jp-Notebook { margin: 0; padding: 0; overflow-y: auto; }
body.jp-Notebook > main, .course { max-width: 58rem; margin: 0 auto; padding: 0 1rem; }
.course { font: 15px/1.5 system-ui, sans-serif; color: #444; }
header.course { padding-top: .8rem; } footer.course { padding-bottom: 2rem; }
.course nav { display: flex; flex-wrap: wrap; gap: .3rem 1.5rem; justify-content: space-between; margin: .5rem 0; }
.course summary { cursor: pointer; } .course ul { margin: .3rem 0 .8rem; }
.course a { color: #0061a8; }
.jp-RenderedMarkdown { font-size: 16px; line-height: 1.55; }
.jp-RenderedMarkdown > :not(table, pre) { max-width: 60ch; }  /* of "0": about 75 letters */
.jp-RenderedHTMLCommon table { display: block; width: fit-content; max-width: 100%; overflow-x: auto; margin-left: 0; }
.jp-RenderedHTMLCommon table.stacked :is(thead, tbody, tr, th, td) {
  display: block; max-width: none; text-align: left !important; overflow-wrap: anywhere;
}
.jp-RenderedHTMLCommon table.stacked thead { display: none; }
.jp-RenderedHTMLCommon table.stacked tr { padding: .4rem 0; }
.jp-RenderedHTMLCommon table.stacked :is(th, td) { padding: 0 .5rem !important; }
.jp-RenderedHTMLCommon table.stacked [data-column]:not([data-column=""])::before {
  content: attr(data-column) ": "; color: #595959; font-weight: normal;
}
.jp-RenderedHTMLCommon pre { max-width: 100%; overflow-x: auto; }
.jp-RenderedText pre { word-break: normal; overflow-wrap: anywhere; }  /* not in the middle of a word */
.jp-RenderedHTMLCommon :is(:not(pre, th, td), .stacked *) > code { overflow-wrap: anywhere; }
.jp-InputArea, .jp-OutputArea-child { display: flex; }
.jp-InputArea > :not(.jp-InputPrompt), .jp-OutputArea-child > :not(.jp-OutputPrompt) {
  display: block; flex: 1; min-width: 0; overflow-x: auto;
}
.jp-OutputArea-child > .jp-OutputArea-output { margin-left: 0; padding-right: 0; }
.js-plotly-plot { width: 100%; overflow: hidden; }
@media (max-width: 900px) { .jp-InputPrompt, .jp-OutputPrompt { display: none; } }
@media (max-width: 600px) {
  body.jp-Notebook > main, .course { padding: 0 .5rem; }
  .jp-Notebook .jp-Cell { padding: 4px 0; }
}
"""

INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>The course</title><style>
body {{ font: 17px/1.5 system-ui, sans-serif; max-width: 60ch; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; width: 100%; }}
td, th {{ text-align: left; vertical-align: top; padding: .6rem .4rem; border-bottom: 1px solid #ddd; }}
td.number, th.number {{ text-align: right; }}
a {{ overflow-wrap: anywhere; }}
</style></head><body><h1>The course</h1>
<p>Each page is an executed notebook. “Reading” is the time a lesson asks of you; “machine” is what this run took.</p>
<table><thead><tr><th>Lesson</th><th class="number">Reading</th><th class="number">Machine</th></tr></thead>
<tbody>{rows}</tbody></table><p>{ran}</p></body></html>
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
    # The whole course takes 17 minutes on two cores with AVX-512, 33 on two with AVX2 and no more.
    print(f"{len(paths)} to run, on two cores one to three minutes each; what is done is kept in {out}.", flush=True)
    rows, cards, started = [], [], datetime.now().isoformat()
    for path in paths:
        row, executed = _run_one(path, out)
        rows.append(row)
        cards.append(card(executed))
        (out / f"{path.stem}.html").write_text(to_html(executed, path, out, paths), encoding="utf-8")
    table = pd.DataFrame(rows, columns=["notebook", "cells", "seconds"])
    (out / "index.html").write_text(_index(table, cards, started), encoding="utf-8")
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


def to_html(notebook: NotebookNode, path: Path, out: Path, paths: list[Path]) -> str:
    """One page for an executed notebook: plotly charts alive, widgets as text, nothing fetched from a network.

    `path` is the notebook's own file, from where its links lead; `paths` are the notebooks with a page in `out`, in
    their order. Above and below it lead to the index, to the pages before and after, and to its own sections.
    """
    page = nbformat.from_dict(notebook)
    page.metadata["title"] = card(page)[0]
    for cell in page.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
    for index, output in enumerate(o for cell in page.cells for o in cell.get("outputs", [])):
        if "data" in output:
            output["data"] = _static(output["data"], index)
    exporter = HTMLExporter(raw_template=PAGE)  # to embed images it would close each tag at once: nothing stays folded
    look = {"script": f"{linked_marks.SCRIPT}\n{DRAW}\n{FIT_TABLES}", "style": STYLE}
    body, _ = exporter.from_notebook_node(page, resources={"metadata": {"path": str(path.parent)}, "course": look})
    outside = re.search(r"<(?:script|link)\b[^>]*(?:src|href)\s*=\s*[\"']?(?:https?:)?//[^>]*>", body)
    if outside:
        raise CourseError(f"{path.name} has an output that needs a network: {outside[0]}. Show it without that script.")
    names = [other.name for other in paths]
    link = r'(<(?:a|img)\b[^>]*?\b(?:href|src)=")([^"#:]+)(?=["#])'
    linked = re.sub(link, lambda found: found[1] + _moved(found[2], path, out, names), body)
    times = notebook.metadata["papermill"]
    return _framed(linked, _ways(path, paths), _ran(times["start_time"], times["duration"]))


def _framed(body: str, ways: str, ran: str) -> str:
    """`body` with its way through the course above and below it, and above also its sections."""
    sections = re.findall(r'<h2 id="([^"]*)">(.*?)<a class="anchor-link"', body, re.S)
    items = "".join(f'<li><a href="#{anchor}">{title}</a></li>' for anchor, title in sections)
    contents = f"<details><summary>On this page</summary><ul>{items}</ul></details>" if items else ""
    before, _, after = body.rpartition("</main>")
    above = f'<header class="course">{ways}<div>{ran}</div>{contents}</header><main>'
    return before.replace("<main>", above, 1) + f'</main><footer class="course">{ways}</footer>' + after


def _ways(path: Path, paths: list[Path]) -> str:
    """Links to the page before, the index and the page after."""
    place = paths.index(path)
    before, after = paths[:place][-1:], paths[place + 1 :][:1]
    links = [
        *(f'<a href="{other.stem}.html">← {_title(other)}</a>' for other in before),
        '<a href="index.html">All lessons</a>',
        *(f'<a href="{other.stem}.html">{_title(other)} →</a>' for other in after),
    ]
    return f'<nav aria-label="Course">{"".join(links)}</nav>'


def _title(path: Path) -> str:
    return html.escape(card(nbformat.read(path, as_version=4))[0])


def _ran(started: str, seconds: float) -> str:
    """When (ISO 8601), how long and on what notebooks were executed."""
    day, here = datetime.fromisoformat(started), machine.describe()
    device = f"{here['cpu']}, {here['cores']} cores{', ' + here['gpu'] if here['gpu'] else ''}"
    return html.escape(f"Run on {day.day} {day:%B %Y} in {seconds:,.0f} s on {device}.")


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
        return {"text/html": f'{chart}<script>drawChart("chart-{index}", {arguments});</script>'}
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


def _index(table: pd.DataFrame, cards: list[tuple[str, str, str]], started: str) -> str:
    rows = []
    for name, seconds, texts in zip(table["notebook"], table["seconds"], cards, strict=True):
        title, minutes, goals = map(html.escape, texts)
        rows.append(
            f'<tr><td><a href="{name}.html"><strong>{title}</strong></a><br>{goals}<br>'
            f'<small><a href="{name}.ipynb">{name}.ipynb</a></small></td>'
            f'<td class="number">{minutes}</td><td class="number">{seconds:.1f} s</td></tr>'
        )
    return INDEX.format(rows="\n".join(rows), ran=_ran(started, table["seconds"].sum()))


def _print_table(table: pd.DataFrame, out: Path) -> None:
    shown = Table("notebook")
    shown.add_column("cells", justify="right")
    shown.add_column("seconds", justify="right")
    for row in [*table.itertuples(index=False), ("all", table["cells"].sum(), table["seconds"].sum())]:
        shown.add_row(row[0], str(row[1]), f"{row[2]:.1f}")
    Console().print(shown, f"Open {out / 'index.html'} in a browser.", sep="\n", soft_wrap=True)
