"""Controls, Run, Stop, and one picture that is redrawn while something runs.

    def work(server, policy):                               # a generator: what to show so far
        for so_far in trace_run.follow(client, requests, log_path):
            yield Frame(charts.slot_map(...), "8 slots, ...")

    board = Dashboard({"policy": ipywidgets.Dropdown(options=POLICIES)}, work, server)

The picture is a plotly figure, which hovers and zooms while the run goes on. A stored notebook keeps the last one.
"""

from __future__ import annotations

import contextlib
import html
import threading
from collections.abc import Callable, Generator
from time import monotonic
from typing import Any, NamedTuple

import ipywidgets
import plotly.graph_objects as go

from inflight.errors import CourseError
from inflight.notebook.pages import progress, session
from inflight.notebook.widgets.live_figure import LiveFigure
from inflight.notebook.widgets.panel import WRAP, Panel, side_by_side
from inflight.triton.serving.server import Server

DRAW_EVERY_S = 0.1  # faster than that only makes a browser stutter


class Frame(NamedTuple):
    """A picture, and the picture in words."""

    figure: go.Figure
    alt: str

    @property
    def words(self) -> str:
        """The text below the picture, in HTML."""
        return html.escape(self.alt)


class Dashboard(Panel):
    """Runs `work` in a thread of its own, and shows the newest of the frames that it yields.

    Parameters
    ----------
    controls : dict of str to widget
        By the name of the parameter of `work` that gets the widget's value. They are disabled while it runs.
    work : callable
        A generator function. It yields a `Frame` whenever there is news, at the very least every second: between two
        frames it can be stopped. Closed early, it ends what it started.
    server : Server, optional
        The first argument of `work`; Run starts it again where it has ended.
    label : str
        Its name for a screen reader.
    picture : widget, optional
        Where the frames are drawn; a `LiveFigure` unless a subclass, whose `_draw` knows another, brings it.

    Attributes
    ----------
    run_button, stop_button : Button
    picture : LiveFigure
        The last frame's figure.
    words, status : HTML
        The last frame's text, and the state of the run.
    frame : Frame or None
        The last frame that was drawn.
    """

    def __init__(
        self,
        controls: dict[str, ipywidgets.ValueWidget],
        work: Callable[..., Generator[Any, None, None]],
        server: Server | None = None,
        label: str = "Dashboard",
        picture: ipywidgets.Widget | None = None,
    ):
        self.controls, self._work = controls, work
        self._server = None if server is None else session.weakly_held(server)
        self.frame: Any = None
        # An event, for a thread whose `join` was interrupted counts as ended (Python's issue 45274).
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._ended.set()
        self._error: Exception | None = None
        self._runs, self._doing, self._seconds = 0, "", 0.0
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.picture = LiveFigure() if picture is None else picture
        self.words, self.status = ipywidgets.HTML(), ipywidgets.HTML("Press Run.")
        self.run_button.on_click(lambda _: self._start())
        self.stop_button.on_click(lambda _: self.stop())
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.status], layout=WRAP)
        super().__init__([side_by_side(controls.values()), buttons, self.picture, self.words], label)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {control.value!r}" for name, control in self.controls.items())
        shown = f"; it shows: {self.frame.alt}" if self.frame else "; nothing has run yet"
        return f"Dashboard with buttons Run and Stop, {values}{shown}"

    @property
    def figure(self) -> go.Figure | None:
        return getattr(self.frame, "figure", None)

    def run(self) -> Any:
        """Press Run and wait for the end, as a cell does; a run that a click has begun is waited for first.

        Returns
        -------
        Frame
            The last one.

        Raises
        ------
        Exception
            The error of `work`; it is shown in the widget too. CourseError when the server is gone.
        """
        try:
            self.wait()
            self._start()
            self.wait()
        except BaseException:  # an interrupt: nothing goes on behind it
            self.stop()
            self.wait()
            raise
        if self._error is not None:
            raise self._error
        return self.frame

    def stop(self) -> None:
        """Ask the run, if there is one, to end at its next frame."""
        self._stopping.set()
        self.stop_button.disabled = True

    def wait(self) -> None:
        """Wait until the run, if there is one, has ended."""
        self._ended.wait()

    def _start(self) -> None:
        if self.run_button.disabled:  # a second click that was on its way when the first arrived
            return
        self._set_running(True)
        self._stopping.clear()
        self._ended.clear()
        self._runs += 1
        self._error, self._seconds = None, 0.0
        self._say("Running")
        values = {name: control.value for name, control in self.controls.items()}
        # The kernel hears the Stop button only when no callback runs: the work needs a thread of its own.
        threading.Thread(target=self._follow, args=(values,), name="dashboard", daemon=True).start()

    def _set_running(self, running: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = running, not running
        for control in self.controls.values():
            control.disabled = running

    def _follow(self, values: dict) -> None:
        try:
            with progress.ticking(self._tick):
                given = [] if self._server is None else [self._server()]
                self._show(self._work(*given, **values))
            ended = "Stopped" if self._stopping.is_set() else "Done"
            self.status.value = f"<b>{ended}.</b> {html.escape(self._result())}"
        except CourseError as error:
            self._error, self.status.value = error, f"<b>Failed.</b> {html.escape(error.sentence)}"
        except Exception as error:  # nobody would see a thread's traceback
            self._error = error
            self.status.value = f"<b>Unexpected {type(error).__name__}.</b> {html.escape(str(error))}"
        finally:
            self._set_running(False)
            self._ended.set()

    def _say(self, doing: str) -> None:
        """Say what the run does now, with the seconds since its start counted beside it."""
        self._doing = doing
        self.status.value = f"{html.escape(doing)} … {self._seconds:.0f} s"

    def _tick(self, seconds: float) -> None:
        self._seconds = seconds
        self._say(self._doing)

    def _show(self, frames: Generator[Any, None, None]) -> None:
        """Draw the newest frame, but not too often; the last one in any case."""
        drawn_at, late = float("-inf"), None
        with contextlib.closing(frames):
            for frame in frames:
                late = frame
                if monotonic() - drawn_at >= DRAW_EVERY_S:
                    self._draw(frame)
                    drawn_at, late = monotonic(), None
                if self._stopping.is_set():
                    break
        if late is not None:
            self._draw(late)

    def _draw(self, frame: Any) -> None:
        self.picture.draw(frame.figure, view=self._runs)
        self.words.value = frame.words
        self.frame = frame

    def _result(self) -> str:
        """Sum up a run that has ended in a sentence, shown after "Done."."""
        return ""
