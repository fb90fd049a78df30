"""Pages without a kernel in a browser: stored lectures, and every picture there is, also on a narrow page.

The pictures are drawn by the same plotly.js, from the same JSON, as in JupyterLab.
"""

import nbformat
import pytest
from plotly.offline import get_plotlyjs

from inflight.notebook import execution
from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from tests.browser import needs_chromium
from tests.notebook.chart_samples import FIGURES
from tests.page_fit import faults_of_pictures, resized, scrolling_sideways

NARROW, LAPTOP = (620, 700), (1366, 768)
LECTURES = sorted(execution.NOTEBOOKS.glob("*.ipynb"))
OWN_BOX = "pre, .jp-InputArea-editor, .highlight"  # code alone may scroll
PICTURES = "09_pictures.ipynb"

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]


def notebook_of_pictures():
    cells = [nbformat.v4.new_markdown_cell("# Every picture")]
    for name, figure in FIGURES.items():
        output = nbformat.v4.new_output("display_data", {PLOTLY_MIME: in_course_look(figure), "text/plain": name})
        cells += [nbformat.v4.new_markdown_cell(f"## {name}"), nbformat.v4.new_code_cell("", outputs=[output])]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of pages, and in it one with every picture."""
    out = tmp_path_factory.mktemp("site")
    pictures = out / PICTURES
    nbformat.write(notebook_of_pictures(), pictures)
    paths = [*LECTURES, pictures]
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        (out / f"{path.stem}.html").write_text(execution.to_html(notebook, path, out), encoding="utf-8")
    (out / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    return out


@pytest.fixture(scope="module")
def page(browser):
    page = browser.new_page()
    page.set_default_timeout(120_000)  # waits, for a machine that does much else
    yield page
    page.close()


def open_at(page, url, size):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(url)
    page.wait_for_function(
        "document.querySelectorAll('[role=img]').length === "
        "document.querySelectorAll('.js-plotly-plot .main-svg:first-child').length"
    )
    resized(page, *size)


def assert_fits(page):
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert scrolling_sideways(page, "main *:not(svg *)", OWN_BOX) == []
    assert faults_of_pictures(page) == []


@pytest.mark.parametrize("name", [path.stem for path in LECTURES])
def test_a_stored_lecture_fits_a_laptop_and_asks_nobody(site, page, name):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_at(page, (site / f"{name}.html").as_uri(), LAPTOP)
    assert_fits(page)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_every_picture_fits_everywhere(site, page):
    open_at(page, (site / PICTURES).with_suffix(".html").as_uri(), LAPTOP)
    for size in (LAPTOP, NARROW):
        resized(page, *size)
        assert_fits(page)
