"""What every widget of the course is: keys typed in it stay in it, its controls have names, and it can be read without
a kernel, as text and as a static picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import ipywidgets
import plotly.graph_objects as go

from inflight.notebook.charts.display import PLOTLY_MIME, in_course_look
from inflight.notebook.keyboard import PANEL, Keyboard

WRAP = {"flex_flow": "row wrap"}  # on a narrow page what stands side by side stands below each other
CONTROL_EM, SLIDER_EM, CHARACTER_EM = 8, 12, 0.6  # how wide at least: a control, a slider, a character of its name

PICTURE = (
    "border: 1px solid #767676; border-radius: 4px; padding: 4px 12px; line-height: 1.6; overflow-wrap: break-word"
)
CONTROL = "border: 1px solid #767676; border-radius: 3px; padding: 0 6px"


class Panel(ipywidgets.VBox):
    """A column of widgets, to the page a group with a name.

    Parameters
    ----------
    children : sequence of widget
    label : str
        What a screen reader calls it.
    """

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
    """Controls in as many columns as the page has room for, their names of one width."""
    controls = list(controls)
    name_em = 1 + round(CHARACTER_EM * max((len(control.description) for control in controls), default=0))
    for control in controls:
        control.style.description_width, control.layout.width = f"{name_em}em", "auto"
    wide = any("Slider" in type(control).__name__ for control in controls)
    least_em = name_em + (SLIDER_EM if wide else CONTROL_EM)
    columns = f"repeat(auto-fit, minmax(min({least_em}em, 100%), 1fr))"
    return ipywidgets.Box(controls, layout={"display": "grid", "grid_template_columns": columns, "grid_gap": "0 1em"})


def picture(panel: Panel) -> str:
    """A panel as it stands, in HTML that does nothing.

    Returns
    -------
    str
        Each control with its name and value, each button with what stands on it, each text as it is.
    """
    return f'<div role="group" aria-label="{html.escape(panel.label)}" style="{PICTURE}">{_children(panel)}</div>'


def _children(box: ipywidgets.Box) -> str:
    return "".join(_drawn(child) for child in box.children)


def _drawn(widget: ipywidgets.Widget) -> str:
    if isinstance(widget, ipywidgets.HTML):
        return f"<div>{widget.value}</div>" if widget.value else ""
    if isinstance(widget, ipywidgets.Button):
        return f'<span style="{CONTROL}">{html.escape(widget.description)}</span> '
    if isinstance(widget, ipywidgets.Box):
        return f"<div>{_children(widget)}</div>"
    if isinstance(widget, ipywidgets.RadioButtons):
        signs = (("◉" if label == widget.label else "○", label) for label in widget._options_labels)
        return "".join(f"<div>{sign} {html.escape(label)}</div>" for sign, label in signs)
    if isinstance(widget, ipywidgets.ValueWidget) and hasattr(widget, "description"):
        value = widget.label if isinstance(widget, ipywidgets.Dropdown) else widget.value
        shown = str(value) if value not in ("", None) else getattr(widget, "placeholder", "")
        called = html.escape(widget.description or widget.tooltip or "")
        # One without a description has its name beside it already.
        name, title = (f"{called} ", "") if widget.description else ("", f' title="{called}"')
        return f'<div>{name}<span{title} style="{CONTROL}">{html.escape(shown) or "&nbsp;"}</span></div>'
    return ""
