"""JupyterLab in a real browser: every lecture as it is stored, and every widget in use, which none of them shows."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys

import nbformat
import pytest
from playwright.sync_api import sync_playwright

from inflight.paths import COURSE

ROOT = COURSE
LECTURES = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--proxy-server=127.0.0.1:9",  # a closed port: it shall not ask its maker for updates
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Cells that are not on the screen are drawn too, and nothing asks whether there may be news, over the picture.
SETTINGS = {
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
}
SMALL_LAPTOP = {"width": 1366, "height": 1000}
RUN_TIMEOUT_MS = 120_000
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.sessionContext?.session?.kernel?.status === 'idle';
}"""
ALL_HAVE_RUN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    return cells.every(cell => cell.cell_type !== 'code' || !cell.source.trim() || cell.execution_count !== null);
}"""
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .flatMap(cell => cell.outputs ?? []).filter(output => output.output_type === 'error')"""
# What is wider than its place, of which a part is hidden until one scrolls.
TOO_WIDE = """() => [...document.querySelectorAll('.jp-OutputArea-output')]
    .map(output => ({by: output.scrollWidth - output.clientWidth, text: output.textContent.slice(0, 80)}))
    .filter(output => output.by > 1)"""

# One server for all widgets of all lectures.
SET_UP = """
from pathlib import Path
from inflight import engine
from inflight.bench import workload
from inflight.models import gpt2_checkpoint
from inflight.notebook import boards, widgets
from inflight.triton import repository
from inflight.checkpoint import fetch
from inflight.engine import BuildConfig
from inflight.triton.server import Server
from inflight.engine.sizing import Sizing
from inflight.checkpoint.weights import GgufFile

engine_log, batch_log = Path("engine.log").absolute(), Path("batches.log").absolute()
checkpoint = fetch()
engine_dir = engine.cached(checkpoint, BuildConfig(max_input_len=512, max_seq_len=1024))
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
    "told": "print(number.value and f'chosen {choice.value}, given {number.value:g}')",
    "options": "widgets.BuildOptions("
    "Sizing(GgufFile(checkpoint.path), engine.read(engine_dir).pretrained_config), 4e9)",
    "editor": "widgets.ConfigEditor(repo, 'tensorrt_llm', server)",
    "playground": "widgets.Playground(server)",
    "batching": "boards.batching(server, engine_dir, engine_log)",
    "policies": "boards.policies(server, guests, engine_log)",
    "batchers": "boards.batchers(server, batch_log)",
    "race": "boards.race(server)",
}
WIDGET_NOTEBOOK = "widgets.ipynb"
SCREENSHOTS = ROOT / "build" / "browser"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to run the browser tests")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """URL of a JupyterLab on a copy of the lectures and a notebook of widgets, with its token on."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    lecture = nbformat.read(folder / "notebooks" / LECTURES[0], as_version=4)
    # With a lecture's metadata, which names its kernel: else JupyterLab asks for one.
    cells = [nbformat.v4.new_code_cell(source) for source in (SET_UP, *WIDGETS.values())]
    nbformat.write(
        nbformat.v4.new_notebook(cells=cells, metadata=lecture.metadata), folder / "notebooks" / WIDGET_NOTEBOOK
    )
    for name, settings in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(settings)
    port, token = free_port(), secrets.token_hex(16)
    command = [
        sys.executable,
        "-m",
        "jupyter",
        "lab",
        "--no-browser",
        "--allow-root",
        f"--ServerApp.port={port}",
        "--ServerApp.ip=127.0.0.1",
        f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",
        f"--ServerApp.root_dir={folder}",
        f"--LabApp.user_settings_dir={folder / 'settings'}",
    ]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder)}
    with open(folder / "jupyter.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{{name}}?token={token}&reset"
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def open_page(browser, url):
    """A page on `url`, as soon as the server is up, and the requests it makes to other hosts."""
    page, outside = browser.new_page(viewport=SMALL_LAPTOP), []
    page.on(
        "request",
        lambda request: (
            outside.append(request.url)
            if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))
            else None
        ),
    )
    for _ in range(120):
        try:
            page.goto(url)
            break
        except Exception as error:  # Playwright has one class for all; a refused connection is what is waited out
            if "ERR_CONNECTION_REFUSED" not in str(error):
                raise
            page.wait_for_timeout(250)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    return page, outside


def run_all(page):
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.evaluate(
        "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
    )  # its promise is not awaited
    page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_TIMEOUT_MS)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)


@pytest.fixture(scope="module")
def outputs(lab, browser):
    """What the page of widgets shows, by name, after all of its cells have run."""
    page, outside = open_page(browser, lab.format(name=WIDGET_NOTEBOOK))
    run_all(page)
    assert_whole(page, outside)
    cells = page.locator(".jp-CodeCell")
    yield {name: cells.nth(number).locator(".jp-OutputArea-output") for number, name in enumerate(WIDGETS, 1)}
    page.close()


def assert_whole(page, outside):
    """Nothing is missing on the page, nothing cut off, and nothing came from another host."""
    seen = page.locator("body").inner_text()
    for defect in ("Error displaying widget", "model not found", "Javascript Error", "Loading widget..."):
        assert defect not in seen
    assert page.evaluate(ERRORS) == []
    assert page.evaluate(TOO_WIDE) == []
    assert not outside, f"the page asked for {outside[0]}"


def run_board(board):
    """Press its Run; return when it is done."""
    run, stop = (board.get_by_role("button", name=name) for name in ("Run", "Stop"))
    control = board.locator("select, input").first
    run.dblclick()  # the second click must do nothing
    board.get_by_text("Running").wait_for(timeout=60_000)
    assert run.is_disabled() and control.is_disabled() and stop.is_enabled()
    board.get_by_text("Done.").wait_for(timeout=120_000)
    assert run.is_enabled() and stop.is_disabled()


def screenshot(output, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    output.screenshot(path=SCREENSHOTS / f"{name}.png")


# Lectures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LECTURES)
def test_a_lecture_is_shown_whole(lab, browser, name):
    page, outside = open_page(browser, lab.format(name=name))
    stored = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells
    num_outputs = sum(len(cell.get("outputs", [])) for cell in stored)
    page.wait_for_function(
        f"document.querySelectorAll('.jp-OutputArea-output').length >= {num_outputs}", timeout=60_000
    )
    assert_whole(page, outside)
    page.close()


# Widgets --------------------------------------------------------------------------------------------------------------


def test_every_widget_of_the_lectures_is_used_here():
    call = re.compile(r"\b(?:widgets|boards)\.\w+(?=\()")
    lectures = {
        name for path in (ROOT / "lessons").glob("*/lecture.py") for name in call.findall(path.read_text("utf-8"))
    }
    assert lectures and lectures <= set(call.findall("\n".join(WIDGETS.values())))


def test_predict_and_the_notebook_knows(outputs):
    outputs["choice"].get_by_label("that").check()
    outputs["number"].locator("input").fill("7")
    outputs["number"].locator("input").press("Enter")
    told = outputs["told"]
    told.click()
    told.page.keyboard.press("Control+Enter")
    told.get_by_text("chosen that, given 7").wait_for(timeout=60_000)


def test_change_a_build_option_and_read_why_it_is_refused(outputs):
    options = outputs["options"]
    options.get_by_label("quant_algo", exact=True).select_option("W8A8")
    options.get_by_text("the engines here have").wait_for(timeout=60_000)
    screenshot(options, "options")


def test_edit_the_config_and_the_server_loads_it(outputs):
    editor = outputs["editor"]
    policy = editor.locator(".widget-hbox", has_text="batch_scheduler_policy").locator("select")
    policy.select_option("max_utilization")
    editor.get_by_text('+    string_value: "max_utilization"').wait_for(timeout=60_000)
    editor.get_by_role("button", name="Apply").click()
    editor.get_by_text("The server has loaded tensorrt_llm again.").wait_for(timeout=60_000)
    editor.get_by_role("button", name="Undo").click()
    editor.get_by_text("Undone.").wait_for(timeout=60_000)
    assert policy.input_value() != "max_utilization"
    screenshot(editor, "editor")


def test_ask_and_the_answer_appears(outputs):
    playground = outputs["playground"]
    playground.get_by_role("button", name="Run").click()
    playground.get_by_text("Done.").wait_for(timeout=60_000)
    assert len(playground.locator("[aria-live=polite]").inner_text()) > 100
    screenshot(playground, "playground")


def test_flip_the_batching_type_run_and_the_picture_changes(outputs):
    board, seen = outputs["batching"], []
    drop_downs = board.locator("select")
    for gpt_model_type in ("V1", "inflight_fused_batching"):
        drop_downs.nth(0).select_option(gpt_model_type)
        drop_downs.nth(1).select_option("mild")
        run_board(board)
        seen.append(board.locator(".js-plotly-plot").text_content())
    screenshot(board, "batching")
    assert "V1, mild" in seen[0] and "before" not in seen[0]
    assert "before: V1, mild" in seen[1] and "inflight_fused_batching, mild" in seen[1]


@pytest.mark.parametrize(
    "name, shown", [("policies", "max_utilization, 1,280 tokens"), ("batchers", "now: no batcher")]
)
def test_run_and_see_the_picture(outputs, name, shown):
    run_board(outputs[name])
    assert shown in outputs[name].locator(".js-plotly-plot").text_content()
    screenshot(outputs[name], name)


def test_race_and_every_lane_has_its_text(outputs):
    board = outputs["race"]
    board.locator("select").select_option("iterative-gpt2")
    run_board(board)
    lanes = board.locator(".widget-hbox", has=board.page.locator(".progress-bar")).all()
    assert [lane.locator(".progress-bar").evaluate("bar => bar.style.width") for lane in lanes] == ["100%", "100%"]
    assert all(len(lane.locator("b").inner_text()) > 50 for lane in lanes)
    screenshot(board, "race")
