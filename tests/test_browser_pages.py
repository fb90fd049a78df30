"""Pages without a kernel in a browser: stored lectures, whose pictures the plotly.js beside them draws."""

import nbformat
import pytest
from plotly.offline import get_plotlyjs

from inflight.notebook import execution
from tests.browser import needs_chromium
from tests.page_fit import resized, scrolling_sideways

LAPTOP = (1366, 768)
LECTURES = sorted(execution.NOTEBOOKS.glob("*.ipynb"))
OWN_BOX = "pre, .jp-InputArea-editor, .highlight"  # code alone may scroll

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder of pages."""
    out = tmp_path_factory.mktemp("site")
    for path in LECTURES:
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


@pytest.mark.parametrize("name", [path.stem for path in LECTURES])
def test_a_stored_lecture_fits_a_laptop_and_asks_nobody(site, page, name):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_at(page, (site / f"{name}.html").as_uri(), LAPTOP)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert scrolling_sideways(page, "main *:not(svg *)", OWN_BOX) == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
