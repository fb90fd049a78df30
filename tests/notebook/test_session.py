"""A notebook's servers without a browser: they outlive the last cell, and a widget's Run starts one that has ended."""

import os
import re
import signal
import tempfile
from pathlib import Path

import ipywidgets
import plotly.graph_objects as go
import pytest

from inflight.lessons import batchers
from inflight.notebook import session
from inflight.notebook.dashboard import Dashboard, Frame
from inflight.notebook.widgets import ConfigEditor
from inflight.triton import repository
from inflight.triton.server import Server
from tests.engines import is_ready, wait_until

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """A lesson's server, the widgets on it, and its folder; each test leaves the server running."""
    workdir = tempfile.TemporaryDirectory(dir=tmp_path_factory.mktemp("session"))
    log_path = Path(workdir.name) / "executions.jsonl"
    repo = repository.assemble(
        Path(workdir.name) / "repo", models=(repository.BATCH_COST,), execution_log_path=log_path
    )
    server = Server(repo).start()
    yield server, batchers.board(server, log_path), ConfigEditor(server, repository.BATCH_COST), workdir
    server.stop()


def end_by_stopping(server, workdir):
    server.stop()


def end_by_killing_the_server(server, workdir):
    os.kill(server.pid, signal.SIGKILL)


@pytest.mark.parametrize("end", [end_by_stopping, end_by_killing_the_server])
def test_run_starts_a_server_that_has_ended(lesson, end):
    server, board, editor, workdir = lesson
    address = server.grpc_url
    end(server, workdir)
    wait_until(lambda: not server.is_alive(), "the server is gone")
    board.run_button.click()
    board.wait()
    assert "Done" in board.status.value and board.frame is not None
    assert is_ready(server) and server.grpc_url == address  # a notebook's own client finds it again
    assert "Applied" in editor.apply(item_ms="7") and "Applied" in editor.apply(item_ms="4")


def test_a_server_that_ends_during_a_run_is_told_and_the_next_run_starts_it(lesson):
    server, _, _, _ = lesson
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


def rows_of(name):
    """What is said of the servers of the notebook `name`; others may run on this machine."""
    panel = session.others()
    rows = [row.children for row in panel.children if isinstance(row, ipywidgets.Box)] if panel else []
    return [row for row in rows if name in row[0].value]


def test_a_server_of_another_notebook_is_named_and_ended_at_a_click(lesson, monkeypatch):
    server, board, _, _ = lesson
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/03_of_this_test.ipynb")
    server.stop()
    server.start()
    assert rows_of("03_of_this_test") == []  # it is this process's own
    monkeypatch.setattr(session.os, "getpid", lambda: 0)  # as another kernel sees it
    [[said, button]] = rows_of("03_of_this_test")
    assert re.search(r"<b>03_of_this_test</b> still runs a server that holds 0\.\d GB", said.value)
    button.click()
    wait_until(lambda: not server.is_alive(), "the server is gone")
    assert "was ended" in said.value and rows_of("03_of_this_test") == []
    monkeypatch.undo()
    board.run_button.click()
    board.wait()
    assert "Done" in board.status.value
