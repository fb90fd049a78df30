"""The servers of notebooks: how a widget holds one, which run in this notebook, and which still run in others."""

from __future__ import annotations

import html
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import ipywidgets
import psutil

from inflight.errors import CourseError
from inflight.notebook.panel import WRAP, Panel
from inflight.triton import records, repository
from inflight.triton import server as servers
from inflight.triton.server import Server


def weakly_held(server: Server) -> Callable[[], Server]:
    """A server as a widget holds it: weakly, so that the server of a cell that is run again ends and makes room.

    Returns
    -------
    callable
        Gives the server, started again where it has ended. CourseError where the notebook has let go of it, or it does
        not start.
    """
    weak = weakref.ref(server)

    def started() -> Server:
        server = weak()
        if server is None:
            raise CourseError(
                "The server of this widget is gone: its cell was run again. Run the cell that starts the server, then "
                "this widget's cell."
            )
        return server.start()

    return started


def running() -> None:
    """Print which servers of this notebook still run, and how they end."""
    for server in servers.running():
        models = ", ".join(repository.models(server.repo))
        if server.is_attached:
            print(f"Attached: the server at {server.http_url}. It runs on when this notebook ends.")
        else:
            print(f"A server runs with {models}. It ends with this kernel (Kernel → Shut Down Kernel).")
    if not servers.running():
        print("No server of this notebook runs.")


def others() -> Panel | None:
    """Servers that other notebooks still run, each with a button to end it: for the set-up cell of a lesson.

    Returns
    -------
    Panel or None
        None where there are none.
    """
    found = [one for one in records.running() if one.get("notebook") and one["starter"] != os.getpid()]
    return Panel([_row(record) for record in found], label="Servers of other notebooks") if found else None


def _row(record: dict) -> ipywidgets.Box:
    name = html.escape(Path(record["notebook"]).stem)
    said = ipywidgets.HTML(
        f"<b>{name}</b> still runs a server that holds {_memory_bytes(record['pid']) / 1e9:.1f} GB, and a kernel. "
        "<i>Kernel → Shut Down Kernel</i> in that notebook ends both."
    )
    button = ipywidgets.Button(description=f"End the server of {Path(record['notebook']).stem}")
    button.layout.width = "auto"

    def end(_button: ipywidgets.Button) -> None:
        records.end(record)
        button.disabled = True
        said.value = (
            f"<span role='status'>The server of <b>{name}</b> was ended; <i>Run</i> there starts it again.</span>"
        )

    button.on_click(end)
    return ipywidgets.Box([said, button], layout=WRAP)


def _memory_bytes(pid: int) -> int:
    """What a server and the processes of its models hold."""
    try:
        server = psutil.Process(pid)
        return sum(one.memory_info().rss for one in [server, *server.children(recursive=True)])
    except psutil.NoSuchProcess:  # it has just ended
        return 0
