"""Pages without a kernel in a browser: stored lectures, whose pictures the plotly.js beside them draws."""

import nbformat
import pytest
from plotly.offline import get_plotlyjs

from inflight.notebook import execution
from tests.browser import needs_chromium

LAPTOP = {"width": 1366, "height": 768}
LECTURES = sorted(execution.NOTEBOOKS.glob("*.ipynb"))

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


@pytest.mark.parametrize("name", [path.stem for path in LECTURES])
def test_a_stored_lecture_is_drawn_fits_a_laptop_and_asks_nobody(site, browser, name):
    page, asked = browser.new_page(viewport=LAPTOP), []
    page.set_default_timeout(120_000)  # waits, for a machine that does much else
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_function(
        "document.querySelectorAll('[role=img]').length === "
        "document.querySelectorAll('.js-plotly-plot .main-svg:first-child').length"
    )
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()
