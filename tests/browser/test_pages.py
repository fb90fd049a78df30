"""What is made of a lecture, as files in a browser: its page, and its slides. Nothing comes from elsewhere."""

import nbformat
import pytest
from playwright.sync_api import expect
from plotly.offline import get_plotlyjs

from inflight.notebook.pages import execution, slides
from tests.browser.chromium import needs_chromium

LECTURES = sorted(path.stem for path in execution.NOTEBOOKS.glob("*.ipynb"))
LAPTOP, PROJECTOR = {"width": 1366, "height": 768}, {"width": 1280, "height": 720}
ALL_IS_DRAWN = """() => document.querySelectorAll('[role=img]').length ===
    document.querySelectorAll('.js-plotly-plot .main-svg:first-child').length"""
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# A slide may scroll downwards; what is wider than it would be cut off.
CUT_OFF = """() => Reveal.getSlides().filter(slide => {
  const indices = Reveal.getIndices(slide);
  Reveal.slide(indices.h, indices.v);
  return slide.scrollWidth > slide.clientWidth + 1;
}).map(slide => slide.innerText.slice(0, 60))"""

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def opened(browser):
    """Opens a file in a window of a size; in the end nothing has been fetched from elsewhere."""
    context, asked = browser.new_context(), []
    context.set_default_timeout(120_000)  # waits, for a machine that does much else
    context.on("request", lambda request: asked.append(request.url))

    def opened(path, size):
        page = context.new_page()
        page.set_viewport_size(size)
        page.goto(path.as_uri())
        return page

    yield opened
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("name", LECTURES)
def test_a_stored_lecture_is_drawn_and_fits_a_laptop(opened, tmp_path, name):
    stored, made = execution.NOTEBOOKS / f"{name}.ipynb", tmp_path / f"{name}.html"
    made.write_text(execution.to_html(nbformat.read(stored, as_version=4), stored, tmp_path), encoding="utf-8")
    (tmp_path / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    page = opened(made, LAPTOP)
    page.wait_for_function(ALL_IS_DRAWN)
    assert page.evaluate(WIDER) <= 0


def opened_slides(opened, name, folder):
    page = opened(slides.write(name, folder / f"{name}.html"), PROJECTOR)
    page.wait_for_function("window.Reveal && Reveal.isReady()")
    return page


@pytest.mark.parametrize("name", LECTURES)
def test_no_slide_is_cut_off(opened, tmp_path, name):
    assert opened_slides(opened, name, tmp_path).evaluate(CUT_OFF) == []


def test_the_presenters_window_has_the_notes_and_both_stay_together(opened, tmp_path):
    page = opened_slides(opened, "04_batching", tmp_path)
    page.keyboard.press("ArrowRight")
    with page.context.expect_page() as opening:
        page.keyboard.press("s")
    notes = opening.value.locator(".speaker-controls-notes")
    expect(notes).to_contain_text("Draw eight chairs")
    page.keyboard.press("ArrowRight")
    expect(notes).not_to_contain_text("Draw eight chairs")
