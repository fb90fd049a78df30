"""A notebook's servers without a browser: they outlive the last cell, and a widget brings back one that is gone."""

import gc
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from inflight.bench.workload import TimedRequest
from inflight.errors import CourseError
from inflight.notebook import boards, session
from inflight.notebook.widgets import ConfigEditor, Playground
from inflight.triton import repository
from inflight.triton import server as servers
from inflight.triton.client import Client
from inflight.triton.server import Server
from tests.engines import wait_until

GUESTS = [TimedRequest("a b c", 8, 0.0, 5)] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def lesson(small_engine, folder):
    """A lesson's server in a folder of its own, its log, and the widgets on it; each test leaves the server running."""
    workdir = tempfile.TemporaryDirectory(dir=folder)
    log_path = Path(workdir.name) / "iterations.jsonl"
    repo = repository.assemble(
        Path(workdir.name) / "repo", small_engine, apply_chat_template=False, iteration_log_path=log_path,
        decoupled_mode=True,
    )  # fmt: skip
    server = Server(repo).start()
    yield server, boards.policies(server, GUESTS, log_path), ConfigEditor(repo, "tensorrt_llm", server), workdir
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
    assert "Done" in board.status.value and board.frame is not None and not board.lifeline.is_shown
    assert server.is_ready() and server.grpc_url == address  # a notebook's own client finds it again
    with Client(address) as client:
        assert client.ask("a b c", 4).text
    assert editor.lifeline.look() and not editor.lifeline.is_shown
    assert "Applied" in editor.apply(max_queue_size="7") and "Undone" in editor.undo()


def test_the_page_says_by_itself_that_a_server_is_gone_and_that_it_is_back(lesson):
    server, board, editor, _ = lesson
    server.stop()
    wait_until(lambda: board.lifeline.is_shown and editor.lifeline.is_shown, "both widgets offer to start it again")
    assert "Start it again" in board._repr_mimebundle_()["text/html"]
    editor.lifeline.button.click()
    wait_until(lambda: not board.lifeline.is_shown, "the other one has noticed too")
    assert board.run_button.layout.display is None
    board.run()


def test_a_server_that_ends_during_a_run_is_told_with_the_way_on(lesson):
    server, board, _, _ = lesson
    killed = []

    def kill(_):
        if not killed:
            killed.append(os.kill(server.pid, signal.SIGKILL))

    board.words.observe(kill, "value")
    board._start()
    board.wait()
    board.words.unobserve(kill, "value")
    assert "The server ended while this ran." in board.status.value and board.lifeline.is_shown
    board.lifeline.button.click()
    assert board.run() is not None


def test_a_folder_that_is_gone_under_a_running_server_is_put_back(lesson):
    server, board, editor, workdir = lesson
    shutil.rmtree(workdir.name)
    assert board.run() is not None
    assert "Applied" in editor.apply(max_queue_size="7")
    assert "Undone" in editor.undo()


def test_a_server_that_cannot_be_started_says_why_and_stays_on_offer(lesson):
    server, board, editor, _ = lesson
    config = server.repo / "tensorrt_llm" / repository.CONFIG
    intact = config.read_text()
    server.stop()
    config.write_text(intact.replace("guaranteed_no_evict", "nonsense").replace("max_utilization", "nonsense"))
    board.lifeline.look()
    board.lifeline.button.click()
    assert "It did not start." in board.lifeline.words.value and "nonsense" in board.lifeline.words.value
    assert board.lifeline.is_shown and not board.lifeline.button.disabled
    config.write_text(intact)
    board.lifeline.button.click()
    assert not board.lifeline.is_shown and server.is_alive()


# Which servers run ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_server(small_engine, tmp_path):
    repo = repository.assemble(tmp_path / "repo", small_engine, models=("postprocessing",))
    return lambda: Server(repo)


def test_the_last_cell_says_what_runs_and_stops_it_when_told(small_server):
    server = small_server().start()
    last = session.running()
    text = repr(last)
    assert "A server runs with postprocessing. It belongs to this notebook" in text
    assert server.is_alive() and last.button.layout.display is None
    last.button.click()
    assert not server.is_alive() and server not in servers.running()
    assert "postprocessing" not in repr(last)


def test_the_last_cell_of_a_notebook_without_a_server():
    gc.collect()
    if not servers.running():
        last = session.running()
        assert repr(last) == "No server of this notebook runs." and last.button.layout.display == "none"


def test_a_server_that_the_notebook_has_forgotten_ends_and_its_widget_makes_another(small_server):
    server = small_server().start()
    editor = ConfigEditor(server.repo, "postprocessing", server)
    folder = server._way.folder
    del server  # as a notebook does that runs a second time
    gc.collect()
    wait_until(lambda: not folder.exists(), "the forgotten server has ended")
    assert not editor.lifeline.look()
    editor.lifeline.button.click()
    assert "Applied" in editor.apply(skip_special_tokens="false")
    again = editor.lifeline.kept.server
    assert again.is_ready()
    again.stop()


def test_an_attached_server_is_neither_stopped_nor_started(small_server):
    server = small_server().start()
    attached = Server.attach(server.http_url)
    try:
        playground = Playground(attached)
        last = session.Running()
        assert f"The server at {server.http_url} is attached" in repr(last)
        assert "not stopped from here" in repr(last)
        server.stop()
        assert not playground.lifeline.look()
        assert playground.lifeline.button.description == "Attach it again"
        assert "was started elsewhere" in playground.lifeline.words.value
        playground.lifeline.button.click()
        assert "It did not start." not in playground.lifeline.words.value
        assert f"No Triton answers at {server.http_url}" in playground.lifeline.words.value
        server.start()  # at the same address
        playground.lifeline.button.click()
        assert not playground.lifeline.is_shown and attached.is_alive()
    finally:
        attached.stop()
        server.stop()


def test_a_folder_of_somebody_else_is_not_written_to(monkeypatch, tmp_path):
    monkeypatch.setattr(session.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CourseError, match="belongs to somebody else"):
        session._make_folder(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
