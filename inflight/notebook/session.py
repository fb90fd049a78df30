"""The servers of a notebook: they live as long as its kernel, and a widget whose server is gone brings it back.

    kept = session.keep(server)             # what a widget holds of its server
    kept.server.load("tensorrt_llm")        # the server, whichever of its lives it is in
    session.running()                       # a lesson's last cell: what runs, and a button to stop it

A notebook that is run twice makes new servers, and an old one ends when nothing refers to it any more. So a widget
refers to its server weakly, and to what it takes to start the same one again: its options, and its repository as it was
when it was last used, for that may lie in a folder that is gone by now.
"""

from __future__ import annotations

import atexit
import contextlib
import html
import os
import shutil
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import ipywidgets

from inflight.errors import CourseError
from inflight.notebook.panel import Panel
from inflight.notebook.progress import ticking
from inflight.triton import repository
from inflight.triton import server as servers
from inflight.triton.server import Server

LOOK_EVERY_S = 1.0
MOST_BYTES = 1_000_000  # of a file that is remembered: a model's code and config, not its weights
LOG_PATH = "log_path"  # how parameters end that name a file to be written

_kept: weakref.WeakKeyDictionary[Server, Kept] = weakref.WeakKeyDictionary()


def keep(server: Server | Kept) -> Kept:
    """What widgets hold of `server`; the same for all of them."""
    if isinstance(server, Kept):
        return server
    if server not in _kept:
        _kept[server] = Kept(server)
    return _kept[server]


class Kept:
    """A server that may end, and be started again with the repository that it had.

    Attributes
    ----------
    is_attached : bool
        Whether somebody else has started it: then it is attached again, not started.
    """

    def __init__(self, server: Server):
        self.is_attached = server.is_attached
        self._http_url = server.http_url if server.is_attached else ""
        self._make, self._weak, self._own = server.twin, weakref.ref(server), None
        self._repo = server.repo
        self._files: dict[Path, bytes | None] = {}  # by their path in the repository; None is a folder
        self._starting = threading.Lock()
        self._states: dict[str, str] = {}  # of the models, while they are loaded
        self.note()

    @property
    def server(self) -> Server:
        """The server in its newest life.

        Raises
        ------
        CourseError
            There is none any more: nothing but widgets knew of it.
        """
        found = self._found()
        if found is None:
            raise CourseError(self.why_gone())
        return found

    def _found(self) -> Server | None:
        return self._own or self._weak()

    def is_alive(self) -> bool:
        """Whether it runs, and is not just being started."""
        found = self._found()
        return found is not None and not self.is_starting and found.is_alive()

    def why_gone(self) -> str:
        """A sentence for whoever looks at a widget whose server is gone."""
        if self.is_attached:
            return (
                f"The server at {self._http_url} does not answer. It was started elsewhere, so it is started there, "
                "and attached again here."
            )
        return "The server of this widget does not run: it was stopped, or it ended."

    def ends(self, within_s: float) -> bool:
        """Whether it has ended, or does in the next seconds."""
        found = self._found()
        if found is None:
            return True
        try:
            found.wait(within_s)
        except CourseError:
            return True
        return False

    def note(self) -> None:
        """Remember the repository as it is now; put back what has been removed of it."""
        if self.is_attached:
            return
        if not all((self._repo / name).exists() for name in self._files):
            self._put_back()
        self._files = {path.relative_to(self._repo): data for path, data in _small_files(self._repo)}

    def start_again(self) -> None:
        """Start the same server with its repository, or attach it again; nothing if it runs.

        Raises
        ------
        CourseError
            As `Server.start`; the folder of the repository belongs to somebody else by now.
        """
        with self._starting:
            if not self.is_attached:
                self._put_back()
            found = self._found()
            if found is None:
                found = self._own = self._make()
            self._states = {}
            found.start(on_state=lambda model: self._states.update({model.name: model.state}))

    @property
    def is_starting(self) -> bool:
        return self._starting.locked()

    def how_far(self) -> str:
        """While it is started: how many of its models are loaded, in words."""
        states = list(self._states.values())
        return f"{states.count('READY')} of {len(states)} models are loaded" if states else "Triton begins"

    def _put_back(self) -> None:
        """The files of the repository that are gone, and the folders that its logs are written to."""
        for name, data in self._files.items():
            path = self._repo / name
            if data is None:
                _make_folder(path)
            elif not path.exists():
                _make_folder(path.parent)
                path.write_bytes(data)
        for model in repository.models(self._repo):
            config = repository.read_config(self._repo / model / repository.CONFIG)
            for name, value in config.parameters.items():
                if name.endswith(LOG_PATH) and value.string_value:
                    _make_folder(Path(value.string_value).parent)


def _small_files(folder: Path) -> Iterator[tuple[Path, bytes | None]]:
    """Everything below `folder`, with None for a folder; a file that goes meanwhile, as a backend's own do, is none."""
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                yield path, None
            elif path.stat().st_size <= MOST_BYTES:
                yield path, path.read_bytes()


def _make_folder(path: Path) -> None:
    """Make a folder for this user alone, which goes when this process ends, unless it is there."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    root = missing[-1].parent if missing else path
    found = root.stat()
    if found.st_uid != os.geteuid() and not (found.st_uid == 0 and found.st_mode & stat.S_ISVTX):
        raise CourseError(f"{root} belongs to somebody else. Run the notebook again from its first cell.")
    for each in reversed(missing):
        each.mkdir(mode=0o700)
    if missing:
        atexit.register(shutil.rmtree, missing[-1], ignore_errors=True)


# In a widget ----------------------------------------------------------------------------------------------------------


class Lifeline(ipywidgets.VBox):
    """Stands in a widget in place of its buttons while its server is gone: why, and one button that brings it back.

    Parameters
    ----------
    kept : Kept
    buttons : sequence of widget
        What is hidden meanwhile.

    Attributes
    ----------
    button : Button
        Starts the server again, or attaches it again.
    words : HTML
        What has happened, and what happens.
    """

    def __init__(self, kept: Kept, buttons: Sequence[ipywidgets.Widget]):
        self.kept, self._buttons, self._then = kept, buttons, None
        self._waits = False  # another widget starts the server
        label = "Attach it again" if kept.is_attached else "Start it again"
        self.button = ipywidgets.Button(description=label, icon="refresh", button_style="primary")
        self.words = ipywidgets.HTML()
        super().__init__([self.words, self.button], layout={"display": "none"})
        self.button.on_click(lambda _: self._start_again())
        if not kept.is_attached:  # one of somebody else is asked over a network: it is looked at when it is used
            _watch(self)

    @property
    def is_shown(self) -> bool:
        return self.layout.display != "none"

    def holds(self, then: Callable[[], None] | None = None) -> bool:
        """Whether the server can be used now. If it is gone, the widget says so and offers to bring it back.

        Parameters
        ----------
        then : callable, optional
            What is to be done once it is back.
        """
        alive = self.look()
        self._then = None if alive else then  # what has been done is not done again after a later start
        if alive:
            self.kept.note()
        return alive

    def require(self) -> None:
        """For a use by a cell and not by a button: raise CourseError if the server is gone."""
        if not self.holds():
            raise CourseError(f"{self.kept.why_gone()} Press {self.button.description!r} in the widget.")

    def look(self) -> bool:
        """Whether the server runs, as the widget then shows too."""
        alive = self.kept.is_alive()
        if self.button.disabled:
            return alive  # it is being started here, which says so itself
        if alive:
            self._hide()
        elif self.kept.is_starting:
            self._show_starting()
        else:
            self._show_gone(self.kept.why_gone())
        return alive

    def _show_gone(self, words: str) -> None:
        if self.is_shown and not self._waits:
            return
        self.words.value, self._waits = f"<div role='alert'>{html.escape(words)}</div>", False
        self._set_visible(True)

    def _show_starting(self) -> None:
        """Another widget has been told to start it: say so, and that this one needs nothing more."""
        self.words.value, self._waits = "<div role='status'>The server is being started …</div>", True
        self._set_visible(True)

    def _hide(self) -> None:
        if self.is_shown:
            self._set_visible(False)
            self._waits = False

    def _set_visible(self, visible: bool) -> None:
        self.layout.display = None if visible else "none"
        for button in self._buttons:
            button.layout.display = "none" if visible else None

    def _start_again(self) -> None:
        if self.button.disabled:  # a second click that was on its way when the first arrived
            return
        self.button.disabled, then, self._then = True, self._then, None
        try:
            with ticking(self._say_how_far):
                self.kept.start_again()
        except CourseError as error:
            failed = "Not attached." if self.kept.is_attached else "It did not start."
            self.words.value = f"<div role='alert'><b>{failed}</b> {html.escape(str(error))}</div>"
            self._then = then
            return
        finally:
            self.button.disabled = False
        self._hide()
        if then is not None:
            then()

    def _say_how_far(self, seconds: float) -> None:
        what = "Attaching" if self.kept.is_attached else "Starting"
        words = f"{what} the server: {self.kept.how_far()}, {seconds:.0f} s …"
        self.words.value = f"<div role='status'>{words}</div>"


class Watching(Protocol):
    """A widget that shows whether servers run."""

    def look(self) -> object:
        """Look at them, and show how they are now."""


_watching: weakref.WeakSet[Watching] = weakref.WeakSet()
_listing = threading.Lock()  # a set that grows while a thread goes over it is an error
_begun = threading.Lock()


def _watch(widget: Watching) -> None:
    """Let it look from time to time, so that the page says by itself that a server has ended, or runs again."""
    with _listing:
        _watching.add(widget)
    if _begun.acquire(blocking=False):
        threading.Thread(target=_keep_looking, name="servers of widgets", daemon=True).start()


def _keep_looking() -> None:
    while True:
        time.sleep(LOOK_EVERY_S)
        _look()


def _look() -> None:
    with _listing:
        widgets = list(_watching)
    for widget in widgets:
        widget.look()


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
        self.words, self._shown = ipywidgets.HTML(), set[int | None]()
        self.button = ipywidgets.Button(description="Stop now", icon="stop")
        self.button.on_click(lambda _: self._stop())
        super().__init__([self.words, self.button], label="Servers of this notebook")
        self._tell()
        _watch(self)

    def look(self) -> None:
        """Say what runs now, if a server has ended since, or a widget has started one again."""
        if not self.button.disabled and {server.pid for server in _own()} != self._shown:
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
        self._shown = {server.pid for server in own}
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
    return servers.running(attached=False)
