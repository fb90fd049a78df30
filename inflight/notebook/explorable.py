"""What every explorable has: controls, a picture that follows them, a sentence under it, and measured points."""

from __future__ import annotations

import html
from collections.abc import Callable

import ipywidgets
import pandas as pd

from inflight.errors import CourseError
from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from inflight.notebook.dashboard import Frame
from inflight.notebook.live_figure import LiveFigure
from inflight.notebook.palette import INK
from inflight.notebook.panel import Panel

# A measured point beside the line that was worked out: hollow, so that the line is seen through it.
MEASURED = {"symbol": "diamond-open", "size": 12, "color": INK, "line": {"width": 2}}
_NO_POINTS = pd.DataFrame()


class Explorable(Panel):
    """Redraws a picture whenever a control changes: what it shows is worked out, so nothing runs.

    Parameters
    ----------
    controls : dict of str to widget
        By the name of the parameter of `draw` that gets the widget's value.
    draw : callable
        Gives the `Frame` for these values. Its first argument, a DataFrame, has the points that were measured with
        them; it is empty when there are none.
    columns : tuple of str
        What a row of measured points must have.
    label : str
        What a screen reader calls it.

    Attributes
    ----------
    picture : LiveFigure
    words : HTML
        The picture in a sentence.
    frame : Frame
        What is shown.
    """

    def __init__(
        self,
        controls: dict[str, ipywidgets.ValueWidget],
        draw: Callable[..., Frame],
        columns: tuple[str, ...],
        label: str,
    ):
        self.controls, self._draw, self._columns = controls, draw, columns
        self._measured: list[tuple[dict, pd.DataFrame]] = []  # settings of a run, and its points
        self.picture, self.words = LiveFigure(), ipywidgets.HTML()
        for control in controls.values():
            control.observe(self._redraw, "value")
        super().__init__([*controls.values(), self.picture, self.words], label)
        self._redraw()

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {control.value}" for name, control in self.controls.items())
        return f"{self.frame.alt} Set: {values}."

    def _repr_mimebundle_(self, **options) -> dict:
        """The widget, and the picture as it is now for where there is no kernel, such as in a stored notebook."""
        bundle = super()._repr_mimebundle_(**options)
        del bundle["text/html"]  # the controls drawn without the picture
        return {**bundle, PLOTLY_MIME: in_course_look(self.frame.figure)}

    def measured(self, points: pd.DataFrame | list[dict], **settings) -> None:
        """Draw what a run has measured into the picture, and set the controls as they were in that run.

        Points of an earlier run with the same settings are replaced.

        Parameters
        ----------
        points : DataFrame or list of dict
            One row a point.
        settings
            Values of controls, by their names. The points are shown wherever these controls have these values; what
            the picture has on an axis needs none.

        Raises
        ------
        CourseError
            A column is missing, or there is no such control.
        """
        rows = pd.DataFrame(points)
        missing = [name for name in self._columns if name not in rows]
        unknown = [name for name in settings if name not in self.controls]
        if missing or unknown:
            wrong = f"lack the column {missing[0]!r}" if missing else f"name a control {unknown[0]!r} that is not there"
            raise CourseError(
                f"The measured points {wrong}: give rows with {', '.join(self._columns)}, and values of "
                f"{', '.join(self.controls)}."
            )
        self._measured = [(kept, old) for kept, old in self._measured if kept != settings] + [(settings, rows)]
        for name, value in settings.items():
            self.controls[name].value = value
        self._redraw()

    def _redraw(self, _change=None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        shown = [rows for settings, rows in self._measured if all(values[name] == settings[name] for name in settings)]
        self.frame = self._draw(pd.concat(shown) if shown else _NO_POINTS, **values)
        self.picture.draw(self.frame.figure)
        self.words.value = html.escape(self.frame.alt)


def int_slider(value: int, least: int, most: int, description: str, step: int = 1) -> ipywidgets.IntSlider:
    """A slider that tells of every value on its way, in the course's look."""
    return ipywidgets.IntSlider(value, least, most, step, description=description, **_LOOK)


def float_slider(value: float, least: float, most: float, description: str, step: float) -> ipywidgets.FloatSlider:
    """As `int_slider`."""
    return ipywidgets.FloatSlider(value, min=least, max=most, step=step, description=description, **_LOOK)


def dropdown(options: list[tuple[str, object]], description: str) -> ipywidgets.Dropdown:
    """A choice, as wide as the sliders."""
    return ipywidgets.Dropdown(options=options, description=description, **_LOOK)


_LOOK = {"style": {"description_width": "13em"}, "layout": {"width": "100%", "max_width": "38em"}}
