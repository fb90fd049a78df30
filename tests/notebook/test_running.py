"""Which servers of a notebook run, what its last cell says of them, and how long they live."""

import gc

import pytest

from inflight.errors import CourseError
from inflight.notebook import session
from inflight.notebook.widgets import ConfigEditor, Playground
from inflight.triton import repository
from inflight.triton.attached import Address
from inflight.triton.server import Server
from tests.engines import start_python, wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def small_server(tmp_path):
    repo = repository.assemble(tmp_path / "repo", models=(repository.BATCH_COST,))
    return lambda: Server(repo)


LAST_CELL = """
import sys
from inflight.errors import CourseError
from inflight.notebook import session
from inflight.triton.server import Server
server = Server(sys.argv[1]).start()
last = session.running()
print(repr(last))
last.button.click()
print("alive:", server.is_alive())
print(repr(session.running()))
"""


def test_the_last_cell_says_what_runs_and_stops_it_when_told(small_server):
    """In a process of its own, as a kernel is: it stops every server that the process has."""
    kernel = start_python(LAST_CELL, small_server().repo)
    said, _ = kernel.communicate(timeout=120)
    before, after = said.split("alive: False")
    assert "runs with batch-cost" in before and "No server" in after and repository.BATCH_COST not in after


def test_a_server_that_the_notebook_has_forgotten_ends_and_its_widget_says_what_to_do(small_server):
    server = small_server().start()
    editor = ConfigEditor(server.repo, repository.BATCH_COST, server)
    folder = server._way.folder
    del server  # as a notebook does that runs a second time
    gc.collect()
    wait_until(lambda: not folder.exists(), "the forgotten server has ended")
    assert "Run the cell that starts it" in editor.apply(item_ms="7")


def test_an_attached_server_is_neither_stopped_nor_started(small_server):
    server = small_server().start()
    attached = Server(server.repo, place=Address.at(server.http_url)).start()
    try:
        playground = Playground(attached)
        last = session.Running()
        assert f"The server at {server.http_url} is attached" in repr(last)
        assert "not stopped from here" in repr(last)
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
