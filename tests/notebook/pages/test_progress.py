"""The bar of a long cell: there while somebody watches and it lasts, and in no stored notebook."""

import threading
from types import SimpleNamespace

import nbformat
import pytest

from inflight.notebook.pages import progress
from inflight.notebook.pages.execution import execute

CELL = """
from inflight.notebook.pages import progress
progress.TICK_S = 0
with progress.wait("Trial", 3) as bar:
    for size in (1, 2, 3):
        bar.set_postfix_str(f"of {size} tokens")
        bar.update()
print("told", bar.disable)
"""


def test_a_run_that_nobody_watches_has_no_bar_in_its_outputs(tmp_path):
    done = execute(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)]), "a", tmp_path)
    assert [output.output_type for output in done.cells[0].outputs] == ["stream"]
    assert done.cells[0].outputs[0].text == "told True\n"


@pytest.fixture
def shell(monkeypatch):
    """A notebook that somebody watches; `displayed` holds what it shows, and has shown, which `is_there` waits for."""
    shown, is_there = [], threading.Event()

    def publish(data, transient, update=False):
        assert update == bool(shown)
        shown.append(data)
        is_there.set()

    found = SimpleNamespace(display_pub=SimpleNamespace(publish=publish), displayed=shown, is_there=is_there)
    monkeypatch.setattr(progress, "get_ipython", lambda: found)
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    monkeypatch.delenv("COURSE_STRICT", raising=False)
    return found


def told(bar):
    """What the bar shows, as one line."""
    left, _, right = bar.container.children
    return (left.value + right.value).replace("\u2007", " ")


def test_what_lasts_is_shown_once_with_the_step_and_is_gone_at_its_end(shell):
    with progress.wait("Exercise 4.2 is checked") as bar:
        assert shell.is_there.wait(60)
        progress.say("a Triton loads the repository")
        assert told(bar) == "Exercise 4.2 is checked, a Triton loads the repository … 0 s"
        model = bar.container.model_id
    ids = [data["application/vnd.jupyter.widget-view+json"]["model_id"] for data in shell.displayed]
    assert ids == [model, ""], "JupyterLab shows no view of the widget without a name"
    assert bar.container.comm is None
    progress.say("nobody waits")


def test_a_loop_names_each_item_and_counts_those_done(shell):
    lines = []
    for item in progress.over((1536, 2560), "Cache", "{:,} tokens".format):
        lines.append((item, told(progress._open[-1])))
    assert [item for item, _ in lines] == [1536, 2560]
    assert "Cache:   0%" in lines[0][1] and "0/2" in lines[0][1] and "1,536 tokens" in lines[0][1]
    assert "1/2" in lines[1][1] and "2,560 tokens" in lines[1][1]


def test_what_ends_within_a_second_is_not_shown(shell, monkeypatch):
    monkeypatch.setattr(progress, "TICK_S", 1e6)
    assert list(progress.over("ab", "Letter")) == ["a", "b"]
    assert shell.displayed == []


def test_it_shows_while_what_runs_in_it_is_captured_and_is_gone_where_that_fails(shell):
    with pytest.raises(KeyError), progress.wait("Catching up", 3) as bar:
        shell.display_pub = SimpleNamespace(publish=lambda *_, **__: None)
        assert shell.is_there.wait(60)
        raise KeyError("no")
    assert bar.container.comm is None and not progress._open


def test_time_goes_on_while_a_step_takes_long(monkeypatch):
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    seconds, thrice = [], threading.Event()

    def tell(passed):
        seconds.append(passed)
        if len(seconds) == 3:
            thrice.set()

    with progress.ticking(tell):
        assert thrice.wait(60)
    assert seconds[0] == 0 and seconds == sorted(seconds)
