"""Which servers of a notebook run, what its last cell says of them, and how long they live."""

import gc

import psutil
import pytest

from inflight.errors import CourseError
from inflight.notebook import session
from inflight.notebook.widgets import ConfigEditor, Playground
from inflight.triton import repository
from inflight.triton.address import Address
from inflight.triton.server import Server
from tests.engines import wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def small_server(tmp_path):
    repo = repository.assemble(tmp_path / "repo", models=(repository.BATCH_COST,))
    return lambda: Server(repo)


def test_the_last_cell_says_what_runs_and_when_nothing_does(small_server, capsys):
    with small_server():
        session.running()
        assert "A server runs with batch-cost. It ends with this kernel" in capsys.readouterr().out
    session.running()
    assert "batch-cost" not in capsys.readouterr().out


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
