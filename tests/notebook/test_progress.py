"""What a long cell says of itself: a line that changes in an open notebook, plain lines where nobody looks."""

import io
import logging
import threading
from types import SimpleNamespace

import nbformat
import papermill
import pytest

from inflight.notebook import progress
from inflight.notebook.execution import KernelOfThisPython, to_html
from tools.lessons import _cleaned

CELL = """
from inflight.notebook import progress
for size in progress.over([1, 2, 3], "Trial", "of {} tokens".format):
    pass
print("told", size)
"""


@pytest.fixture(scope="module")
def executed():
    """A notebook with such a cell, as papermill leaves it, and papermill's log."""
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("papermill")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        cells = [nbformat.v4.new_markdown_cell("# A title"), nbformat.v4.new_code_cell(CELL)]
        notebook = nbformat.v4.new_notebook(cells=cells)
        done = papermill.execute_notebook(
            notebook, None, kernel_name="python3", progress_bar=False, log_output=True,
            kernel_manager_class=KernelOfThisPython,
        )  # fmt: skip
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return done, log.getvalue()


def test_papermills_log_has_a_line_for_each_step(executed):
    _, log = executed
    assert all(f"Trial: {number} of 3, of {number} tokens" in log for number in (1, 2, 3))
    assert "Trial · done after 0 s" in log


def test_nothing_of_it_is_stored(executed, tmp_path):
    done, _ = executed
    page = tmp_path / "a.ipynb"
    assert any(progress.is_progress(output) for output in done.cells[1].outputs)
    assert "1 of 3" not in to_html(done, page, tmp_path)
    stored = _cleaned(nbformat.from_dict(done))
    assert [output.output_type for output in stored.cells[1].outputs] == ["stream"]
    assert stored.cells[1].outputs[0].text == "told 3\n"


@pytest.fixture
def shown(monkeypatch):
    """The lines that an open notebook shows: those displayed, and those that take their place."""
    lines = {"displayed": [], "changed": []}

    def publish(data, metadata, transient=None, update=False):
        lines["changed" if update else "displayed"].append(data["text/plain"])

    shell = SimpleNamespace(display_pub=SimpleNamespace(publish=publish))
    monkeypatch.setenv("JPY_SESSION_NAME", "lesson.ipynb")
    monkeypatch.setattr(progress, "get_ipython", lambda: shell)
    return lines | {"shell": shell}


def test_in_an_open_notebook_one_line_changes_in_its_place(shown):
    assert list(progress.over("ab", "Letter")) == ["a", "b"]
    assert len(shown["displayed"]) == 1
    assert [line.partition(" · ")[0] for line in shown["changed"]] == [
        "⏳ Letter: 1 of 2, a",
        "⏳ Letter: 2 of 2, b",
        "Letter",
    ]


def test_a_wait_that_fails_says_so_and_ends(shown):
    with pytest.raises(KeyError), progress.wait("Starting"):
        raise KeyError("no")
    assert shown["changed"][-1].startswith("Starting · ended early")


def test_a_wait_shows_while_what_runs_in_it_is_captured(shown):
    with progress.wait("Catching up") as line:
        shown["shell"].display_pub = SimpleNamespace(publish=lambda *_, **__: None)
        line("from 'Ask'")
    assert "⏳ Catching up: step 1, from 'Ask'" in shown["changed"]


def test_it_fits_where_a_benchmark_tells_parts(shown):
    with progress.wait("Quality") as line:
        line("the checkpoint", 0, 7)
        line("W4A8 reads", 3, 7)
    assert "⏳ Quality: 3 of 7, W4A8 reads" in shown["changed"]


def test_time_goes_on_while_a_step_takes_long():
    told, thrice = [], threading.Event()

    def tell(seconds):
        told.append(seconds)
        if len(told) == 3:
            thrice.set()

    with progress.ticking(tell, every_s=0.01):
        assert thrice.wait(60)
    assert told[0] == 0 and told == sorted(told)


def test_without_a_notebook_it_goes_to_stderr(capsys):
    list(progress.over([1], "Trial"))
    said = capsys.readouterr()
    assert said.out == "" and "Trial: 1 of 1, 1" in said.err


def test_what_ends_soon_says_nothing_and_what_lasts_says_its_step(shown):
    with progress.wait("Exercise 4.2 is checked", after_s=2.0) as line:
        progress.say("a Triton loads the repository")
        line.tick(1.0)
        assert shown["displayed"] == shown["changed"] == []
        line.tick(2.0)
    assert shown["displayed"] == ["⏳ Exercise 4.2 is checked: step 1, a Triton loads the repository · 2 s"]
    assert shown["changed"][-1].startswith("Exercise 4.2 is checked · done")
    progress.say("to nobody")
    assert len(shown["displayed"]) == 1
