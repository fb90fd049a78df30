"""A notebook's servers without a browser: they outlive the last cell, and a widget's Run starts one that has ended, and
the last cell says which still run.
"""

import gc
import os
import signal

import plotly.graph_objects as go
import psutil
import pytest

from inflight.errors import CourseError
from inflight.lessons import batchers
from inflight.notebook.pages import session
from inflight.notebook.widgets import ConfigEditor, Playground
from inflight.notebook.widgets.dashboard import Dashboard, Frame
from inflight.triton import repository
from inflight.triton.address import Address
from inflight.triton.serving.server import Server
from tests.engines import is_ready, wait_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """A lesson's server and the widgets on it; each test leaves the server running."""
    folder = tmp_path_factory.mktemp("session")
    log_path = folder / "executions.jsonl"
    repo = repository.assemble(folder / "repo", models=(repository.BATCH_COST,), execution_log_path=log_path)
    server = Server(repo).start()
    yield server, batchers.board(server, log_path), ConfigEditor(server, repository.BATCH_COST)
    server.stop()


@pytest.mark.parametrize("end", [Server.stop, lambda server: os.kill(server.pid, signal.SIGKILL)])
def test_run_starts_a_server_that_has_ended(lesson, end):
    server, board, editor = lesson
    address = server.grpc_url
    end(server)
    wait_until(lambda: not server.is_alive(), "the server is gone")
    board.run_button.click()
    board.wait()
    assert "Done" in board.status.value and board.frame is not None
    assert is_ready(server) and server.grpc_url == address  # a notebook's own client finds it again
    assert "Applied" in editor.apply(item_ms="7") and "Applied" in editor.apply(item_ms="4")


def test_a_server_that_ends_during_a_run_is_told_and_the_next_run_starts_it(lesson):
    server, _, _ = lesson
    lives = []

    def work(server):
        lives.append(server.pid)
        yield Frame(go.Figure(), "It has begun.")
        if len(lives) == 1:
            os.kill(server.pid, signal.SIGKILL)
        server.load(repository.BATCH_COST)

    board = Dashboard({}, work, server)
    board.run_button.click()
    board.wait()
    assert "Failed." in board.status.value and "was ended by signal 9" in board.status.value
    assert board.run() is not None and "Done" in board.status.value and len(set(lives)) == 2


def test_a_server_of_another_notebook_is_named(lesson, monkeypatch, capsys):
    server, _, _ = lesson
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/03_of_this_test.ipynb")
    server.stop()
    server.start()
    session.others()
    assert "03_of_this_test" not in capsys.readouterr().out  # it is this process's own
    monkeypatch.setattr(session.os, "getpid", lambda: 0)  # as another kernel sees it
    session.others()
    assert "03_of_this_test still runs a server. Kernel → Shut Down Kernel" in capsys.readouterr().out


# What is forgotten or attached ----------------------------------------------------------------------------------------


@pytest.fixture
def small_server(tmp_path):
    repo = repository.assemble(tmp_path / "repo", models=(repository.BATCH_COST,))
    return lambda: Server(repo)


def test_the_last_cell_says_what_runs_and_when_nothing_does(small_server, capsys):
    def said():
        session.running()
        return capsys.readouterr().out.count("A server runs with batch-cost. It ends with this kernel")

    before = said()  # of the lesson, where its tests have come first
    with small_server():
        assert said() == before + 1
    assert said() == before


def test_a_server_that_the_notebook_has_forgotten_ends_and_its_widget_says_what_to_do(small_server):
    server = small_server().start()
    editor = ConfigEditor(server, repository.BATCH_COST)
    process = psutil.Process(server.pid)
    del server  # as a notebook does that runs a second time
    gc.collect()
    wait_until(lambda: not process.is_running(), "the forgotten server has ended")
    assert "Run the cell that starts the server" in editor.apply(item_ms="7")


def test_an_attached_server_is_neither_stopped_nor_started(small_server, capsys):
    server = small_server().start()
    attached = Server(server.repo, address=Address.at(server.http_url)).start()
    try:
        playground = Playground(attached)
        session.running()
        assert f"Attached: the server at {server.http_url}. It runs on" in capsys.readouterr().out
        address = server.http_url
        server.stop()
        with pytest.raises(CourseError, match=f"No Triton answers at {address}"):
            playground.run()
        server.start()  # at the same address
        with pytest.raises(CourseError, match="ensemble"):  # which it does not have
            playground.run()
        assert attached.is_alive()
    finally:
        attached.stop()
        server.stop()
