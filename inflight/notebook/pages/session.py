"""Keeps the servers of notebooks for widgets, and lists those that run in this notebook and in others."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path

from inflight.errors import CourseError
from inflight.triton import records, repository
from inflight.triton.serving import server as servers
from inflight.triton.serving.server import Server


def weakly_held(server: Server) -> Callable[[], Server]:
    """Hold a server weakly, as widgets do: when its cell is run again, the old server ends and makes room.

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


def others() -> None:
    """Print which other notebooks still run a server: for the set-up cell of a lesson."""
    for one in records.running():
        if one.get("notebook") and one["starter"] != os.getpid():
            print(
                f"{Path(one['notebook']).stem} still runs a server. Kernel → Shut Down Kernel in that notebook, or "
                "JupyterLab's sidebar Running Terminals and Kernels, ends it."
            )
