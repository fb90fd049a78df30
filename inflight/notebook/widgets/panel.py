"""Base of the course's widgets: keeps typed keys, names its controls, and leaves text and picture without a kernel."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import ipywidgets
import plotly.graph_objects as go

from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from inflight.notebook.charts.palette import FRAME
from inflight.notebook.widgets.keyboard import PANEL, Keyboard

WRAP = {"flex_flow": "row wrap"}  # on a narrow page, columns go below each other
CONTROL_EM, CHARACTER_EM = 12, 0.6  # how wide at least: a control, a character of its name
BOX = f"border: 1px solid {FRAME}; border-radius: 4px; padding: 4px 12px; line-height: 1.6; overflow-wrap: break-word"


class Panel(ipywidgets.VBox):
    """A column of widgets that the page sees as a named group.

    Parameters
    ----------
    children : sequence of widget
    label : str
        Its name for a screen reader.
    """

    by_hand = ""  # how to do without the view, where there is a way

    def __init__(self, children: Sequence[ipywidgets.Widget], label: str):
        self.label = label
        super().__init__([*children, Keyboard(label=label)])
        self.add_class(PANEL)

    @property
    def figure(self) -> go.Figure | None:
        """The picture that the panel shows, if it has one."""
        return None

    def _repr_mimebundle_(self, **kwargs) -> dict:
        # The page prefers the view. A stored notebook has no kernel behind it and keeps the other two.
        bundle = super()._repr_mimebundle_(**kwargs)
        still = {"text/html": picture(self)} if self.figure is None else {PLOTLY_MIME: in_course_look(self.figure)}
        return {**bundle, "text/plain": repr(self), **still}


def side_by_side(controls: Iterable[ipywidgets.ValueWidget]) -> ipywidgets.Box:
    """Arrange controls in as many columns as the page has room for, with names of one width."""
    controls = list(controls)
    name_em = 1 + round(CHARACTER_EM * max((len(control.description) for control in controls), default=0))
    for control in controls:
        control.style.description_width, control.layout.width = f"min({name_em}em, 60%)", "auto"
    columns = f"repeat(auto-fit, minmax(min({name_em + CONTROL_EM}em, 100%), 1fr))"
    return ipywidgets.Box(controls, layout={"display": "grid", "grid_template_columns": columns, "grid_gap": "0 1em"})


def picture(panel: Panel) -> str:
    """Return a panel's present state as static HTML: each control's name and value, each text as it is."""
    by_hand = f'<div class="by-hand"><small>{html.escape(panel.by_hand)}</small></div>' if panel.by_hand else ""
    return f'<div role="group" aria-label="{html.escape(panel.label)}" style="{BOX}">{_drawn(panel)}{by_hand}</div>'


def _drawn(widget: ipywidgets.Widget) -> str:
    if isinstance(widget, ipywidgets.Box):
        return "".join(f"<div>{_drawn(child)}</div>" for child in widget.children)
    if isinstance(widget, ipywidgets.HTML):
        return widget.value
    if isinstance(widget, ipywidgets.RadioButtons):
        signs = (("◉" if label == widget.label else "○", label) for label in widget._options_labels)
        return "".join(f"<div>{sign} {html.escape(label)}</div>" for sign, label in signs)
    value = str(getattr(widget, "label" if isinstance(widget, ipywidgets.Dropdown) else "value", ""))
    said = getattr(widget, "description", ""), value or getattr(widget, "placeholder", "")
    return html.escape(": ".join(filter(None, said)))
