"""A figure computed from sliders and redrawn at every change; no server runs."""

from __future__ import annotations

import html
from collections.abc import Callable

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.live_figure import LiveFigure
from inflight.notebook.widgets.panel import Panel, side_by_side


class Explorable(Panel):
    """Redraws a picture whenever a control changes.

    Parameters
    ----------
    controls : dict of str to widget
        By the name of the parameter of `draw` that gets the widget's value.
    draw : callable
        Gives the `Frame` for these values. Its first argument, a DataFrame, has the points that were measured with
        them; it is empty when there are none.
    label : str
        Its name for a screen reader.

    Attributes
    ----------
    picture : LiveFigure
    words : HTML
        The picture in a sentence.
    frame : Frame
        The frame that is shown.
    """

    def __init__(self, controls: dict[str, ipywidgets.ValueWidget], draw: Callable[..., Frame], label: str):
        self.controls, self._draw = controls, draw
        self._measured: list[tuple[dict, pd.DataFrame]] = []  # settings of a run, and its points
        self.picture, self.words = LiveFigure(), ipywidgets.HTML()
        for control in controls.values():
            control.observe(self._redraw, "value")
        super().__init__([side_by_side(controls.values()), self.picture, self.words], label)
        self._redraw()

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {control.value}" for name, control in self.controls.items())
        return f"{self.frame.alt} Set: {values}."

    @property
    def figure(self) -> go.Figure:
        return self.frame.figure

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
        """
        kept = [(of, rows) for of, rows in self._measured if of != settings]
        self._measured = [*kept, (settings, pd.DataFrame(points))]
        for name, value in settings.items():
            self.controls[name].value = value
        self._redraw()

    def _redraw(self, _change=None) -> None:
        values = {name: control.value for name, control in self.controls.items()}
        shown = [rows for settings, rows in self._measured if settings.items() <= values.items()]
        self.frame = self._draw(pd.concat(shown) if shown else pd.DataFrame(), **values)
        self.picture.draw(self.frame.figure)
        self.words.value = html.escape(self.frame.alt)
