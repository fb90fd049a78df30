"""JupyterLab in a browser, at length: every size of window, both themes, and the boards on the course's own engine."""

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.chromium import needs_chromium
from tests.browser.lab import (
    LECTURES,
    assert_whole,
    lab,
    open_page,
    put,
    run_all,
    screenshot,
)  # fmt: skip
from tests.browser.page_fit import resized, scrolling_sideways
from tests.browser.test_lab import lectures, open_lecture

# Of a window, in CSS pixels: a small laptop, an older one, and the first at 150 %.
SIZES = [(1366, 768), (1024, 768), (911, 512)]
COLLAPSE, EXPAND = (f"() => window.jupyterapp.shell.{what}Left()" for what in ("collapse", "expand"))
# Lines of code are not broken: they have the room when the sidebar is closed.
CODE = ".cm-scroller, .jp-RenderedMarkdown, .jp-RenderedMarkdown *"
# One server for all widgets of all lectures.
SET_UP = """
from pathlib import Path
from inflight import engine
from inflight.bench import workload
from inflight.models import gpt2_checkpoint
from inflight.lessons import batchers, batching, iterative_gpt2, kv_cache
from inflight.notebook import widgets
from inflight.triton import repository
from inflight.checkpoint import fetch
from inflight.engine import BuildConfig
from inflight.triton.serving.server import Server

engine_log, batch_log = Path("engine.log").absolute(), Path("batches.log").absolute()
checkpoint = fetch()
engine_dir = engine.cached(checkpoint, BuildConfig(max_input_len=512, max_seq_len=768))
repo = repository.assemble(
    "repository", engine_dir, (*repository.PIPELINE, repository.BATCH_COST, *repository.GPT2), decoupled_mode=True,
    iteration_log_path=engine_log, execution_log_path=batch_log,
    gpt2_checkpoint_dir=gpt2_checkpoint.find("course-gpt2"))
server = Server(repo).start()
guests = [workload.TimedRequest("Tell me a story.", 24, 0.0, 5)] * 4
"""
WIDGETS = {
    "choice": "choice = widgets.predict('Which?', ['this', 'that']); choice",
    "number": "number = widgets.predict('How many?'); number",
    "editor": "widgets.ConfigEditor(server, 'tensorrt_llm')",
    "playground": "widgets.Playground(server)",
    "batching": "batching.board(server, {'mild': guests, 'equal': guests}, 8, engine_log)",
    "policies": "kv_cache.board(server, guests, engine_log)",
    "batchers": "batchers.board(server, batch_log)",
    "race": "iterative_gpt2.board(server)",
}
WIDGET_NOTEBOOK = "widgets.ipynb"

__all__ = ["lab", "lectures"]  # the fixtures
pytestmark = [needs_chromium, pytest.mark.browser, pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def widgets_page(lab, browser):
    """The page of widgets after all of its cells have run, and what it asked of other hosts."""
    cells = [nbformat.v4.new_code_cell(source) for source in (SET_UP, *WIDGETS.values())]
    page, outside = open_page(browser, put(lab, WIDGET_NOTEBOOK, nbformat.v4.new_notebook(cells=cells)))
    run_all(page)
    yield page, outside
    page.close()


@pytest.fixture(scope="module")
def outputs(widgets_page):
    """What the page of widgets shows, by name."""
    assert_whole(*widgets_page)
    cells = widgets_page[0].locator(".jp-CodeCell")
    return {name: cells.nth(number).locator(".jp-OutputArea-output") for number, name in enumerate(WIDGETS, 1)}


@pytest.mark.parametrize("name", LECTURES)
def test_a_lecture_is_shown_whole_on_every_laptop(lectures, name):
    page, outside = lectures
    open_lecture(page, name)
    for size in SIZES:
        resized(page, *size)
        if size == min(SIZES):  # at 150 % the sidebar takes a third of the page: a reader closes it
            page.evaluate(COLLAPSE)
            resized(page, *size)
        assert_whole(page, outside)
    assert scrolling_sideways(page, CODE, own=".jp-RenderedMarkdown:has(pre)") == []  # shell scripts are wider
    page.evaluate(EXPAND)


@pytest.mark.parametrize(
    ("name", "first", "then", "titles"),
    [
        ("batching", "V1", "inflight_fused_batching", ("V1, mild", "inflight_fused_batching, mild")),
        ("policies", "max_utilization", "guaranteed_no_evict", ("max_utilization, 768", "guaranteed_no_evict, 768")),
        ("batchers", "all at once", "one every 60 ms", ("no batcher", "now: no batcher")),
        ("race", "simple-gpt2", "iterative-gpt2", ("simple-gpt2", "now: iterative-gpt2")),
    ],
)
def test_choose_run_and_the_picture_has_this_run_and_the_one_before(outputs, name, first, then, titles):
    board = outputs[name]
    run, stop = (board.get_by_role("button", name=words) for words in ("Run", "Stop"))
    for choice in (first, then):
        board.locator("select").first.select_option(choice)
        run.dblclick()  # the second click must do nothing
        expect(stop).to_be_enabled(timeout=60_000)
        expect(run).to_be_disabled()
        board.get_by_text("Done.").wait_for(timeout=120_000)
        expect(run).to_be_enabled()
    drawn = board.locator(".js-plotly-plot").text_content()
    assert f"before: {titles[0]}" in drawn and titles[1] in drawn
    screenshot(board, name)


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_every_widget_fits_in_both_themes(widgets_page, outputs, theme):
    """After all of them have been used: with their pictures, answers and changes."""
    page, outside = widgets_page
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_selector(f"[data-jp-theme-name='{theme}']", state="attached")
    for size in SIZES:
        resized(page, *size)
        assert_whole(page, outside)
