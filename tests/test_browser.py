"""JupyterLab in a real browser: every lecture as it is stored, and every widget in use, which none of them shows."""

import contextlib
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time

import nbformat
import pytest
from playwright.sync_api import expect

from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from inflight.paths import COURSE
from tests.browser import ARGUMENTS, CHROMIUM, chromium, needs_chromium  # noqa: F401
from tests.notebook.chart_samples import FIGURES
from tests.page_fit import faults_of_pictures, resized, scrolling_sideways, too_pale

ROOT = COURSE
LECTURES = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
# Cells that are not on the screen are drawn too, and nothing asks whether there may be news, over the picture.
SETTINGS = {
    "notebook-extension/tracker": '{"windowingMode": "none"}',
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',
}
SMALL_LAPTOP = {"width": 1366, "height": 1000}
# Of a window, in CSS pixels: a small laptop, an older one, and the first at 150 %.
SIZES = [(1366, 768), (1024, 768), (911, 512)]
RUN_TIMEOUT_MS = 120_000
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.sessionContext?.session?.kernel?.status === 'idle';
}"""
ALL_HAVE_RUN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    return cells.every(cell => cell.cell_type !== 'code' || !cell.source.trim() || cell.execution_count !== null);
}"""
# JupyterLab shows a notebook before it has put its own parts in place; the sidebar that comes then takes room from it.
ALL_IS_BEGUN = "async () => { await window.jupyterapp.restored; await document.fonts.ready; }"
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
COLLAPSE, EXPAND = (f"() => window.jupyterapp.shell.{what}Left()" for what in ("collapse", "expand"))
# Lines of code are not broken: they have the room when the sidebar is closed.
CODE = ".cm-scroller, .jp-RenderedMarkdown, .jp-RenderedMarkdown *"
EVERYTHING = ".jp-Notebook, .jp-WindowedPanel-outer, .jp-OutputArea-output, .jp-OutputArea-output *:not(svg *)"
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .flatMap(cell => cell.outputs ?? []).filter(output => output.output_type === 'error')"""
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
WIDGET_NOTEBOOK, PICTURES = "widgets.ipynb", "pictures.ipynb"
SCREENSHOTS = ROOT / "build" / "browser"

pytestmark = needs_chromium


def notebook_of_pictures():
    """Every picture of the course, on made-up data, in the look that it has now."""
    cells = []
    for name, figure in FIGURES.items():
        output = nbformat.v4.new_output("display_data", {PLOTLY_MIME: in_course_look(figure), "text/plain": name})
        cells.append(nbformat.v4.new_code_cell(f"# {name}", outputs=[output]))
    return nbformat.v4.new_notebook(cells=cells, metadata=nbformat.read(ROOT / "notebooks" / LECTURES[0], 4).metadata)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(process: subprocess.Popen, port: int) -> None:
    """Until the server answers: a browser that is refused shows a page of its own, which the next try may meet."""
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    pytest.fail(f"JupyterLab ended with {process.returncode} before it answered")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """URL of a JupyterLab on a copy of the lectures and a notebook of widgets, with its token on."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    nbformat.write(notebook_of_pictures(), folder / "notebooks" / PICTURES)
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
        wait_for(process, port)
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{{name}}?token={token}&reset"
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def open_page(browser, url):
    """A page on `url`, and the requests it makes to other hosts."""
    page, outside = browser.new_page(viewport=SMALL_LAPTOP), []
    page.on(
        "request",
        lambda request: (
            outside.append(request.url)
            if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))
            else None
        ),
    )
    page.set_default_timeout(RUN_TIMEOUT_MS)
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.evaluate(ALL_IS_BEGUN)
    return page, outside


def run_all(page):
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.evaluate(
        "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
    )  # its promise is not awaited
    page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_TIMEOUT_MS)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)


@pytest.fixture(scope="module")
def widgets_page(lab, browser):
    """The page of widgets after all of its cells have run, and what it asked of other hosts."""
    page, outside = open_page(browser, lab.format(name=WIDGET_NOTEBOOK))
    run_all(page)
    yield page, outside
    page.close()


@pytest.fixture(scope="module")
def outputs(widgets_page):
    """What the page of widgets shows, by name."""
    assert_whole(*widgets_page)
    cells = widgets_page[0].locator(".jp-CodeCell")
    return {name: cells.nth(number).locator(".jp-OutputArea-output") for number, name in enumerate(WIDGETS, 1)}


def assert_whole(page, outside):
    """Nothing is missing on the page, nothing cut off, and nothing came from another host."""
    body = page.locator("body")
    expect(body).not_to_contain_text("Loading widget...", timeout=60_000)
    for defect in ("Error displaying widget", "Javascript Error"):
        expect(body).not_to_contain_text(defect)
    assert page.evaluate(ERRORS) == []
    assert scrolling_sideways(page, EVERYTHING, own="input, textarea") == []  # what is typed may be longer
    assert faults_of_pictures(page) == []
    assert not outside, f"the page asked for {outside[0]}"


def run_board(board):
    """Press its Run; return when it is done."""
    run, stop = (board.get_by_role("button", name=name) for name in ("Run", "Stop"))
    control = board.locator("select, input").first
    run.dblclick()  # the second click must do nothing
    expect(stop).to_be_enabled(timeout=60_000)
    expect(run).to_be_disabled()
    expect(control).to_be_disabled()
    board.get_by_text("Done.").wait_for(timeout=120_000)
    expect(run).to_be_enabled()
    expect(stop).to_be_disabled()


def screenshot(output, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    output.screenshot(path=SCREENSHOTS / f"{name}.png")


# Lectures -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lectures(lab, browser):
    """One page of JupyterLab for all lectures, and what it asked of other hosts."""
    page, outside = open_page(browser, lab.format(name=LECTURES[0]))
    yield page, outside
    page.close()


def open_lecture(page, name):
    """Show the stored notebook, with all of its outputs, and nothing else."""
    stored = notebook_of_pictures() if name == PICTURES else nbformat.read(ROOT / "notebooks" / name, as_version=4)
    num_outputs = sum(len(cell.get("outputs", [])) for cell in stored.cells)
    page.evaluate(OPEN, f"notebooks/{name}")
    page.wait_for_function(ALL_IS_SHOWN, arg=[f"notebooks/{name}", num_outputs], timeout=RUN_TIMEOUT_MS)


@pytest.mark.parametrize("name", [*LECTURES, PICTURES])
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


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_every_widget_fits_and_can_be_read_in_both_themes(widgets_page, outputs, theme):
    """After all of them have been used: with their pictures, answers and changes."""
    page, outside = widgets_page
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_selector(f"[data-jp-theme-name='{theme}']", state="attached")
    for size in SIZES:
        resized(page, *size)
        assert_whole(page, outside)
    assert too_pale(page, ".jp-OutputArea-output .widget-html-content *") == []


def test_a_live_picture_is_as_wide_as_its_cell(widgets_page, outputs):
    page, _ = widgets_page
    for size in (*SIZES, SIZES[0]):
        resized(page, *size)
        for figure in page.locator(".inflight-figure").all():
            drawn, room = figure.locator(".main-svg").first.bounding_box(), figure.bounding_box()
            assert room["width"] - 20 <= drawn["width"] <= room["width"]
