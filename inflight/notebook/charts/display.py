"""One look for every picture, and one way to show it wherever a notebook is read."""

import html
import json

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import HTML, display

from inflight import machine
from inflight.errors import CourseError
from inflight.notebook.palette import DECODE, FONT, GRID, HEIGHT, INK, MARGIN, PREFILL, REQUEST, WASTE, WASTE_TEXT

_AXIS = {"gridcolor": GRID, "linecolor": INK, "zeroline": False, "automargin": True}
pio.templates["course"] = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "colorway": [DECODE, PREFILL, *REQUEST, WASTE],
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": MARGIN,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "title": {"x": 0, "xref": "paper", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 10}},
        "legend": {"orientation": "h", "x": 0, "yref": "container", "yanchor": "bottom", "traceorder": "normal"},
    }
)
pio.templates.default = "course"


PLOTLY_MIME = "application/vnd.plotly.v1+json"
CAPTION_PX = 20
CONFIG = {"displaylogo": False, "responsive": True}  # of plotly.js, wherever it draws


def in_course_look(fig: go.Figure) -> dict:
    """`fig` as plotly.js takes it (`data`, `layout`, `config`), in the course's colours and fonts, with a height."""
    spec = json.loads(fig.to_json(validate=False))  # not `to_dict`, which leaves some columns as numpy arrays
    layout = spec["layout"]
    layout["template"] = pio.templates["course"].to_plotly_json()
    height = layout.setdefault("height", HEIGHT)
    layout.setdefault("legend", {}).setdefault("y", 1 - 54 / height)  # between the title and the titles of subplots
    if device := _device(fig):
        _add_caption(layout, f"measured on {device}")
    return {"data": spec["data"], "layout": layout, "config": CONFIG}


def _device(fig: go.Figure) -> str:
    """What a picture's figures were measured on: this machine's device, unless its `meta` names another, or none."""
    meta = fig.layout.meta
    return meta["device"] if isinstance(meta, dict) and "device" in meta else machine.device_name()


def _add_caption(layout: dict, caption: str) -> None:
    """A line above all that a figure has; it gets as much higher as the line is."""
    height = layout["height"]
    layout["height"] = height + CAPTION_PX
    margin, legend, title = layout.setdefault("margin", {}), layout["legend"], layout.setdefault("title", {})
    margin["t"] = margin.get("t", MARGIN["t"]) + CAPTION_PX
    if legend.get("yref", "container") == "container":  # as far from the picture as it was
        legend["y"] = legend["y"] * height / layout["height"]
    written = {"text": caption, "font": {"size": 12, "color": WASTE_TEXT}}
    title |= {"subtitle": written} if title.get("text") else written


def show(fig: go.Figure, alt: str) -> None:
    """Display `fig` in the course's look: plotly's JSON, which JupyterLab draws, and `alt` in one output.

    Both name the device that the figures were measured on.

    Parameters
    ----------
    fig : Figure
        `meta={"device": …}` of its layout names another device than this machine's; "" is for what was not measured.
    alt : str
        The picture in a sentence or two, for those who do not see it: what the axes are and what it shows.

    Raises
    ------
    CourseError
        `alt` is not a summary.
    """
    if len(alt.split()) < 6:
        raise CourseError(f"show() got alt={alt!r}; say in a sentence what the picture shows, with its figures.")
    device = _device(fig)
    in_words = f"{alt} Measured on {device}." if device else alt
    display({PLOTLY_MIME: in_course_look(fig), "text/plain": in_words}, raw=True)


def page(fig: go.Figure) -> str:
    """`fig` in the course's look as an HTML page of its own, which needs no network."""
    return pio.to_html(in_course_look(fig), config=CONFIG, include_plotlyjs=True, validate=False)


# Tables ---------------------------------------------------------------------------------------------------------------


def table(frame: pd.DataFrame, decimals: int = 1) -> HTML:
    """`frame` without its index: text to the left, numbers to the right, whole texts."""

    def cell(tag: str, value: object, is_number: bool) -> str:
        look = f"text-align: {'right' if is_number else 'left'}; vertical-align: top"
        places = decimals if isinstance(value, float) else 0
        text = f"{value:,.{places}f}" if is_number and tag == "td" else str(value)
        return f'<{tag} style="{look}">{html.escape(text)}</{tag}>'

    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    head = "".join(cell("th", name, number) for name, number in zip(frame.columns, numeric, strict=True))
    rows = [
        "".join(cell("td", value, number) for value, number in zip(row, numeric, strict=True))
        for row in frame.itertuples(index=False, name=None)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return HTML(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
