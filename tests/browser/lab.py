"""One JupyterLab, and one browser, for all tests of a worker that look at it: its fixtures are imported by name."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from urllib.parse import parse_qs, urlsplit

import httpx
import nbformat
import pytest
from playwright.sync_api import expect

from inflight.notebook.pages import workspace
from inflight.paths import COURSE as ROOT
from inflight.triton.serving import process
from tests.browser.page_fit import scrolling_sideways
from tests.engines import wait_until

LECTURES = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
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
# JupyterLab shows a notebook before it has put its own parts in place; the sidebar that comes then takes room from it.
ALL_IS_BEGUN = "async () => { await window.jupyterapp.restored; await document.fonts.ready; }"
EVERYTHING = ".jp-Notebook, .jp-WindowedPanel-outer, .jp-OutputArea-output, .jp-OutputArea-output *:not(svg *)"
# What is printed and may break inside a word where there is room for the word on the next line.
BROKEN = """() => [...document.querySelectorAll('.jp-OutputArea-output.jp-RenderedText pre')]
    .filter(text => getComputedStyle(text).wordBreak !== 'normal').map(text => text.innerText.slice(0, 60))"""
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.model.toJSON().cells
    .flatMap(cell => cell.outputs ?? []).filter(output => output.output_type === 'error')"""
SCREENSHOTS = ROOT / "build" / "browser"


def answers(server: subprocess.Popen, port: int) -> bool:
    """A browser that is refused shows a page of its own, which the next try may meet."""
    assert server.poll() is None, f"JupyterLab ended with {server.returncode} before it answered"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """URL of a JupyterLab on a copy of the lectures, with its token on."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    for name, settings in SETTINGS.items():
        file = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(settings)
    [port], token = process.free_ports({"http": None}).values(), secrets.token_hex(16)
    arguments = [
        "--no-browser",
        f"--ServerApp.port={port}",
        f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.custom_css=True",
        f"--LabApp.user_settings_dir={folder / 'settings'}",
    ]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder)}
    with open(folder / "jupyter.log", "w") as log:
        server = subprocess.Popen(
            workspace.lab_command(folder, arguments), stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        wait_until(lambda: answers(server, port), "JupyterLab answers")
        yield f"http://127.0.0.1:{port}/lab/tree/notebooks/{{name}}?token={token}&reset"
        server.terminate()
        server.wait(30)


def open_page(browser, url):
    """A page on `url`, and the requests it makes to other hosts."""
    page, outside = browser.new_page(viewport=SMALL_LAPTOP), []
    is_own = lambda url: url.startswith(("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:"))
    page.on("request", lambda request: None if is_own(request.url) else outside.append(request.url))
    page.set_default_timeout(RUN_TIMEOUT_MS)
    page.goto(url)
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.evaluate(ALL_IS_BEGUN)
    return page, outside


def run_all(page):
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)
    # In braces, so that its promise is not awaited.
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_TIMEOUT_MS)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=60_000)


def put(lab, name, notebook):
    """Add a notebook to the lectures; its URL. With a lecture's metadata, which names its kernel: else one is asked."""
    address = urlsplit(lab)
    token = parse_qs(address.query, keep_blank_values=True)["token"][0]
    notebook.metadata = nbformat.read(ROOT / "notebooks" / LECTURES[0], as_version=4).metadata
    httpx.put(
        f"{address.scheme}://{address.netloc}/api/contents/notebooks/{name}",
        headers={"Authorization": f"token {token}"},
        json={"type": "notebook", "content": notebook},
        timeout=60,
    ).raise_for_status()
    return lab.format(name=name)


def assert_whole(page, outside):
    """Nothing is missing on the page, nothing cut off, and nothing came from another host."""
    body = page.locator("body")
    expect(body).not_to_contain_text("Loading widget...", timeout=60_000)
    for defect in ("Error displaying widget", "Javascript Error"):
        expect(body).not_to_contain_text(defect)
    assert page.evaluate(ERRORS) == [] and page.evaluate(BROKEN) == []
    assert scrolling_sideways(page, EVERYTHING, own="input, textarea") == []  # what is typed may be longer
    assert not outside, f"the page asked for {outside[0]}"


def screenshot(output, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    output.screenshot(path=SCREENSHOTS / f"{name}.png")
