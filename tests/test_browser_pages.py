"""Pages without a kernel in a browser, from a phone's width to a laptop's: stored lectures, and every picture there is.

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

PHONE, NARROW, LAPTOP = (390, 844), (620, 700), (1366, 768)
LECTURES = sorted(execution.NOTEBOOKS.glob("*.ipynb"))
OWN_BOX = "pre, .jp-InputArea-editor, .highlight"  # code alone may scroll
PICTURES = "09_pictures.ipynb"
RUN = {"start_time": "2026-11-22T10:00:00", "duration": 61.5}

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
        notebook.metadata["papermill"] = RUN
        (out / f"{path.stem}.html").write_text(execution.to_html(notebook, path, out, paths), encoding="utf-8")
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
def test_a_stored_lecture_fits_a_phone_and_a_laptop(site, page, name):
    open_at(page, (site / f"{name}.html").as_uri(), PHONE)
    assert_fits(page)
    resized(page, *LAPTOP)
    assert_fits(page)


def test_a_table_without_room_names_the_column_of_each_value(site, page):
    engine = next(path for path in LECTURES if path.stem.startswith("01"))
    open_at(page, (site / f"{engine.stem}.html").as_uri(), LAPTOP)
    assert page.locator("table.stacked").count() == 0
    resized(page, *PHONE)
    stacked = page.locator("table.stacked")
    assert 0 < stacked.count() < page.locator("main table").count(), "those that fit stay tables"
    row = stacked.locator("tbody tr").first
    told = row.locator("td").evaluate_all("cells => cells.map(cell => cell.dataset.column)")
    headings = stacked.first.locator("thead th").evaluate_all("cells => cells.map(cell => cell.textContent.trim())")
    assert told == headings[-len(told) :] and all(told)
    resized(page, *LAPTOP)
    assert stacked.count() == 0


def test_every_picture_fits_everywhere(site, page):
    open_at(page, (site / PICTURES).with_suffix(".html").as_uri(), PHONE)
    for size in (PHONE, NARROW, LAPTOP):
        resized(page, *size)
        assert_fits(page)


def test_on_a_phone_legends_stand_below_and_pictures_take_the_whole_width(site, page):
    open_at(page, (site / PICTURES).with_suffix(".html").as_uri(), PHONE)
    seen = page.evaluate("""() => [...document.querySelectorAll('.js-plotly-plot')].map(chart => ({
        width: chart.getBoundingClientRect().width,
        legend: chart.querySelector('.legend .bg')?.getBoundingClientRect().top,
        axes: Math.max(...[...chart.querySelectorAll('.xaxislayer-above')].map(
            axis => axis.getBoundingClientRect().bottom)),
    }))""")
    assert all(picture["width"] >= PHONE[0] - 20 for picture in seen)
    with_legend = [picture for picture in seen if picture["legend"]]
    assert len(with_legend) >= 4 and all(picture["legend"] >= picture["axes"] - 1 for picture in with_legend)


def test_a_page_leads_on_back_and_to_its_sections(site, page):
    first, second = LECTURES[:2]
    open_at(page, (site / f"{first.stem}.html").as_uri(), LAPTOP)
    page.get_by_role("link", name="→").first.click()
    page.wait_for_url(f"**/{second.stem}.html")
    ways = page.get_by_role("navigation").first
    assert ways.get_by_role("link").evaluate_all("links => links.map(link => link.getAttribute('href'))") == [
        f"{first.stem}.html",
        "index.html",
        f"{LECTURES[2].stem}.html",
    ]
    page.get_by_text("On this page").click()
    anchors = page.locator("header li a").evaluate_all("links => links.map(link => link.getAttribute('href').slice(1))")
    assert len(anchors) >= 3
    assert all(page.evaluate("anchor => document.getElementById(anchor) !== null", anchor) for anchor in anchors)
    assert "Run on 22 November 2026 in 62 s on " in page.locator("header").inner_text()


def test_lines_of_text_are_of_a_length_that_reads_well(site, page):
    open_at(page, (site / f"{LECTURES[0].stem}.html").as_uri(), (1920, 1080))
    widest = page.evaluate("""() => Math.max(...[...document.querySelectorAll('.jp-RenderedMarkdown p')].map(words => {
        const range = document.createRange();
        range.selectNodeContents(words);
        const lines = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
        return words.textContent.length / Math.max(1, lines.size);
    }))""")
    assert widest <= 80
