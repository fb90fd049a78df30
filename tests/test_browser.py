"""Every lecture, run in JupyterLab in a real browser: what a learner sees, and what a stored notebook cannot show."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
LECTURES = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]
RUN_TIMEOUT_MS = 400_000
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.sessionContext?.session?.kernel?.status === 'idle';
}"""
ALL_HAVE_RUN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    return cells.every(cell => cell.cell_type !== 'code' || !cell.source.trim() || cell.execution_count !== null);
}"""

# A server and the dashboard of lesson 04, in a notebook of its own: the lecture's last cell stops its server.
BOARD = ["""
import tempfile
from pathlib import Path
from inflight import boards, engine, repository
from inflight.checkpoint import fetch
from inflight.server import Server
workdir = tempfile.TemporaryDirectory()
log_path, engine_dir = Path(workdir.name) / "log", engine.cached(fetch())
server = Server(repository.assemble(Path(workdir.name) / "repo", engine_dir, iteration_log_path=log_path)).start()
""", "boards.batching(server, engine_dir, log_path)"]
SCREENSHOTS = ROOT / "build" / "browser"

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to run the browser tests")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """URL of a JupyterLab on a copy of the lectures without outputs, with its token on."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "notebooks").mkdir()
    for name in LECTURES:
        notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, folder / "notebooks" / name)
    # With a lecture's metadata, which names its kernel: else JupyterLab asks for one.
    board = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, BOARD)), metadata=notebook.metadata)
    nbformat.write(board, folder / "notebooks" / "board.ipynb")
    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", f"--ServerApp.port={port}",
               "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={token}", "--LabApp.expose_app_in_browser=True",
               f"--ServerApp.root_dir={folder}"]
    log = open(folder / "jupyter.log", "w+")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "JUPYTER_CONFIG_DIR": str(folder)})
    yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{{name}}?token={token}&reset"
    process.terminate()
    process.wait(30)
    log.close()


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


def open_page(browser, url):
    """A page on `url`, as soon as the server is up, and the requests it makes to other hosts."""
    page, outside = browser.new_page(viewport={"width": 1200, "height": 1000}), []
    page.on("request", lambda request: outside.append(request.url)
            if not request.url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:")) else None)
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
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")  # its promise is not awaited
    page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_TIMEOUT_MS)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)


@pytest.mark.parametrize("name", LECTURES)
def test_lecture_runs_in_jupyterlab(lab, browser, name):
    page, outside = open_page(browser, lab.format(name=name))
    run_all(page)
    texts = page.evaluate("""() => JSON.stringify(
        window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.flatMap(cell => cell.outputs ?? []))""")
    assert '"output_type":"error"' not in texts
    seen = page.locator("body").inner_text()
    for defect in ("Error displaying widget", "model not found", "Javascript Error", "Loading widget..."):
        assert defect not in seen
    assert not outside, f"the page asked for {outside[0]}"
    page.close()


def test_flip_the_batching_type_run_and_the_picture_changes(lab, browser):
    page, _ = open_page(browser, lab.format(name="board.ipynb"))
    run_all(page)
    board = page.locator(".jp-OutputArea-output .widget-vbox")
    picture = board.locator("svg[role=img]")
    drop_downs, run, stop = board.locator("select"), board.get_by_role("button", name="Run"), board.get_by_role("button", name="Stop")
    seen = []
    for gpt_model_type in ("V1", "inflight_fused_batching"):
        drop_downs.nth(0).select_option(gpt_model_type)
        drop_downs.nth(1).select_option("mild")
        run.dblclick()  # the second click must do nothing
        board.get_by_text("Running").wait_for(timeout=10_000)
        assert run.is_disabled() and drop_downs.nth(0).is_disabled() and stop.is_enabled()
        board.get_by_text("Done.").wait_for(timeout=120_000)
        assert run.is_enabled() and stop.is_disabled()
        seen.append(picture.text_content())
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    board.screenshot(path=SCREENSHOTS / "batching.png")
    assert "V1, mild" in seen[0] and "before" not in seen[0]
    assert "before: V1, mild" in seen[1] and "inflight_fused_batching, mild" in seen[1]
    page.close()
