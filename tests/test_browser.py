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
RUN_TIMEOUT_MS = 240_000
KERNEL_IS_IDLE = """() => {
    const panel = window.jupyterapp?.shell.currentWidget;
    return panel?.context?.sessionContext?.session?.kernel?.status === 'idle';
}"""
ALL_HAVE_RUN = """() => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;
    return cells.every(cell => cell.cell_type !== 'code' || !cell.source.trim() || cell.execution_count !== null);
}"""

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


@pytest.mark.parametrize("name", LECTURES)
def test_lecture_runs_in_jupyterlab(lab, browser, name):
    page, outside = open_page(browser, lab.format(name=name))
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")  # its promise is not awaited
    page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_TIMEOUT_MS)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    texts = page.evaluate("""() => JSON.stringify(
        window.jupyterapp.shell.currentWidget.content.model.toJSON().cells.flatMap(cell => cell.outputs ?? []))""")
    assert '"output_type":"error"' not in texts
    seen = page.locator("body").inner_text()
    for defect in ("Error displaying widget", "model not found", "Javascript Error", "Loading widget..."):
        assert defect not in seen
    assert not outside, f"the page asked for {outside[0]}"
    page.close()
