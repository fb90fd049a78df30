"""A notebook's servers without a browser: they outlive the last cell, and a widget brings back one that is gone."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from inflight.errors import CourseError
from inflight.notebook import boards, sections, session
from inflight.notebook.dashboard import Dashboard, Frame
from inflight.notebook.panel import picture
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import wait_until


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """A lesson's server, the widgets on it, and its folder; each test leaves the server running."""
    workdir = tempfile.TemporaryDirectory(dir=tmp_path_factory.mktemp("session"))
    log_path = Path(workdir.name) / "executions.jsonl"
    repo = repository.assemble(
        Path(workdir.name) / "repo", models=(repository.BATCH_COST,), execution_log_path=log_path
    )
    server = Server(repo).start()
    yield server, boards.batchers(server, log_path), ConfigEditor(repo, repository.BATCH_COST, server), workdir
    server.stop()


def end_by_stopping(server, workdir):
    server.stop()


def end_by_killing_the_server(server, workdir):
    os.kill(server.pid, signal.SIGKILL)


def end_by_killing_its_supervisor(server, workdir):
    os.kill(server._way._supervisor.pid, signal.SIGKILL)


def end_with_its_folder(server, workdir):
    server.stop()
    shutil.rmtree(workdir.name)


@pytest.mark.parametrize(
    "end", [end_by_stopping, end_by_killing_the_server, end_by_killing_its_supervisor, end_with_its_folder]
)
def test_a_dashboard_whose_server_is_gone_starts_it_again_and_goes_on(lesson, end):
    server, board, editor, workdir = lesson
    address = server.grpc_url
    end(server, workdir)
    wait_until(lambda: not server.is_alive(), "the server is gone")
    with pytest.raises(CourseError, match="does not run.*Press 'Start it again' in the widget"):
        board.run()
    assert board.lifeline.is_shown and board.run_button.layout.display == "none"
    board.run_button.click()  # a click that was on its way: it is what goes on afterwards
    board.lifeline.button.click()
    board.wait()
    assert "Done" in board.status.value and board.frame is not None, board.lifeline.words.value
    assert not board.lifeline.is_shown
    assert server.is_ready() and server.grpc_url == address  # a notebook's own client finds it again
    assert editor.lifeline.look() and not editor.lifeline.is_shown
    assert "Applied" in editor.apply(item_ms="7") and "Undone" in editor.undo()


def test_the_page_says_by_itself_that_a_server_is_gone_and_that_it_is_back(lesson):
    server, board, editor, _ = lesson
    server.stop()
    wait_until(lambda: board.lifeline.is_shown and editor.lifeline.is_shown, "both widgets offer to start it again")
    assert "Start it again" in board._repr_mimebundle_()["text/html"]
    editor.lifeline.button.click()
    wait_until(lambda: not board.lifeline.is_shown, "the other one has noticed too")
    assert board.run_button.layout.display is None
    board.run()


def test_the_last_cell_hears_of_a_server_that_a_widget_has_started_again(lesson):
    server, board, _, _ = lesson
    last = session.running()
    assert "A server runs with batch-cost" in repr(last)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: last.button.layout.display == "none", "the last cell says that nothing runs")
    assert repository.BATCH_COST not in repr(last)
    board.lifeline.look()
    board.lifeline.button.click()
    wait_until(lambda: last.button.layout.display is None, "the last cell offers to stop it")
    assert "A server runs with batch-cost" in last.words.value


def test_nobody_is_told_to_press_run_where_there_is_no_such_button(lesson):
    server, _, _, _ = lesson
    fresh = Dashboard({}, lambda: iter(()), kept=session.keep(server))
    assert "Press Run." in picture(fresh)
    server.stop()
    fresh.lifeline.look()
    assert "Press Run." not in picture(fresh) and "Start it again" in picture(fresh)
    fresh.lifeline.button.click()
    assert "Press Run." in picture(fresh)


def test_a_server_that_is_started_again_is_not_told_what_was_done_before_it_ended(lesson):
    server, board, editor, _ = lesson
    board.run_button.click()
    board.wait()
    editor.fields["item_ms"].value = "7"
    editor.apply_button.click()
    editor.undo_button.click()
    runs, config = board._runs, (server.repo / repository.BATCH_COST / repository.CONFIG).read_text()
    server.stop()
    for widget in (editor, board):
        widget.lifeline.look()
        widget.lifeline.button.click()  # the second finds it started
    board.wait()
    assert board._runs == runs, "nobody has pressed Run"
    assert "Undone" in editor.status.value
    assert (server.repo / repository.BATCH_COST / repository.CONFIG).read_text() == config


def test_while_one_widget_starts_the_server_the_other_says_so(lesson):
    server, board, editor, _ = lesson
    server.stop()
    wait_until(lambda: board.lifeline.is_shown, "it offers to start it again")
    kept = board.lifeline.kept
    with kept._starting:
        board.lifeline.look()
        assert "The server is being started" in board.lifeline.words.value
    board.lifeline.look()
    assert "does not run: it was stopped" in board.lifeline.words.value, "it has failed there"
    editor.lifeline.button.click()
    wait_until(lambda: not board.lifeline.is_shown, "it is back")


def test_a_server_that_ends_during_a_run_is_told_with_the_way_on(lesson):
    server, _, _, _ = lesson
    lives = []

    def work():
        lives.append(server.pid)
        yield Frame(go.Figure(), "It has begun.")
        if len(lives) == 1:
            os.kill(server.pid, signal.SIGKILL)
        server.load(repository.BATCH_COST)

    board = Dashboard({}, work, kept=session.keep(server))
    board.run_button.click()
    board.wait()
    assert "The server ended while this ran." in board.status.value and board.lifeline.is_shown
    board.lifeline.button.click()
    assert board.run() is not None and "Done" in board.status.value and len(set(lives)) == 2


def test_a_folder_that_is_gone_under_a_running_server_is_put_back(lesson):
    _server, board, editor, workdir = lesson
    shutil.rmtree(workdir.name)
    assert board.run() is not None
    assert "Applied" in editor.apply(item_ms="7")
    assert "Undone" in editor.undo()


def test_a_server_that_cannot_be_started_says_why_and_stays_on_offer(lesson):
    server, board, _editor, _ = lesson
    config = server.repo / repository.BATCH_COST / repository.CONFIG
    intact = config.read_text()
    server.stop()
    config.write_text(intact.replace('"item_ms"', '"nonsense"'))
    board.lifeline.look()
    board.lifeline.button.click()
    assert "It did not start." in board.lifeline.words.value and "nonsense" in board.lifeline.words.value
    assert board.lifeline.is_shown and not board.lifeline.button.disabled
    config.write_text(intact)
    board.lifeline.button.click()
    assert not board.lifeline.is_shown and server.is_alive()


def test_a_folder_of_somebody_else_is_not_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(session.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CourseError, match="belongs to somebody else"):
        session._make_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()


def test_a_section_whose_server_was_stopped_starts_it_again(lesson, monkeypatch, tmp_path):
    server, *_ = lesson
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.user_ns["server"] = server
    book = nbformat.v4.new_notebook()
    book.cells = [
        nbformat.v4.new_code_cell("server = ...", metadata={"tags": ["setup"]}),
        nbformat.v4.new_markdown_cell("## Ask"),
    ]
    monkeypatch.setattr(sections, "get_ipython", lambda: shell)
    monkeypatch.setattr(sections, "_lecture", lambda number: book)
    address = server.grpc_url
    server.stop()
    sections.catch_up("06", "Ask")
    assert server.is_ready() and server.grpc_url == address and shell.user_ns["server"] is server
