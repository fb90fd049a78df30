"""Slides in a browser: nothing is cut off, on a projector, on a phone and on paper; the keys do what they say."""

import re

import pytest
from playwright.sync_api import expect

from inflight.notebook import execution, slides
from tests.browser import needs_chromium

LECTURES = sorted(path.stem for path in execution.NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
LAPTOP, PROJECTOR, PHONE = (1280, 720), (1024, 768), (390, 844)
SMALLEST = 0.7  # of the usual letters: at 1280 pixels they have 17 then

pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.slow]

# What does not fit into its slide, is cut off by it, or covers something else in it; and letters that got too small.
FAULTS = """smallest => slides.flatMap((slide, index) => {
  const was = slide.style.cssText;
  slide.style.cssText = "display: block; position: absolute; visibility: hidden";
  const section = slide.querySelector(".slide"), body = slide.querySelector(".body"), faults = [];
  const box = body.getBoundingClientRect();
  for (const part of [section, body]) {
    if (part.scrollHeight > part.clientHeight + 1) faults.push(`${part.scrollHeight - part.clientHeight} px too high`);
    if (part.scrollWidth > part.clientWidth + 1) faults.push(`${part.scrollWidth - part.clientWidth} px too wide`);
  }
  if (Number(getComputedStyle(body).getPropertyValue("--fit") || 1) < smallest) faults.push("letters too small");
  const parts = [...body.children].map(part => part.getBoundingClientRect());
  for (const part of parts) if (part.bottom > box.bottom + 1.5) faults.push("a part is cut off below");
  if (!body.matches(".beside"))
    for (let n = 1; n < parts.length; n++) if (parts[n].top < parts[n - 1].bottom - 1.5) faults.push("parts overlap");
  for (const image of body.querySelectorAll("img"))
    if (!image.naturalWidth || image.getBoundingClientRect().height < 100) faults.push("a picture is missing");
  slide.style.cssText = was;
  return faults.map(fault => `slide ${index + 1} (${section.textContent.slice(0, 30)}): ${fault}`);
})"""
WIDE = """() => [...document.querySelectorAll(".slide *")]
  .filter(part => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest("pre, table"))
  .map(part => part.textContent.slice(0, 60))"""


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    return {name: slides.write(name, folder / f"{name}.html") for name in LECTURES}


@pytest.fixture(scope="module")
def context(browser):
    context = browser.new_context()
    context.set_default_timeout(120_000)  # waits, for a machine that does much else
    yield context
    context.close()


def opened(context, deck, size=LAPTOP, place=""):
    page = context.new_page()
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{deck.as_uri()}{place}")
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_function("[...document.images].every(image => image.complete)")
    return page


def at(page):
    return page.locator("#place").inner_text().split(" / ")[0]


@pytest.mark.parametrize("name", LECTURES)
def test_no_slide_overflows(decks, context, name):
    page = opened(context, decks[name])
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.evaluate(FAULTS, SMALLEST) == []
    page.set_viewport_size({"width": PROJECTOR[0], "height": PROJECTOR[1]})
    assert page.evaluate(FAULTS, SMALLEST) == []
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    assert page.evaluate(WIDE) == []
    assert page.evaluate("slides.every(slide => slide.querySelector('.slide').clientHeight > 0)")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_a_slide_that_cannot_be_made_to_fit_is_found(decks, context):
    page = opened(context, decks["00_start_here"])
    page.evaluate("slides[1].querySelector('.body').insertAdjacentHTML('beforeend', '<pre>' + 'x\\n'.repeat(99))")
    assert any("slide 2" in fault and "too high" in fault for fault in page.evaluate(FAULTS, SMALLEST))
    page.close()


def test_the_keys_turn_the_pages_and_show_the_notes(decks, context):
    page = opened(context, decks["04_batching"])
    last = str(page.locator("article").count())
    for key, expected in (
        ("ArrowRight", "2"), (" ", "3"), ("PageDown", "4"), ("ArrowLeft", "3"), ("PageUp", "2"), ("End", last),
        ("ArrowRight", last), ("Home", "1"), ("ArrowLeft", "1"), ("ArrowDown", "2"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert at(page) == expected, key
    assert page.locator("article:visible").count() == 1 and page.locator(".notes:visible").count() == 0
    for key in ("n", "s"):
        page.keyboard.press(key)
        assert page.locator(".notes:visible").count() == 1 and page.locator(".slide:visible").count() == 1
        shown, screen = page.locator(".notes:visible").bounding_box(), page.viewport_size
        assert shown["y"] + shown["height"] <= screen["height"] + 1 and shown["height"] > 150
        page.keyboard.press(key)
        assert page.locator(".notes:visible").count() == 0
    page.get_by_role("button", name="→").click()
    assert at(page) == "3" and page.url.endswith("#3")
    page.close()


def test_a_link_to_a_slide_opens_it(decks, context):
    page = opened(context, decks["04_batching"], place="#5")
    assert at(page) == "5" and page.locator("article:visible").get_attribute("id") == "s5"
    page.close()


def test_a_second_window_has_the_notes_and_both_stay_together(decks, context):
    page = opened(context, decks["04_batching"], place="#2")
    with context.expect_page() as opening:
        page.keyboard.press("p")
    notes = opening.value
    notes.wait_for_selector("html[data-ready]", state="attached")
    assert (
        notes.locator(".slide:visible").count() == 0
        and "Draw eight chairs" in notes.locator(".notes:visible").inner_text()
    )
    notes.keyboard.press("ArrowRight")
    expect(page.locator("#place")).to_have_text(re.compile("^3 "))
    page.keyboard.press("End")
    expect(notes.locator("#place")).to_have_text(re.compile(r"^(\d+) / \1$"))
    notes.close()
    page.close()


def test_on_paper_every_slide_is_a_page(decks, context):
    page = opened(context, decks["07_sequences"])
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", printed)) == page.locator("article").count()
    page.close()


def test_a_phone_scrolls_through_all_slides(decks, context):
    page = opened(context, decks["08_iterative_gpt2"], PHONE)
    assert page.locator(".slide:visible").count() == page.locator("article").count()
    assert page.locator(".notes:visible").count() == 0
    page.get_by_role("button", name="Notes").click()
    assert page.locator(".notes:visible").count() == page.locator("article").count()
    page.close()
