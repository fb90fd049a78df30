"""The report of a tuned deployment: one page, written from what was measured, as a notebook and as HTML.

notebook, page = tuning_report.write(folder, yours=[run, run, run], before=[run, run, run])
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import nbformat
from nbconvert import HTMLExporter

from inflight import files, machine
from inflight.errors import CourseError
from inflight.lessons.capstone.charts import pareto, pareto_summary
from inflight.lessons.capstone.service import Served
from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look, page

# Each figure, and how many decimals it has wherever it stands.
FIGURES = {
    "goodput (requests/s)": (lambda served: served.goodput, 2),
    "requests in time (%)": (lambda served: 100 * served.met / len(served.run.requests), 0),
    "P99 of TTFT (ms)": (lambda served: served.ttft_p99_ms, 0),
    "P99 of ITL (ms)": (lambda served: served.itl_p99_ms, 1),
}


def write(folder: str | Path, yours: Sequence[Served], before: Sequence[Served], words: str = "") -> tuple[Path, Path]:
    """Write `report.ipynb` and `report.html` into `folder`.

    Parameters
    ----------
    yours, before : sequence of Served
        Rounds of the tuned deployment and of the one before, measured in turns: the first of each belong together.
    words : str
        What you want to say of it, in Markdown: why these settings, and what they cost.

    Raises
    ------
    CourseError
        There is no round, or not the same number of each; the folder cannot be written.
    """
    if not yours or len(yours) != len(before):
        raise CourseError(
            f"There are {len(yours)} rounds of yours and {len(before)} of the one before: measure them in turns, as "
            "many of each."
        )
    text, figure = _text(yours, before, words), pareto([*before, *yours], yours[0].brief)
    summary = pareto_summary([*before, *yours], yours[0].brief)
    output = nbformat.v4.new_output("display_data", {PLOTLY_MIME: in_course_look(figure), "text/plain": summary})
    cell = nbformat.v4.new_code_cell("# the picture was drawn when the report was written", outputs=[output])
    cells = [nbformat.v4.new_markdown_cell(text), cell, nbformat.v4.new_markdown_cell(summary)]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"title": "A tuned deployment"})
    folder = Path(folder)
    written = folder / "report.ipynb", folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.replace_text(written[0], nbformat.writes(notebook) + "\n")
        files.replace_text(written[1], _page(text, summary, page(figure)))
    except OSError as error:
        raise CourseError(
            f"The report cannot be written to {folder} ({error.strerror}): name another folder."
        ) from error
    return written


def _text(yours: Sequence[Served], before: Sequence[Served], words: str) -> str:
    here = machine.describe()
    ratios = [one.goodput / other.goodput if other.goodput else float("inf") for one, other in zip(yours, before)]
    kept = sum(one.keeps for one in yours)
    rows = [
        f"| {name} | {_spread([of(one) for one in before], decimals)} | "
        f"{_spread([of(one) for one in yours], decimals)} |"
        for name, (of, decimals) in FIGURES.items()
    ]
    lines = [
        "# A tuned deployment",
        f"**The service:** {yours[0].brief}. Measured on {here['cpu']}, {here['cores']} cores, in {len(yours)} rounds "
        f"of {len(yours[0].run.requests)} requests, in turns.",
        f"**The settings:** {yours[0].deployment}. Before: {before[0].deployment}.",
        f"**What they come to:** {_spread(ratios, 2)} times the goodput of before; the objective was kept in {kept} of "
        f"{len(yours)} rounds.",
        "| | before | these settings |\n|---|---|---|\n" + "\n".join(rows),
        "A figure is the middle of the rounds, with the least and the most.",
        words.strip(),
    ]
    return "\n\n".join(filter(None, lines))


def _spread(values: Sequence[float], decimals: int) -> str:
    middle, least, most = (f"{value:,.{decimals}f}" for value in (median(values), min(values), max(values)))
    return f"{middle} ({least} to {most})"


def _page(text: str, summary: str, picture: str) -> str:
    """The text above the picture, on a page that needs no network."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    body, _ = HTMLExporter(template_name="basic", exclude_anchor_links=True).from_notebook_node(notebook)
    look = "max-width: 60em; margin: 1em auto; font-family: system-ui, sans-serif; line-height: 1.5"
    head = f'<div style="{look}">{body}</div>'
    below = f'<p style="{look}">{html.escape(summary)}</p>'
    return picture.replace("<body>", f"<body>{head}", 1).replace("</body>", f"{below}</body>", 1)
