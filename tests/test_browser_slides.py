"""Slides in a browser: nothing is cut off, on a laptop, on a projector and on paper; the keys do what they say."""

import re

import pytest
from playwright.sync_api import expect

from inflight.notebook import execution, slides
from tests.browser import needs_chromium

LECTURES = sorted(path.stem for path in execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
LAPTOP, PROJECTOR = (1280, 720), (1024, 768)
SMALLEST = 0.6  # of the usual letters: at 1280 pixels they have 15 then

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]

# What does not fit into its slide or is cut off by it; letters that got too small; pictures too small to be read.
FAULTS = """smallest => [...document.querySelectorAll("article")].flatMap((slide, index) => {
  const was = slide.className, faults = [];
  slide.className = "at";
  const section = slide.querySelector("section"), body = slide.querySelector("section > div");
  for (const part of [section, body]) {
    if (part.scrollHeight > part.clientHeight + 1) faults.push(`${part.scrollHeight - part.clientHeight} px too high`);
    if (part.scrollWidth > part.clientWidth + 1) faults.push(`${part.scrollWidth - part.clientWidth} px too wide`);
  }
  if (!body.children.length && index) faults.push("nothing on it");
  if (Number(getComputedStyle(body).getPropertyValue("--fit") || 1) < smallest) faults.push("letters too small");
  for (const image of body.querySelectorAll("img"))
    if (!image.naturalWidth || image.clientHeight < section.clientHeight / 2) faults.push("a picture is too small");
  slide.className = was;
  return faults.map(fault => `slide ${index + 1} (${section.textContent.slice(0, 30)}): ${fault}`);
})"""


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context()
    context.set_default_timeout(120_000)  # waits, for a machine that does much else
    yield context
    context.close()


@pytest.fixture
def opened(context, tmp_path):
    """Opens the slides of a lesson in a page."""

    def opened(name, size=LAPTOP, place=""):
        page = context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.goto(f"{slides.write(name, tmp_path / f'{name}.html').as_uri()}{place}")
        page.wait_for_selector("html[data-ready]", state="attached")
        page.wait_for_function("[...document.images].every(image => image.complete)")
        return page

    yield opened
    for page in context.pages:
        page.close()


def at(page):
    return page.locator("output").inner_text().split(" / ")[0]


@pytest.mark.parametrize("name", LECTURES)
def test_no_slide_overflows(opened, name):
    page = opened(name)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.evaluate(FAULTS, SMALLEST) == []
    page.set_viewport_size({"width": PROJECTOR[0], "height": PROJECTOR[1]})
    assert page.evaluate(FAULTS, SMALLEST) == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_slide_that_cannot_be_made_to_fit_is_found(opened):
    page = opened("00_start_here")
    page.evaluate("boxOf(slides[1]).insertAdjacentHTML('beforeend', '<pre>' + 'x\\n'.repeat(99))")
    assert any("slide 2" in fault and "too high" in fault for fault in page.evaluate(FAULTS, SMALLEST))


def test_the_keys_turn_the_pages_and_show_the_notes(opened):
    page = opened("04_batching")
    last = str(page.locator("article").count())
    for key, expected in (
        ("ArrowRight", "2"), (" ", "3"), ("PageDown", "4"), ("ArrowLeft", "3"), ("PageUp", "2"), ("End", last),
        ("ArrowRight", last), ("Home", "1"), ("ArrowLeft", "1"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert at(page) == expected, key
    assert page.locator("article:visible").count() == 1 and page.locator("aside:visible").count() == 0
    page.keyboard.press("n")
    notes, screen = page.locator("aside:visible").bounding_box(), page.viewport_size
    assert notes["y"] + notes["height"] <= screen["height"] + 1 and notes["height"] > 150
    assert page.locator("section:visible").count() == 1
    page.keyboard.press("n")
    assert page.locator("aside:visible").count() == 0


def test_a_link_to_a_slide_opens_it(opened):
    page = opened("04_batching", place="#5")
    assert at(page) == "5" and page.locator("article:visible").count() == 1


def test_a_second_window_has_the_notes_and_both_stay_together(opened, context):
    page = opened("04_batching", place="#2")
    with context.expect_page() as opening:
        page.keyboard.press("p")
    notes = opening.value
    notes.wait_for_selector("html[data-ready]", state="attached")
    assert "Draw eight chairs" in notes.locator("aside:visible").inner_text()
    notes.keyboard.press("ArrowRight")
    expect(page.locator("output")).to_have_text(re.compile("^3 "))
    page.keyboard.press("End")
    expect(notes.locator("output")).to_have_text(re.compile(r"^(\d+) / \1$"))


def test_on_paper_every_slide_is_a_page(opened):
    page = opened("07_sequences")
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == page.locator("article").count()
