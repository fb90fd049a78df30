"""The runner of the lectures: copies, pages without a network, and what it says when a cell fails."""

import contextlib
import io
import re

import nbformat
import pytest

from inflight import syllabus
from inflight.errors import CourseError
from inflight.notebook.pages import blanks, execution

SVG = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
CHART = f"""from IPython.display import display
figure = {{"data": [{{"type": "bar", "y": [1, 2], "name": "</script>"}}], "layout": {{}}, "config": {{}}}}
bundle = {{"application/vnd.plotly.v1+json": figure, "image/svg+xml": '{SVG}', "text/plain": "two <bars>"}}
display(bundle, raw=True)"""
HEAD = """# Start here & now
**10 minutes** · needs nothing

Afterwards you will be *able to*:
- ask a model
- draw a request

## A section

[Next](01_engine.ipynb#top), [the lab](../labs/01_engine_lab.ipynb), [far](https://example.org/a)

![A picture](../assets/images/map.png)

<details><summary>How many?</summary>

Two, as <a href="https://example.org/b">they say</a>.

</details>"""


def write(folder, name, *cells):
    """A notebook of one markdown cell and these code cells, without outputs."""
    folder.mkdir(exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(HEAD)])
    notebook.cells += [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, folder / f"{name}.ipynb")


def write_two(folder):
    write(folder, "00_start", "from pathlib import Path", CHART, "Path('00_start.ipynb').exists()")
    write(folder, "01_engine", "from ipywidgets import IntSlider\nIntSlider(3)", "1 + 1")
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The output folder, the seconds and what was printed."""
    folder, printed = tmp_path_factory.mktemp("ran"), io.StringIO()
    out = folder / "build" / "course"
    with contextlib.redirect_stdout(printed):
        seconds = execution.run(None, out, write_two(folder / "notebooks"))
    return out, seconds, printed.getvalue()


def test_every_notebook_gets_a_copy_a_page_and_a_line(ran):
    out, seconds, printed = ran
    assert list(seconds) == ["00_start", "01_engine"] and all(took > 0 for took in seconds.values())
    copy = nbformat.read(out / "00_start.ipynb", as_version=4)
    assert copy.cells[3].outputs[0].data["text/plain"] == "True"  # it ran where its relative paths lead
    pages = {f"{name}.{kind}" for name in ("00_start", "01_engine") for kind in ("ipynb", "html")}
    assert {path.name for path in out.iterdir()} == pages | {"index.html", "plotly.min.js"}
    assert "01_engine" in printed and str(out / "index.html") in printed


def test_pages_fetch_nothing_and_draw_with_the_plotly_beside_them(ran):
    out, _, _ = ran
    page = (out / "00_start.html").read_text()
    assert '<script src="plotly.min.js"></script>' in page
    assert "Plotly.newPlot(" in page and 'aria-label="two &lt;bars&gt;"' in page
    assert '"name": "<\\/script>"' in page and SVG not in page
    for name in ("00_start.html", "01_engine.html", "index.html"):
        assert not re.findall(r"<(?:script|link|img)[^>]*https?:", (out / name).read_text())
    widgets = (out / "01_engine.html").read_text()
    assert "IntSlider(value=3)" in widgets and "vnd.jupyter.widget" not in widgets


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("00_start", 'href="01_engine.html#top"'),
        ("00_start", 'href="../../labs/01_engine_lab.ipynb"'),
        ("00_start", 'href="https://example.org/a"'),
        ("00_start", 'src="../../assets/images/map.png"'),
        ("index", '<a href="00_start.html">00_start</a>'),
        ("index", '<a href="01_engine.html">01_engine</a>'),
    ],
)
def test_links_lead_to_pages_and_to_the_clone(ran, page, link):
    assert link in (ran[0] / f"{page}.html").read_text()


def test_a_page_has_no_cell_that_is_there_for_ci(tmp_path):
    cells = [nbformat.v4.new_code_cell("slots = 8"), nbformat.v4.new_code_cell("assert slots == 8")]
    cells[1].metadata["tags"] = [blanks.FOR_CI]
    page = execution.to_html(nbformat.v4.new_notebook(cells=cells), tmp_path / "00_start.ipynb", tmp_path)
    assert "slots" in page and "assert" not in page.partition("<main")[2]


def test_lessons_are_chosen_by_number_or_name(tmp_path):
    notebooks = write_two(tmp_path / "notebooks")
    assert list(execution.run(["01"], tmp_path / "out", notebooks)) == ["01_engine"]
    found = sorted(notebooks.glob("*.ipynb"))
    assert syllabus.select(found, ["01_engine", "00"]) == found
    with pytest.raises(CourseError, match="No lesson '12'; the lessons are 00_start, 01_engine"):
        execution.run(["12"], tmp_path / "out", notebooks)


def test_no_notebooks_is_said(tmp_path):
    with pytest.raises(CourseError, match="No notebooks in .*make notebooks"):
        execution.run(None, tmp_path / "out", tmp_path)


INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"
OF_THE_COURSE = "from inflight import CourseError\nraise CourseError('Take a larger one.')"


@pytest.mark.parametrize(
    ("cell", "says", "shown"),
    [
        ("\nx / 0\nprint()", "`x / 0` failed with ZeroDivisionError: division by", None),
        (OF_THE_COURSE, ".* failed with CourseError: Take a larger one", ["CourseError: Take a larger one."]),
        (INTERRUPT, ".* failed with KeyboardInterrupt", None),
        ("import os\nos._exit(3)", "`import os` failed with the end of its kernel", None),
    ],
)
def test_a_cell_that_fails_ends_the_run_is_named_and_shown_in_the_copy(tmp_path, cell, says, shown):
    write(tmp_path / "notebooks", "00_start", "x = 1", cell, "x")
    with pytest.raises(CourseError, match=rf"00_start, cell \[2\] {says}"):
        execution.run(None, tmp_path / "out", tmp_path / "notebooks")
    copy = nbformat.read(tmp_path / "out" / "00_start.ipynb", as_version=4)
    outputs = [output for one in copy.cells for output in one.get("outputs", [])]
    if shown:
        assert [output.traceback for output in outputs if output.output_type == "error"] == [shown]
