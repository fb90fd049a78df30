"""Panels one above the other, each with its title above it: plotly's subplots."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

TITLE_PX, NOTE_PX, AXIS_PX, LEGEND_PX, DEVICE_PX = 28, 18, 52, 40, 24


def panels(titles: Sequence[str], panel_px: int, notes: Sequence[str] = ()) -> go.Figure:
    """A figure with a panel for each title: rows of one column, the first at the top, with one x axis.

    Parameters
    ----------
    panel_px : int
        Height of a panel without its title.
    notes : sequence of str
        Text below each title, in light letters; none by default.
    """
    head_px = TITLE_PX + (NOTE_PX if notes else 0)
    inner_px = panel_px * len(titles) + head_px * (len(titles) - 1)
    texts = [f"<b>{title}</b>" for title in titles]
    fig = make_subplots(
        rows=len(titles),
        shared_xaxes=True,
        vertical_spacing=head_px / inner_px,
        subplot_titles=[f"{text}<br>{note}" for text, note in zip(texts, notes)] if notes else texts,
    )
    fig.update_annotations(x=0, xanchor="left", align="left", font_size=13)
    margin = {"t": head_px + DEVICE_PX, "b": AXIS_PX}
    return fig.update_layout(height=inner_px + sum(margin.values()) + LEGEND_PX, margin=margin)


def axes_of(number: int) -> dict:
    """Return the axes of a panel, counted from 1, as a trace takes them."""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def add_strip(fig: go.Figure, number: int, count: int, share: float) -> dict:
    """Give a share at the foot of a panel of `count` its own y axis; return the axes as a trace takes them."""
    panel, strip = fig.layout[f"yaxis{number}"], f"y{count + number}"
    bottom, top = panel.domain
    middle = bottom + share * (top - bottom)
    panel.domain = [middle, top]
    fig.update_layout({f"yaxis{count + number}": {"domain": [bottom, middle], "anchor": f"x{number}"}})
    fig.layout[f"xaxis{number}"].anchor = strip
    return {"xaxis": f"x{number}", "yaxis": strip}
