"""Runs the lectures from first to last, and leaves pages that can be read without a kernel or a network.

    run(["00", "01"], Path("build/course"))

papermill executes each notebook of `notebooks/` into a copy; nbconvert makes a page of the copy.
"""

import os
import re
import time
from pathlib import Path

import nbformat
import papermill
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError
from plotly.offline import get_plotlyjs
from traitlets import default
from traitlets.config import Config

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.pages import blanks
from inflight.paths import COURSE

NOTEBOOKS = COURSE / "notebooks"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
# nbconvert's own page, without what it would fetch from elsewhere; the plotly.js beside it draws the figures.
PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}<script src="plotly.min.js"></script>{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block data_other scoped -%}
{%- set id, figure = uuid4(), output.data['application/vnd.plotly.v1+json'] -%}
<div id="{{ id }}" role="img" aria-label="{{ output.data['text/plain'] | escape_html }}"></div>
<script>{
const figure = {{ figure | json_dumps | escape_html_script }};
Plotly.newPlot("{{ id }}", {...figure, config: {...figure.config, responsive: true}});
}</script>
{%- endblock -%}
"""
# Forms of outputs: a figure is drawn; a widget, which has no kernel there, is shown by its picture or words.
SHOWN = [PLOTLY_MIME, "text/html", "text/markdown", "image/svg+xml", "image/png", "text/plain"]


class KernelOfThisPython(AsyncKernelManager):
    """Starts kernels with the interpreter that runs this code, in which a lab's failed check raises."""

    @property
    def kernel_spec(self) -> KernelSpec:
        # Whoever ends a kernel in the middle of a cell has no use for what it logs then.
        # A kernel named python3 that a user installed earlier would otherwise win and lack the package.
        return KernelSpec(**get_kernel_dict(["--log-level=CRITICAL"]), env={"COURSE_STRICT": "1"})

    @default("transport_encryption")
    def _encrypt(self) -> str:
        return "auto"  # the kernel complains on stderr of anything less


def run(lessons: list[str] | None, out: Path, notebooks: Path = NOTEBOOKS) -> dict[str, float]:
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
    dict of str to float
        By the name of each notebook, the seconds that it ran.

    Raises
    ------
    CourseError
        No such lesson, or a cell failed: then its notebook's partial copy is in `out`.
    """
    paths = syllabus.select(sorted(notebooks.glob("[0-9][0-9]_*.ipynb")), lessons)
    if not paths:
        raise CourseError(f"No notebooks in {notebooks}; run `make notebooks` in a clone of the course first.")
    out.mkdir(parents=True, exist_ok=True)
    (out / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    print(f"{len(paths)} to run, on two cores about a minute each; what is done is kept in {out}.", flush=True)
    seconds, links = {}, ""
    for path in paths:
        start = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        executed = execute(notebook, path.stem, path.parent, (out / path.name).resolve(), progress_bar=True)
        seconds[path.stem] = time.monotonic() - start
        print(f"{path.stem:<20} {seconds[path.stem]:6.1f} s", flush=True)
        (out / f"{path.stem}.html").write_text(to_html(executed, path, out), encoding="utf-8")
        links += f'<li><a href="{path.stem}.html">{path.stem}</a>, {seconds[path.stem]:.0f} s</li>\n'
        (out / "index.html").write_text(f"<meta charset='utf-8'><title>The course</title>\n<ul>{links}</ul>", "utf-8")
    print(f"Open {out / 'index.html'} in a browser.")
    return seconds


def execute(
    notebook: NotebookNode, name: str, cwd: Path, output: Path | None = None, progress_bar: bool = False
) -> NotebookNode:
    """Execute `notebook` in a fresh kernel of this interpreter and return it with its outputs.

    Parameters
    ----------
    name : str
        The notebook's name in error messages.
    cwd : Path
        The kernel's working directory.
    output : Path or None
        Where the copy goes, also when a cell fails; None writes none.

    Raises
    ------
    CourseError
        A cell raised or the kernel died; names notebook, cell number, its first line and the error.
    """
    started: list[str] = []
    try:
        return papermill.execute_notebook(
            notebook, output, cwd=cwd, kernel_name="python3", progress_bar=progress_bar, coalesce_streams=True,
            kernel_manager_class=KernelOfThisPython, store_widget_state=False,
            on_cell_execute=lambda cell, cell_index: started.append(cell.source),
        )  # fmt: skip
    except PapermillExecutionError as raised:
        error = f"{raised.ename}: {raised.evalue}"
    except DeadKernelError:
        error = "the end of its kernel"
    first_line = started[-1].strip().splitlines()[0]
    where = f" The copy up to there is {output}." if output else ""
    raise CourseError(f"{name}, cell [{len(started)}] `{first_line}` failed with {error}.{where}")


def to_html(notebook: NotebookNode, path: Path, out: Path) -> str:
    """Write the page of an executed notebook to the folder `out`; links lead as from `path`, the notebook's place."""
    leave_out = {"enabled": True, "remove_cell_tags": {blanks.FOR_CI}}
    config = Config(NbConvertBase={"display_data_priority": SHOWN}, TagRemovePreprocessor=leave_out)
    exporter = HTMLExporter(raw_template=PAGE, config=config)
    resources = {"metadata": {"name": path.stem, "path": str(path.parent)}}
    body, _ = exporter.from_notebook_node(notebook, resources=resources)
    body = re.sub(r'(<a [^>]*?href="\d\d_\w+)\.ipynb', r"\1.html", body)
    return re.sub(r'((?:href|src)=")\.\./', rf"\g<1>{os.path.relpath(path.parent.parent, out)}/", body)
