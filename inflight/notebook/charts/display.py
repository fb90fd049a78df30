"""One look for every picture, and one way to show it wherever a notebook is read."""

import html
import json
import re
import textwrap

import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import HTML, display

from inflight import machine
from inflight.errors import CourseError
from inflight.notebook.palette import DECODE, FONT, GRID, HEIGHT, INK, MARGIN, PREFILL, REQUEST, WASTE, WASTE_TEXT

NARROWEST_PX = 440  # the least that a notebook gives an output: JupyterLab with its sidebar, on a laptop at 150 %
BUTTONS_PX = (122, 28)  # what plotly's buttons take at the top right: width and height
CHARACTER_EM = 0.56  # how wide a letter is on average, in most fonts
TITLE_SIZE, CAPTION_SIZE, LEGEND_SIZE = 16, 12, 13  # of the letters, in pixels
LINE_EM, FIRST_LINE_EM, PAD_PX = 1.3, 0.7, 8
LEGEND_MARK_PX, LEGEND_PX = 50, 300  # a legend's entry but for its words, and these at the most

_TICKS = {"ticks": "outside", "ticklen": 6, "tickcolor": "white"}  # or the zeros of both axes would touch
_AXIS = {
    "gridcolor": GRID,
    "linecolor": INK,
    "zeroline": False,
    "automargin": True,
    **_TICKS,
    "title": {"font": {"size": 14}},
}
# The title stands at the top, beside plotly's buttons, and the legend at the bottom, below the axes: for both plotly
# finds the room (`yref` "container"), however narrow the page is and however many rows the legend takes there.
pio.templates["course"] = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "colorway": [DECODE, PREFILL, *REQUEST, WASTE],
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "margin": MARGIN,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "title": {"x": 0, "xref": "container", "y": 1, "yref": "container", "yanchor": "top"},
        "legend": {
            "orientation": "h",
            "x": 0,
            "xref": "container",
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
            "font": {"size": LEGEND_SIZE},
        },
        "modebar": {"bgcolor": "rgba(0, 0, 0, 0)"},
        "hoverlabel": {"bgcolor": "white", "bordercolor": INK, "font": {"color": INK, "size": 13}, "align": "left"},
    }
)
pio.templates.default = "course"


PLOTLY_MIME = "application/vnd.plotly.v1+json"
# Of plotly.js, wherever it draws. Few buttons, so that a title fits beside them: the others do nothing here, or what
# these do. Not `responsive`: JupyterLab itself tells a picture that its place has another size, and where it is slow to
# show it, plotly would make that place as high as nothing.
CONFIG = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly.js 4 would offer to upload the picture's data
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
}


def in_course_look(fig: go.Figure) -> dict:
    """`fig` as plotly.js takes it (`data`, `layout`, `config`), in the course's colours and fonts, with a height.

    A figure's own height and margins are those of the picture: it gets as much higher as title, caption and legend are.
    """
    spec = json.loads(fig.to_json(validate=False))  # not `to_dict`, which leaves some columns as numpy arrays
    layout, device = spec["layout"], _device(fig)
    layout["template"] = pio.templates["course"].to_plotly_json()
    layout.setdefault("height", HEIGHT)
    for trace in spec["data"]:
        if trace["type"] == "bar":
            trace.setdefault("cliponaxis", False)  # or what is written beside the longest bar is cut off
        if "name" in trace:
            trace["name"] = "<br>".join(wrapped(trace["name"], LEGEND_SIZE, LEGEND_PX))
    head = _write_head(layout, f"measured on {device}" if device else "")
    layout["height"] += head + _legend_px(spec)
    margin = layout.setdefault("margin", {})
    margin["t"] = margin.get("t", MARGIN["t"]) + head
    return {"data": spec["data"], "layout": layout, "config": CONFIG}


def _device(fig: go.Figure) -> str:
    """What a picture's figures were measured on: this machine's device, unless its `meta` names another, or none."""
    meta = fig.layout.meta
    return meta["device"] if isinstance(meta, dict) and "device" in meta else machine.device_name()


def wrapped(text: str, size_px: int, width_px: int = NARROWEST_PX) -> list[str]:
    """`text` in lines that are at most `width_px` wide in letters of `size_px`."""
    return textwrap.wrap(text, int(width_px / (CHARACTER_EM * size_px)), break_long_words=False)


def _write_head(layout: dict, caption: str) -> int:
    """Title and caption in lines that leave room for plotly's buttons; returns how much room above they take."""
    title, room = layout.get("title", {}), NARROWEST_PX - BUTTONS_PX[0] - PAD_PX
    headings = wrapped(title.get("text") or "", TITLE_SIZE, room)
    notes = wrapped(caption, CAPTION_SIZE, room)
    if not headings and not notes:
        return BUTTONS_PX[1]
    written = {"text": "<br>".join(notes), "font": {"size": CAPTION_SIZE, "color": WASTE_TEXT}}
    # plotly sets the first of several lines by its baseline, a single one by the upper edge of its letters.
    shift = (FIRST_LINE_EM * (TITLE_SIZE if headings else CAPTION_SIZE)) if len(headings or notes) > 1 else 0
    heading = {"text": "<br>".join(headings), "font": {"size": TITLE_SIZE}, "subtitle": written}
    layout["title"] = {**title, **(heading if headings else written), "pad": {"t": PAD_PX + shift, "l": PAD_PX}}
    lines_px = LINE_EM * (TITLE_SIZE * len(headings) + CAPTION_SIZE * len(notes))
    return max(BUTTONS_PX[1], round(PAD_PX + lines_px + PAD_PX))


def _legend_px(spec: dict) -> int:
    """How high the legend is where the page is narrowest: plotly gives all entries the width of the widest."""
    entries = [trace for trace in spec["data"] if trace.get("showlegend", True)]
    if not entries or not spec["layout"].get("showlegend", len(entries) > 1):
        return 0
    names = [trace.get("name", "trace 0").split("<br>") for trace in entries]
    widths = [LEGEND_MARK_PX + CHARACTER_EM * LEGEND_SIZE * max(map(len, lines)) for lines in names]
    columns = len(names) if sum(widths) < NARROWEST_PX else max(1, int(NARROWEST_PX // max(widths)))
    num_lines = sum(max(map(len, names[start : start + columns])) for start in range(0, len(names), columns))
    return round(num_lines * LINE_EM * LEGEND_SIZE) + 2 * PAD_PX


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
    """`frame` without its index: text to the left, numbers to the right, whole texts."""

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
