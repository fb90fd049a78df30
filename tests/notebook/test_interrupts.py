"""The toolbar's square, in a real kernel: it ends what a button has begun, and leaves the rest as it was."""

import pytest
from jupyter_client.manager import KernelManager

from tests.engines import wait_until

BOARD = """
import itertools, os, signal, threading
import plotly.graph_objects as go
from inflight.notebook.dashboard import Dashboard, Frame

ended, begun = [], os.devnull
def work():
    try:
        for number in itertools.count():
            yield Frame(go.Figure(), f"frame {number}")
            if number == 20:  # the cell has long come to where it waits
                open(begun, "w").close()
            threading.Event().wait(0.01)
    finally:
        ended.append(number)

board = Dashboard({}, work)
before = signal.getsignal(signal.SIGINT)
"""
LOOK = "kernel_handler = get_ipython().kernel.saved_sigint_handler"  # while a cell runs, another one stands there


@pytest.fixture(scope="module")
def kernel():
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    run(client, BOARD)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, expression="None"):
    """Run a cell in the kernel; the value of an expression after it."""
    reply = client.execute_interactive(
        code, user_expressions={"value": expression}, timeout=60, output_hook=lambda message: None
    )["content"]
    assert reply["status"] == "ok", reply.get("traceback")
    return reply["user_expressions"]["value"]["data"]["text/plain"]


def wait_for_ours(client):
    """Until an interrupt of the idle kernel would come to us: the run sets that as soon as no cell runs."""
    ours = "kernel_handler.__module__ == 'inflight.notebook.interrupts'"
    wait_until(lambda: run(client, LOOK, ours) == "True", "it is set")


def test_it_stops_a_run_that_a_button_has_begun_while_the_kernel_is_idle(kernel):
    manager, client = kernel
    for runs in (1, 2):
        run(client, "board.run_button.click()")
        wait_for_ours(client)
        manager.interrupt_kernel()
        assert "Stopped" in run(client, "board._thread.join(60)", "board.status.value")
        assert run(client, "", "len(ended)") == str(runs)


def test_the_handler_is_there_for_the_time_of_the_run_only(kernel):
    _manager, client = kernel
    run(client, "board.run_button.click()")
    wait_for_ours(client)
    run(client, "board.stop(); board.wait()")
    wait_until(
        lambda: run(client, LOOK, "kernel_handler == before or kernel_handler == signal.SIG_IGN") == "True",
        "it is gone",
    )


def test_a_cell_is_interrupted_as_ever_and_a_run_that_it_waits_for_ends_too(kernel, tmp_path):
    manager, client = kernel
    run(client, f"ended.clear(); begun = {str(tmp_path / 'begun')!r}")
    client.execute("board.run()", stop_on_error=False)  # else what is asked next may be left out, too
    wait_until((tmp_path / "begun").exists, "the cell runs")
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=60)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert run(client, "", "len(ended) == 1 and not board.run_button.disabled") == "True"
