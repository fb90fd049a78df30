"""Widgets in a real JupyterLab: alive after Run All and after the tab was closed, by mouse and by keyboard alone."""

import re
from urllib.parse import parse_qs, urlsplit

import httpx
import nbformat
import pytest
from playwright.sync_api import expect

from tests.test_browser import (
    CHROMIUM,
    KERNEL_IS_IDLE,
    LECTURES,
    ROOT,
    browser,
    lab,
    open_page,
    run_all,
    screenshot,
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to run the browser tests")
__all__ = ["browser", "lab"]  # the fixtures

NAME = "survivors.ipynb"
# A server that loads in a second, for models of engines would take the most of the time.
SET_UP = """
import itertools, tempfile, threading
from pathlib import Path
import ipywidgets
import plotly.graph_objects as go
from inflight.notebook import boards, explorables, progress, session, widgets
from inflight.notebook.dashboard import Dashboard, Frame
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
    "choice": "choice = widgets.predict('Which of them?', ['this', 'that', 'neither']); choice",
    "number": "number = widgets.predict('How many of them?'); number",
    "explorable": "explorables.slots_on_paper([8, 8, 64, 16, 8], 2)",
    "endless": "Dashboard({'step': ipywidgets.IntSlider(1, 1, 9, description='step')}, work, label='Endless')",
    "board": "boards.batchers(server, log_path)",
    "editor": "widgets.ConfigEditor(repo, 'batch-cost', server, ['max_batch_size', 'item_ms'])",
    "playground": "widgets.Playground(server)",
    "score": "print(choice.score('that'), '|', number.score(7))",
    "running": "session.running()",
}
WITH_SERVER = ("board", "editor", "playground")
CONTROLS = "button|checkbox|combobox|listbox|radio|slider|spinbutton|textbox"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
NUM_CELLS = "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"


@pytest.fixture(scope="module")
def notebook(lab):
    """URL of a notebook of widgets, as a lesson has them."""
    address = urlsplit(lab)
    token = parse_qs(address.query, keep_blank_values=True)["token"][0]
    lecture = nbformat.read(ROOT / "notebooks" / LECTURES[0], as_version=4)
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    content = nbformat.v4.new_notebook(cells=cells, metadata=lecture.metadata)
    transport = httpx.HTTPTransport(retries=20)
    with httpx.Client(transport=transport, timeout=60) as client:
        client.put(
            f"{address.scheme}://{address.netloc}/api/contents/notebooks/{NAME}",
            headers={"Authorization": f"token {token}"},
            json={"type": "notebook", "content": content},
        ).raise_for_status()
    return lab.format(name=NAME)


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


def test_every_control_is_named_for_a_screen_reader(outputs):
    for name in CELLS.keys() - {"set_up", "score"}:
        said = outputs[name].last.aria_snapshot()
        controls = re.findall(rf"- (?:{CONTROLS})\b.*", said)
        assert controls, said
        assert [control for control in controls if '"' not in control] == [], f"{name}: {said}"


def test_a_control_is_found_by_what_it_is_called(outputs):
    assert outputs["choice"].get_by_role("group", name="Which of them?").count() == 1
    assert not any(radio.is_checked() for radio in outputs["choice"].get_by_role("radio").all())
    assert outputs["number"].get_by_role("textbox", name="How many of them?").input_value() == ""
    assert outputs["number"].get_by_placeholder("a number").count() == 1
    assert outputs["editor"].get_by_role("textbox", name="max_batch_size").count() == 1
    assert outputs["playground"].get_by_role("slider", name="Temperature").count() == 1
    assert outputs["playground"].get_by_role("textbox", name="Prompt").count() == 1
    assert outputs["board"].get_by_role("combobox", name="arrivals").count() == 1
    assert outputs["running"].get_by_role("button", name="Stop now").count() == 1


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
    choice.get_by_text("Your prediction, that, is right. It was made after the measurement.").wait_for(timeout=60_000)


def test_a_number_is_given_by_keyboard_and_scored(page, outputs):
    number = outputs["number"]
    number.get_by_role("textbox").focus()
    page.keyboard.type("14")
    page.keyboard.press("Enter")
    number.get_by_text("Your prediction: 14. It is 7, 2 times less.").wait_for(timeout=60_000)


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


def test_a_picture_follows_the_keys_and_the_notebook_stays_as_it_is(page, outputs):
    picture = outputs["explorable"]
    slider = picture.get_by_role("slider", name="slots (max_batch_size)")
    slider.focus()
    cell, count = page.evaluate(ACTIVE_CELL), page.evaluate(NUM_CELLS)
    for key in ("ArrowDown", "d", "d"):
        page.keyboard.press(key)
    picture.get_by_text("On paper 104 iterations").wait_for(timeout=60_000)
    assert page.evaluate(ACTIVE_CELL) == cell and page.evaluate(NUM_CELLS) == count


def test_the_square_of_the_toolbar_stops_a_run_while_the_kernel_is_idle(page, outputs):
    endless = outputs["endless"]
    endless.get_by_role("button", name="Run").click()
    endless.get_by_text("Running").wait_for(timeout=60_000)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.wait_for_timeout(1000)  # a learner's hand, too, takes a moment to the toolbar
    page.get_by_role("button", name="Interrupt the kernel").first.click()
    endless.get_by_text("Stopped.").wait_for(timeout=60_000)


def test_after_run_all_every_widget_works_or_offers_to_start_its_server_again(page, outputs):
    running = outputs["running"]
    assert "A server runs with batch-cost. It belongs to this notebook" in running.inner_text()
    running.get_by_role("button", name="Stop now").click()
    running.get_by_text("No server of this notebook runs.").wait_for(timeout=60_000)
    for name in WITH_SERVER:
        outputs[name].get_by_role("button", name="Start it again").wait_for(timeout=60_000)
        assert outputs[name].get_by_role("button").count() == 1
        assert "inflight" not in outputs[name].inner_text()
    screenshot(outputs["board"].last, "gone")
    outputs["board"].get_by_role("button", name="Start it again").click()
    for name in WITH_SERVER:
        outputs[name].get_by_role("button", name="Start it again").wait_for(state="hidden", timeout=60_000)
    outputs["board"].get_by_role("button", name="Run").click()
    outputs["board"].get_by_text("Done.").wait_for(timeout=60_000)


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
    assert "Error displaying widget" not in page.locator("body").inner_text()
