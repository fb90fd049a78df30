"""What a long cell says of itself: a line that changes in an open notebook, plain lines where nobody looks."""

import threading
from types import SimpleNamespace

import nbformat
import pytest

from inflight.notebook import progress
from inflight.notebook.execution import execute, to_html
from tools.lessons import _cleaned

CELL = """
from inflight.notebook import progress
with progress.wait("Trial", 3) as line:
    for size in (1, 2, 3):
        line(f"of {size} tokens")
        line.tick(2.0 * size)
print("told", size)
"""


def test_nothing_of_it_is_stored(tmp_path, monkeypatch):
    cells = [nbformat.v4.new_markdown_cell("# A title"), nbformat.v4.new_code_cell(CELL)]
    done = execute(nbformat.v4.new_notebook(cells=cells), "a", tmp_path)
    said = [output for output in done.cells[1].outputs if progress.is_progress(output)]
    assert [output.data["text/plain"].partition(" · ")[0] for output in said] == ["Trial"], "one line, which changed"
    assert "Trial ·" not in to_html(done, tmp_path / "a.ipynb", tmp_path)
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
    monkeypatch.setattr(progress, "get_ipython", lambda: shell)
    return lines | {"shell": shell}


def test_what_lasts_is_one_line_which_changes_in_its_place(shown):
    with progress.wait("Letter", 2) as line:
        line("a")
        line.tick(1.0)
        line("b")
        line.tick(2.0)
    assert shown["displayed"] == ["Letter: 1 of 2, a … 1 s"]
    assert shown["changed"] == ["Letter: 2 of 2, b … 2 s", "Letter · done after 0 s"]


def test_what_ends_within_a_second_says_nothing(shown):
    assert list(progress.over("ab", "Letter")) == ["a", "b"]
    assert shown["displayed"] == shown["changed"] == []


def test_a_wait_that_fails_says_so_and_ends(shown):
    with pytest.raises(KeyError), progress.wait("Starting") as line:
        line.tick(3.0)
        raise KeyError("no")
    assert shown["changed"] == ["Starting · ended early after 0 s"]


def test_a_wait_shows_while_what_runs_in_it_is_captured(shown):
    with progress.wait("Catching up") as line:
        shown["shell"].display_pub = SimpleNamespace(publish=lambda *_, **__: None)
        line("from 'Ask'")
        line.tick(1.0)
    assert shown["displayed"] == ["Catching up: step 1, from 'Ask' … 1 s"]


def test_it_fits_where_a_benchmark_tells_parts(shown):
    with progress.wait("Quality") as line:
        line("the checkpoint", 0, 7)
        line("W4A8 reads", 3, 7)
        line.tick(5.0)
    assert shown["displayed"] == ["Quality: 3 of 7, W4A8 reads … 5 s"]


def test_a_step_is_told_from_within(shown):
    progress.say("nobody waits")
    with progress.wait("Exercise 4.2 is checked") as line:
        progress.say("a Triton loads the repository")
        line.tick(2.0)
    assert shown["displayed"] == ["Exercise 4.2 is checked: step 1, a Triton loads the repository … 2 s"]


def test_time_goes_on_while_a_step_takes_long(monkeypatch):
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    told, thrice = [], threading.Event()

    def tell(seconds):
        told.append(seconds)
        if len(told) == 3:
            thrice.set()

    with progress.ticking(tell):
        assert thrice.wait(60)
    assert told[0] == 0 and told == sorted(told)
