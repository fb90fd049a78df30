"""Controls, Run, Stop, and one picture that is redrawn while something runs.

    def work(policy):                                       # a generator: what to show so far
        for so_far in trace_run.follow(client, requests, log_path):
            yield Frame(charts.slot_map(...), "8 slots, ...")

    board = Dashboard({"policy": ipywidgets.Dropdown(options=POLICIES)}, work)

The picture is a plotly figure, which hovers and zooms while the run goes on. A widget's state is not part of a stored
notebook, so the cell after it shows the last picture once more: `charts.show(*board.frame)`.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import ipywidgets
import plotly.graph_objects as go

from inflight.errors import CourseError
from inflight.notebook import interrupts, progress
from inflight.notebook.live_figure import LiveFigure
from inflight.notebook.panel import Panel
from inflight.notebook.session import Kept

WRAP = {"flex_flow": "row wrap"}  # on a narrow page what stands side by side stands below each other
DRAW_EVERY_S = 0.1  # faster than that only makes a browser stutter


class Frame(NamedTuple):
    """A picture, and the picture in words."""

    figure: go.Figure
    alt: str


class Dashboard(Panel):
    """Runs `work` in a thread of its own, and shows the newest of the frames that it yields.

    Besides its own Stop, the toolbar's interrupt stops it while no cell runs.

    Parameters
    ----------
    controls : dict of str to widget
        By the name of the parameter of `work` that gets the widget's value. They are disabled while it runs.
    work : callable
        A generator function. It yields a `Frame` whenever there is news, at the very least every second: between two
        frames it can be stopped. Closed early, it ends what it started.
    picture : widget, optional
        Where the frames are drawn; a `LiveFigure` unless a subclass, whose `_draw` knows another, brings it.
    kept : Kept, optional
        The server that `work` needs: while it is gone, the widget offers to start it again in place of its buttons.
    label : str
        What a screen reader calls it.
    clock : callable, optional
        Seconds, as `time.monotonic`.

    Attributes
    ----------
    run_button, stop_button : Button
    picture : LiveFigure
        The last frame's figure.
    words, status : HTML
        The last frame's text, and what has happened.
    frame : Frame or None
        The last frame that was drawn.
    """

    def __init__(
        self,
        controls: dict[str, ipywidgets.ValueWidget],
        work: Callable[..., Iterator[Frame]],
        picture: ipywidgets.Widget | None = None,
        kept: Kept | None = None,
        label: str = "Dashboard",
        clock: Callable[[], float] = time.monotonic,
    ):
        self.controls, self._work, self._kept, self._clock = controls, work, kept, clock
        self.frame: Frame | None = None
        self._stopping, self._thread, self._error, self._runs = threading.Event(), None, None, 0
        self._doing, self._seconds = "", 0.0
        self.run_button = ipywidgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", icon="stop", disabled=True)
        self.picture = LiveFigure() if picture is None else picture
        self.words, self.status = ipywidgets.HTML(), ipywidgets.HTML()
        self._hint = ipywidgets.HTML("Press Run.")
        self.run_button.on_click(lambda _: self._start())
        self.stop_button.on_click(lambda _: self.stop())
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self._hint, self.status], layout=WRAP)
        super().__init__([*controls.values(), buttons, self.picture, self.words], label)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {control.value!r}" for name, control in self.controls.items())
        shown = f"; it shows: {self.frame.alt}" if self.frame else "; nothing has run yet"
        return f"Dashboard with buttons Run and Stop, {values}{shown}"

    def run(self) -> Frame:
        """Press Run and wait for the end: for a notebook that is executed unattended.

        Returns
        -------
        Frame
            The last one.

        Raises
        ------
        Exception
            What `work` raised; it is shown in the widget too. CourseError when the server is gone.
        """
        try:
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
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self.run_button.disabled:  # a second click that was on its way when the first arrived
            return
        self._set_running(True)
        self._stopping.clear()
        self._runs += 1
        self._error, self._hint.value, self._seconds = None, "", 0.0
        self._say("Running")
        values = {name: control.value for name, control in self.controls.items()}
        # The kernel hears the Stop button only when no callback runs: the work needs a thread of its own.
        self._thread = threading.Thread(target=self._follow, args=(values,), name="dashboard", daemon=True)
        self._thread.start()

    def _set_running(self, running: bool) -> None:
        self.run_button.disabled, self.stop_button.disabled = running, not running
        for control in self.controls.values():
            control.disabled = running

    def _follow(self, values: dict) -> None:
        try:
            with interrupts.stopping(self.stop), progress.ticking(self._tick):
                if self._kept is not None and not self._kept.is_alive():
                    self._say("Starting the server")
                    self._kept.start()
                self._show(self._work(**values))
            ended = "Stopped" if self._stopping.is_set() else "Done"
            self.status.value = f"<b>{ended}.</b> {html.escape(self._result())}"
        except CourseError as error:
            self._error, self.status.value = error, f"<b>Failed.</b> {html.escape(_reason(error))}"
        except Exception as error:  # a thread's traceback would be seen by nobody
            self._error = error
            self.status.value = f"<b>Unexpected {type(error).__name__}.</b> {html.escape(str(error))}"
        finally:
            self._set_running(False)

    def _say(self, doing: str) -> None:
        """What the run does now; the seconds since its start are counted beside it."""
        self._doing = doing
        self.status.value = f"{html.escape(doing)} … {self._seconds:.0f} s"

    def _tick(self, seconds: float) -> None:
        self._seconds = seconds
        self._say(self._doing)

    def _show(self, frames: Iterator[Frame]) -> None:
        """Draw the newest frame, but not too often; the last one in any case."""
        drawn_at, late = float("-inf"), None
        try:
            for frame in frames:
                late = frame
                if self._clock() - drawn_at >= DRAW_EVERY_S:
                    late = None
                    self._draw(frame)
                    drawn_at = self._clock()
                if self._stopping.is_set():
                    break
        finally:
            frames.close()
            if late is not None:
                self._stopping.wait(max(0.0, drawn_at + DRAW_EVERY_S - self._clock()))
                self._draw(late)

    def _draw(self, frame: Frame) -> None:
        self.picture.draw(frame.figure, view=self._runs)
        self.words.value = html.escape(frame.alt)
        self.frame = frame

    def _result(self) -> str:
        """What a run that has ended has come to, in a sentence; it stands behind "Done."."""
        return ""


def _reason(error: CourseError) -> str:
    """What a widget has room for: not the log."""
    return str(error).partition("\nLast lines of the log:")[0]
