"""Slides in a browser, from a file: nothing comes from elsewhere, and the presenter's window has the notes."""

import pytest
from playwright.sync_api import expect

from inflight.notebook import execution, slides
from tests.browser import needs_chromium

LECTURES = sorted(path.stem for path in execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
PROJECTOR = {"width": 1280, "height": 720}
# A slide may scroll downwards; what is wider than it would be cut off.
CUT_OFF = """() => Reveal.getSlides().filter(slide => {
  const indices = Reveal.getIndices(slide);
  Reveal.slide(indices.h, indices.v);
  return slide.scrollWidth > slide.clientWidth + 1;
}).map(slide => slide.innerText.slice(0, 60))"""

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the slides of a lesson in a page; `asked` has what it fetched from elsewhere."""
    context = browser.new_context(viewport=PROJECTOR)
    context.set_default_timeout(120_000)  # waits, for a machine that does much else

    def opened(name):
        page, asked = context.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(slides.write(name, tmp_path / f"{name}.html").as_uri())
        page.wait_for_function("window.Reveal && Reveal.isReady()")
        return page, asked

    yield opened
    context.close()


@pytest.mark.parametrize("name", LECTURES)
def test_no_slide_is_cut_off_and_nothing_is_loaded(opened, name):
    page, asked = opened(name)
    assert page.evaluate(CUT_OFF) == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_the_presenters_window_has_the_notes_and_both_stay_together(opened):
    page, _ = opened("04_batching")
    page.keyboard.press("ArrowRight")
    with page.context.expect_page() as opening:
        page.keyboard.press("s")
    presenter = opening.value
    notes = presenter.locator(".speaker-controls-notes")
    expect(notes).to_contain_text("Draw eight chairs")
    page.keyboard.press("ArrowRight")
    expect(notes).not_to_contain_text("Draw eight chairs")
