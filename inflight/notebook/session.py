"""The servers of a notebook: they live as long as its kernel, and a widget's Run starts one again that has ended.

    kept = session.keep(server)             # what a widget holds of its server
    kept.start().load("tensorrt_llm")       # the server, started again if it does not run
    session.running()                       # a lesson's last cell: what runs, and a button to stop it

A notebook that is run twice makes new servers, and an old one ends when nothing refers to it any more. So a widget
refers to its server weakly.
"""

from __future__ import annotations

import html
import weakref

import ipywidgets

from inflight.errors import CourseError
from inflight.notebook.panel import Panel
from inflight.notebook.progress import ticking
from inflight.triton import repository
from inflight.triton import server as servers
from inflight.triton.server import Server


class Kept:
    """What a widget holds of its server."""

    def __init__(self, server: Server):
        self._weak = weakref.ref(server)

    @property
    def server(self) -> Server:
        """The server. CourseError where it is gone with the cell that made it."""
        server = self._weak()
        if server is None:
            raise CourseError("The server of this widget is gone. Run the cell that starts it, and this one, again.")
        return server

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.server.is_alive()

    def start(self) -> Server:
        """Start it from its files, if it was stopped or has died; CourseError where it does not start."""
        return self.server.start()


def keep(server: Server | Kept) -> Kept:
    """What a widget holds of `server`."""
    return server if isinstance(server, Kept) else Kept(server)


# The last cell --------------------------------------------------------------------------------------------------------


class Running(Panel):
    """The servers of this notebook that run, and a button that stops them.

    Attributes
    ----------
    button : Button
        Stops them; hidden where there is none to stop.
    words : HTML
        What runs.
    """

    def __init__(self):
        self.words = ipywidgets.HTML()
        self.button = ipywidgets.Button(description="Stop now", icon="stop")
        self.button.on_click(lambda _: self._stop())
        super().__init__([self.words, self.button], label="Servers of this notebook")
        self._tell()

    def __repr__(self) -> str:
        return self._text

    def _stop(self) -> None:
        if self.button.disabled:
            return
        self.button.disabled, own = True, _own()
        try:
            for number, server in enumerate(own, 1):
                said = f"Stopping server {number} of {len(own)}"
                with ticking(lambda seconds, said=said: self._say(f"{said}, {seconds:.0f} s …")):
                    server.stop()
        finally:
            self.button.disabled = False
            self._tell()

    def _tell(self) -> None:
        own, attached = _own(), [server for server in servers.running() if server.is_attached]
        sentences = [f"A server runs with {', '.join(repository.models(server.repo))}." for server in own]
        if own:
            belongs, ends = ("It belongs", "it ends") if len(own) == 1 else ("They belong", "they end")
            sentences.append(
                f"{belongs} to this notebook: the widgets above go on working, and {ends} with the kernel "
                "(Kernel → Shut Down Kernel), or when you press Stop now."
            )
        sentences += [
            f"The server at {server.http_url} is attached; it was started elsewhere and is not stopped from here."
            for server in attached
        ]
        self.button.layout.display = None if own else "none"
        self._say(" ".join(sentences) or "No server of this notebook runs.")

    def _say(self, text: str) -> None:
        self._text = text
        self.words.value = f"<div role='status'>{html.escape(text)}</div>"


def running() -> Running:
    """For the last cell of a notebook: what runs, and a button that stops it."""
    return Running()


def _own() -> list[Server]:
    return [server for server in servers.running() if not server.is_attached]
