"""JupyterLab in a browser: each lecture as stored, and each kind of widget, by mouse and by keyboard alone.

Of the tests that are not slow, no other file has a JupyterLab: it is started once.
"""

import re

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.chromium import needs_chromium
from tests.browser.lab import (
    KERNEL_IS_IDLE,
    LECTURES,
    ROOT,
    RUN_TIMEOUT_MS,
    assert_whole,
    lab,
    open_page,
    put,
    run_all,
)  # fmt: skip
from tests.browser.page_fit import resized

# Another notebook in the place of the one that is open, whose kernel ends with it.
OPEN = """async path => {
    const { shell, commands } = window.jupyterapp;
    if (shell.currentWidget?.context?.path === path) return;
    const before = shell.currentWidget;
    await commands.execute('docmanager:open', { path });
    await before.context.sessionContext.ready;
    await before.context.sessionContext.shutdown();
    before.dispose();
}"""
ALL_IS_SHOWN = """([path, count]) => {
    const panel = window.jupyterapp.shell.currentWidget;
    const drawn = [...document.querySelectorAll('.jp-RenderedPlotly, .jp-OutputArea-output .js-plotly-plot')];
    return panel?.context?.path === path && document.querySelectorAll('.jp-OutputArea-output').length >= count
        && drawn.every(figure => figure.offsetHeight && figure.querySelector('.main-svg'));
}"""

__all__ = ["lab"]  # the fixtures
pytestmark = [needs_chromium, pytest.mark.browser]

NAME = "survivors.ipynb"
# A server that loads in a second, for models of engines would take the most of the time.
SET_UP = """
import itertools, tempfile, threading
from pathlib import Path
import ipywidgets
import plotly.graph_objects as go
from inflight.lessons import batchers, batching
from inflight.notebook.pages import progress, session
from inflight.notebook import widgets
from inflight.notebook.widgets.dashboard import Dashboard, Frame
from inflight.triton import Server, repository

workdir = tempfile.TemporaryDirectory()
log_path = Path(workdir.name) / "executions.jsonl"
repo = repository.assemble(
    Path(workdir.name) / "repo", models=("batch-cost",), execution_log_path=log_path)
with progress.wait("The server starts"):
    server = Server(repo).start()

def work(step):
    for number in itertools.count(0, step):
        yield Frame(go.Figure(go.Bar(y=[number])), f"Frame {number}.")
        threading.Event().wait(0.5)
"""
CELLS = {
    "set_up": SET_UP,
    "choice": "choice = widgets.predict('Which of them?', ['this', 'that', 'neither: ' + 12 * 'long ']); choice",
    "number": "number = widgets.predict('How many of them?'); number",
    "explorable": "batching.simulated_slots([8, 8, 64, 16, 8], 2)",
    "endless": "Dashboard({'step': ipywidgets.IntSlider(1, 1, 9, description='step')}, work, label='Endless')",
    "board": "batchers.board(server, log_path)",
    "editor": "widgets.ConfigEditor(server, 'batch-cost', ['max_batch_size', 'item_ms'])",
    "playground": "widgets.Playground(server)",
    "running": "session.running()",
    "stop": "server.stop()",
}
WIDGETS = CELLS.keys() - {"set_up", "running", "stop"}
CONTROLS = "button|checkbox|combobox|listbox|radio|slider|spinbutton|textbox"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
NUM_CELLS = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
FILTERS = "selector => [...document.querySelectorAll(selector)].map(picture => getComputedStyle(picture).filter)"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"


# Lectures -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lectures(lab, browser):
    """One page of JupyterLab for all lectures, and what it asked of other hosts."""
    page, outside = open_page(browser, lab.format(name=LECTURES[0]))
    yield page, outside
    page.close()


def open_lecture(page, name):
    """Show the stored notebook, with all of its outputs, and nothing else."""
    stored = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    num_outputs = sum(len(cell.get("outputs", [])) for cell in stored.cells)
    page.evaluate(OPEN, f"notebooks/{name}")
    page.wait_for_function(ALL_IS_SHOWN, arg=[f"notebooks/{name}", num_outputs], timeout=RUN_TIMEOUT_MS)


@pytest.mark.parametrize("name", LECTURES)
def test_a_lecture_is_shown_whole(lectures, name):
    page, outside = lectures
    open_lecture(page, name)
    assert_whole(page, outside)


def assert_follows_the_theme(page, pictures):
    """In a dark theme a picture's light and dark change places: it is drawn on white."""
    for theme, filtered in (("JupyterLab Dark", True), ("JupyterLab Light", False)):
        page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
        page.wait_for_selector(f"[data-jp-theme-name='{theme}']", state="attached")
        filters = page.evaluate(FILTERS, pictures)
        assert filters and {filtered} == {filter.startswith("invert(") for filter in filters}


def test_a_stored_picture_follows_a_dark_theme(lectures):
    page, _ = lectures
    open_lecture(page, "04_batching.ipynb")
    assert_follows_the_theme(page, ".jp-RenderedPlotly")


# Widgets --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebook(lab):
    """URL of a notebook of widgets, as a lesson has them."""
    return put(lab, NAME, nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS.values()))))


@pytest.fixture(scope="module")
def page(notebook, browser):
    page, _ = open_page(browser, notebook)
    run_all(page)
    yield page
    page.close()


@pytest.fixture(scope="module")
def outputs(page):
    """What each cell shows."""
    cells = page.locator(".jp-CodeCell")
    return {name: cells.nth(number).locator(".jp-OutputArea-output") for number, name in enumerate(CELLS)}


@pytest.mark.server
def test_every_control_is_named_for_a_screen_reader(outputs):
    for name in WIDGETS:
        said = outputs[name].last.aria_snapshot()
        controls = re.findall(rf"- (?:{CONTROLS})\b.*", said)
        assert controls, said
        assert [control for control in controls if '"' not in control] == [], f"{name}: {said}"


@pytest.mark.server
def test_a_choice_is_made_by_keyboard_and_the_notebook_stays_as_it_is(page, outputs):
    choice = outputs["choice"].get_by_role("group", name="Which of them?")
    choice.get_by_role("radio", name="this").focus()
    page.keyboard.press("Space")
    cell, count = page.evaluate(ACTIVE_CELL), page.evaluate(NUM_CELLS)
    page.keyboard.press("ArrowDown")
    expect(choice.get_by_role("radio", name="that")).to_be_checked(timeout=60_000)
    for _ in range(2):
        page.keyboard.press("d")
    assert page.evaluate(ACTIVE_CELL) == cell and page.evaluate(NUM_CELLS) == count


@pytest.mark.server
def test_on_a_phone_an_option_has_its_lines_and_a_control_its_room(page, outputs):
    before = page.viewport_size
    page.evaluate("() => window.jupyterapp.shell.collapseLeft()")
    resized(page, 390, 844)
    options = outputs["choice"].locator(".widget-radio-box label")
    taken, needed = options.evaluate_all("all => [all.map(one => one.clientHeight), all.map(one => one.scrollHeight)]")
    assert taken == needed and taken[2] > taken[0]
    assert outputs["board"].get_by_role("combobox").first.bounding_box()["width"] > 80
    page.evaluate("() => window.jupyterapp.shell.expandLeft()")
    resized(page, before["width"], before["height"])


@pytest.mark.server
def test_a_number_is_given_by_keyboard_and_read(page, outputs):
    number = outputs["number"]
    number.get_by_role("textbox").focus()
    page.keyboard.type("fourteen")
    page.keyboard.press("Enter")
    number.get_by_text("That is not a number.").wait_for(timeout=60_000)


@pytest.mark.server
def test_a_slider_and_a_button_are_used_by_keyboard(page, outputs):
    endless = outputs["endless"]
    slider = endless.get_by_role("slider", name="step")
    slider.focus()
    cell = page.evaluate(ACTIVE_CELL)
    page.keyboard.press("ArrowUp")
    assert slider.get_attribute("aria-valuenow") == "2.0" and page.evaluate(ACTIVE_CELL) == cell
    endless.get_by_role("button", name="Run").focus()
    page.keyboard.press("Enter")
    endless.get_by_text("Running").wait_for(timeout=60_000)
    endless.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")
    endless.get_by_text("Stopped.").wait_for(timeout=60_000)


@pytest.mark.server
def test_a_picture_follows_the_keys_and_the_notebook_stays_as_it_is(page, outputs):
    picture = outputs["explorable"]
    slider = picture.get_by_role("slider", name="slots (max_batch_size)")
    slider.focus()
    cell, count = page.evaluate(ACTIVE_CELL), page.evaluate(NUM_CELLS)
    for key in ("ArrowDown", "d", "d"):
        page.keyboard.press(key)
    picture.get_by_text("On paper 104 iterations").wait_for(timeout=60_000)
    assert page.evaluate(ACTIVE_CELL) == cell and page.evaluate(NUM_CELLS) == count


@pytest.mark.server
def test_a_live_picture_follows_a_dark_theme(page, outputs):
    expect(outputs["explorable"].locator(".inflight-figure")).to_be_visible(timeout=60_000)
    assert_follows_the_theme(page, ".inflight-figure")


@pytest.mark.server
def test_a_server_that_was_stopped_is_started_again_by_run(outputs):
    assert "A server runs with batch-cost. It ends with this kernel" in outputs["running"].inner_text()
    outputs["board"].get_by_role("button", name="Run").click()
    outputs["board"].get_by_text("Done.").wait_for(timeout=60_000)


@pytest.mark.server
def test_after_the_tab_was_closed_and_opened_every_widget_works(page, outputs, notebook):
    page.evaluate(SAVE)
    page.goto("about:blank")
    page.goto(notebook)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    endless = outputs["endless"]
    endless.get_by_role("button", name="Run").click(timeout=60_000)
    endless.get_by_text("Running").wait_for(timeout=60_000)
    endless.get_by_role("button", name="Stop").click()
    endless.get_by_text("Stopped.").wait_for(timeout=60_000)
    editor = outputs["editor"]
    editor.get_by_role("textbox", name="item_ms").fill("5")
    editor.get_by_role("button", name="Apply").click()
    editor.get_by_text("The server has loaded batch-cost again.").wait_for(timeout=60_000)
    outputs["board"].get_by_role("button", name="Run").click()
    outputs["board"].get_by_text("Done.").wait_for(timeout=60_000)
    for name in ("endless", "board"):
        expect(outputs[name].locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=60_000)
    assert "Error displaying widget" not in page.locator("body").inner_text()


@pytest.mark.server
def test_when_the_kernel_was_restarted_every_widget_says_so(page, outputs):
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()")
    page.wait_for_function("() => document.querySelector('.inflight-panel.jupyter-widgets-disconnected')")
    for name in WIDGETS:
        panel = outputs[name].locator(".inflight-panel")
        expect(panel).to_have_class(re.compile("jupyter-widgets-disconnected"), timeout=60_000)
        said = panel.evaluate("panel => getComputedStyle(panel, '::before').content")
        assert "Run All Above Selected Cell" in said, name
