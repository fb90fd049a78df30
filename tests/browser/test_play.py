"""Play in a real browser: a file is run in WebAssembly, drawn, and judged by its lab's check.

`make play` makes the pages.
"""

import re

import pytest
from playwright.sync_api import expect

from inflight.paths import COURSE
from tests.browser.chromium import needs_chromium, served
from tests.lessons.answers import written
from tests.tools import test_play
from tests.tools.test_play import FILES, TRACES, slots

PLAY = COURSE / "build" / "site" / "play"
ENDLESS = "class Scheduler:\n    def schedule(self, now):\n        while True:\n            pass\n"
ask = test_play.ask
LATE_MS = 120_000  # Python is loaded, on a machine that does other things, too

pytestmark = [
    needs_chromium,
    pytest.mark.browser,
    pytest.mark.skipif(not PLAY.exists(), reason=f"no pages in {PLAY}: `make play` makes them"),
]


@pytest.fixture(scope="module")
def address():
    with served(PLAY.parent) as address:
        yield address


@pytest.fixture(scope="module")
def page(address, browser):
    """A page of a browser; in the end it has asked nobody else for anything, and no script has failed."""
    outside, errors = [], []
    page = browser.new_context(base_url=address, accept_downloads=True).new_page()
    page.on(
        "request",
        lambda request: outside.append(request.url) if not request.url.startswith((address, "blob:")) else None,
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    yield page
    page.context.close()
    assert outside == [] and errors == []


def write(page, text):
    """Type over what stands in the editor, as a paste does."""
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(text)


def test_a_scheduler_is_run_drawn_and_judged_without_a_mouse(page):
    page.goto("/play/slots.html")
    write(page, written("batching", "solutions", "scheduler.py"))
    page.keyboard.press("Control+Enter")
    expect(page.locator("#verdict")).to_have_attribute("data-status", "done", timeout=LATE_MS)
    expect(page.locator("#verdict")).to_contain_text("Exercise 4.3: Done.")
    expect(page.locator("#words")).to_have_text(
        "Iterations for 48 requests in 8 slots: yours 240, static 768, in flight 240."
    )
    assert page.locator("#picture rect.long").count() == 3 * 8


IN_A_WORKER = """asked => new Promise((done, failed) => {
    const worker = new Worker("/play/worker.js", { type: "module" }), answers = [];
    worker.onerror = failed;
    worker.onmessage = ({ data }) => {
        if (data.failed) failed(data.failed);
        if (data.answer && answers.push(data.answer) === asked.length) done(answers);
    };
    asked.forEach(each => worker.postMessage(each));
})"""


@pytest.mark.slow
def test_webassembly_counts_draws_and_says_what_cpython_does(page, ask):
    page.goto("/play/slots.html")
    asked = [*FILES.values(), *TRACES]
    for one, in_browser, here in zip(asked, page.evaluate(IN_A_WORKER, asked), ask(*asked), strict=True):
        assert in_browser == here, one


@pytest.mark.slow
def test_a_loop_that_does_not_end_is_told_with_its_line(page):
    page.goto("/play/slots.html")
    [told] = page.evaluate(IN_A_WORKER, [slots(ENDLESS)])
    assert told["status"] == "wrong" and "scheduler.py, line 4: it had not ended after 20 s." in told["verdict"]


def test_a_loop_that_does_not_end_is_stopped_by_a_button_and_the_page_lives_on(page):
    page.goto("/play/slots.html")
    write(page, ENDLESS)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#state")).to_have_text("It runs.", timeout=LATE_MS)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#state")).to_contain_text("Stopped.")
    page.reload()
    expect(page.locator(".cm-content")).to_contain_text("while True")  # what was written is still there
    with page.expect_download() as loading:
        page.get_by_role("button", name=re.compile("Download")).click()
    assert loading.value.suggested_filename == "scheduler.py"
    assert loading.value.path().read_text() == ENDLESS
