"""What every widget of the course is: keys typed in it stay in it, its controls have names, and it can be read without
a kernel, as text and as a static picture.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets

from inflight.notebook.keyboard import Keyboard

PICTURE = "border: 1px solid #767676; border-radius: 4px; padding: 4px 12px; line-height: 1.6; overflow-wrap: anywhere"
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

    def _repr_mimebundle_(self, **kwargs) -> dict:
        # The page prefers the view. A stored notebook has no kernel behind it and keeps the other two.
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": repr(self), "text/html": picture(self)}


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
    if getattr(widget, "layout", None) is not None and widget.layout.display == "none":
        return ""
    if isinstance(widget, ipywidgets.HTML):
        return f"<div>{widget.value}</div>" if widget.value else ""
    if isinstance(widget, ipywidgets.Button):
        return f'<span style="{CONTROL}">{html.escape(widget.description)}</span> '
    if isinstance(widget, ipywidgets.Accordion):
        parts = zip(widget.titles, widget.children)
        return "".join(
            f"<details><summary>{html.escape(title)}</summary>{_drawn(child)}</details>" for title, child in parts
        )
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
