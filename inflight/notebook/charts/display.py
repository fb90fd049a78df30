"""One look for every picture, and one way to show it wherever a notebook is read."""

import html
import json
import re

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import HTML, display

from inflight import machine
from inflight.errors import CourseError
from inflight.notebook.charts.palette import (
    DECODE,
    FONT,
    GRID,
    HEIGHT,
    INK,
    MARGIN,
    PREFILL,
    REQUEST,
    WASTE,
    WASTE_TEXT,
)

_TICKS = {"ticks": "outside", "ticklen": 6, "tickcolor": "white"}  # or the zeros of both axes would touch
_AXIS = {
    "gridcolor": GRID,
    "linecolor": INK,
    "zeroline": False,
    "automargin": True,
    **_TICKS,
    "title": {"font": {"size": 14}},
}
# The title stands at the top, and the legend at the bottom, below the axes: plotly finds the room for both.
pio.templates["course"] = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "colorway": [DECODE, PREFILL, *REQUEST, WASTE],
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": MARGIN,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "title": {
            "x": 0,
            "xref": "container",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "automargin": True,
            "pad": {"t": 8, "l": 8, "b": 8},
            "font": {"size": 16},
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xref": "container",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
            "font": {"size": 13},
        },
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
        "hoverlabel": {"bgcolor": "white", "bordercolor": INK, "font": {"color": INK, "size": 13}, "align": "left"},
    }
)
pio.templates.default = "course"


PLOTLY_MIME = "application/vnd.plotly.v1+json"
# Options of plotly.js. Few buttons: the others have no use here. Not `responsive`: JupyterLab tells a picture its new
# size, and where JupyterLab is slow, a responsive picture would have no height.
CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly.js 4 would offer to upload the picture's data
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}


def in_course_look(fig: go.Figure) -> dict:
    """Return `fig` as plotly.js takes it (`data`, `layout`, `config`), in the course's look, naming the device."""
    spec = json.loads(fig.to_json(validate=False))  # not `to_dict`, which leaves some columns as numpy arrays
    layout, device = spec["layout"], _device(fig)
    layout["template"] = pio.templates["course"].to_plotly_json()
    layout.setdefault("height", HEIGHT)
    for trace in spec["data"]:
        if trace["type"] == "bar":
            trace.setdefault("cliponaxis", False)  # or what is written beside the longest bar is cut off
    if device:
        title, caption = layout.setdefault("title", {}), f"measured on {device}"
        look = {"size": 12, "color": WASTE_TEXT}
        if title.get("text"):
            title["subtitle"] = {"text": caption, "font": look}
        else:
            title.update(text=caption, font=look)
    return {"data": spec["data"], "layout": layout, "config": CONFIG}


def _device(fig: go.Figure) -> str:
    """Return the device that a picture was measured on: this machine's, unless its `meta` names another, or none."""
    meta = fig.layout.meta
    return meta["device"] if isinstance(meta, dict) and "device" in meta else machine.device_name()


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


# Tables ---------------------------------------------------------------------------------------------------------------


def table(frame: pd.DataFrame, decimals: int = 1) -> HTML:
    """Show `frame` without its index: text to the left, numbers to the right, texts uncut."""

    def cell(tag: str, value: object, is_number: bool) -> str:
        look = f"text-align: {'right' if is_number else 'left'}; vertical-align: top; padding: 4px 6px"
        if is_number and tag == "td":
            places = decimals if isinstance(value, float) else 0
            return f'<td style="{look}; white-space: nowrap">{value:,.{places}f}</td>'
        # A long name may be broken rather than push the table off a narrow page. Not by a style: JupyterLab takes that
        # away from what this user's kernel has not made.
        text = re.sub(r"(?<=\w)([_/=]|-+|[.,:](?=[^\W\d]))(?=\w)", r"\1<wbr>", html.escape(str(value)))
        text = re.sub(r"(?<![\w-])--\w+", r'<span style="white-space: nowrap">\g<0></span>', text)  # not after its --
        return f'<{tag} style="{look}">{text}</{tag}>'

    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    head = "".join(cell("th", name, number) for name, number in zip(frame.columns, numeric, strict=True))
    rows = [
        "".join(cell("td", value, number) for value, number in zip(row, numeric, strict=True))
        for row in frame.itertuples(index=False, name=None)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return HTML(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
