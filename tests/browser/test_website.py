"""The course's pages on the web in a real browser: readable for everybody, alive, and without a network.

`make site` makes the pages.
"""

import pytest

from inflight.paths import COURSE
from tests.browser.chromium import needs_chromium, served

SITE = COURSE / "build" / "site"
PAGES = sorted(
    path.relative_to(SITE).with_suffix("").as_posix()
    for path in SITE.rglob("*.html")
    if path.name != "genindex.html" and "_static" not in path.parts
)
LAPTOP, SMALL_LAPTOP = {"width": 1366, "height": 768}, {"width": 1024, "height": 768}
PHONE = {"width": 390, "height": 844}
# WCAG 2.2, levels A and AA, and what axe's makers hold to be good practice, such as headings in order.
AXE = """() => axe.run(document, { resultTypes: ['violations'], iframes: false })
    .then(({ violations }) => violations.map(({ id, nodes }) =>
        `${id}: ${nodes.length} × ${nodes[0].html.slice(0, 200)}: ${nodes[0].failureSummary}`))"""
SCROLLING_TABLES = """() => [...document.querySelectorAll('article :has(> table)')]
    .filter(place => place.scrollWidth - place.clientWidth > 1)
    .map(place => place.textContent.trim().slice(0, 60))"""
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = [
    needs_chromium,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason=f"no pages in {SITE}: `make site` makes them"),
]


@pytest.fixture(scope="module")
def address():
    with served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def page(address, browser):
    """A page of a browser; in the end it has asked nobody else for anything, and no script has failed."""
    outside, errors = [], []
    page = browser.new_context(viewport=LAPTOP, base_url=address, bypass_csp=True).new_page()
    page.set_default_timeout(120_000)  # for a machine that does other things, too
    page.on("request", lambda request: outside.append(request.url) if address not in request.url else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.context.close()
    assert outside == [] and errors == []


def open_page(page, name, theme="light", size=LAPTOP):
    page.set_viewport_size(size)
    page.goto(f"/{name}.html")
    page.evaluate(
        "theme => [document.documentElement, document.body].forEach(part => part.dataset.theme = theme)", theme
    )
    page.evaluate("() => Promise.all(document.getAnimations().map(each => each.finished.catch(() => {})))")  # colours


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_a_page(page, name, theme):
    open_page(page, name, theme)
    page.add_script_tag(path=next((COURSE / "build" / "site-venv").glob("lib/python*/site-packages/*/axe.min.js")))
    assert page.evaluate(AXE) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone_and_its_tables_a_small_laptop(page, name):
    open_page(page, name, size=PHONE)
    assert page.evaluate(WIDER) <= 0
    page.set_viewport_size(SMALL_LAPTOP)
    assert page.evaluate(SCROLLING_TABLES) == []


def test_every_lesson_has_its_pages_and_the_address_of_the_site_leads_to_them(page):
    stored = {
        path.relative_to(COURSE).with_suffix("").as_posix()
        for kind in ("notebooks", "labs", "solutions")
        for path in (COURSE / kind).glob("*.ipynb")
    }
    assert stored <= set(PAGES)
    page.goto("/")
    page.get_by_role("link", name="Static against in-flight batching").click()
    page.wait_for_url("**/notebooks/04_batching.html")
    page.get_by_role("link", name="Play it here").click()
    page.wait_for_url("**/play/slots.html")


def test_a_picture_is_there_with_its_words(page):
    open_page(page, "notebooks/04_batching")
    pictures = page.locator("div.cell_output img")
    assert pictures.count() == (COURSE / "notebooks/04_batching.ipynb").read_text("utf-8").count('"image/svg+xml": [')
    for picture in pictures.all():
        assert len(picture.get_attribute("alt").split()) > 6
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100


def test_links_of_text_and_of_tables_lead_to_pages(page):
    open_page(page, "notebooks/00_start_here")
    links = page.locator("article a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert any(link.startswith("01_engine.html") for link in links) and not any(".ipynb" in link for link in links)


def test_a_word_of_the_glossary_leads_there_once_a_page(page):
    open_page(page, "notebooks/04_batching")
    terms = page.locator("a.term")
    links = [link.get_attribute("href") for link in terms.all()]
    assert len(links) >= 8 and len(set(links)) == len(links)
    assert not page.locator("pre a.term, h1 a.term, h2 a.term, a a").count()
    anchors = {link.partition("#")[2] for link in links}
    open_page(page, "notebooks/glossary")
    assert [anchor for anchor in anchors if not page.locator(f"[id='{anchor}']").count()] == []


def test_every_lecture_says_how_it_is_run_and_where_it_is_changed(page):
    open_page(page, "notebooks/04_batching")
    actions = page.locator(".page-actions")
    assert "inflight lab 04" in actions.inner_text()
    assert (
        "inflight/lessons/batching/lecture.py" in actions.inner_html()
    )  # the link, or where it has no repository the words
