"""A figure computed from sliders and redrawn at every change; no server runs."""

from __future__ import annotations

import html
from collections.abc import Callable

import ipywidgets
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
        Gives the `Frame` for these values.
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

    def _redraw(self, _change=None) -> None:
        self.frame = self._draw(**{name: control.value for name, control in self.controls.items()})
        self.picture.draw(self.frame.figure)
        self.words.value = html.escape(self.frame.alt)
