"""The course's pictures: one look, and one way to show a figure wherever a notebook is read.

A figure function takes DataFrames and returns a plotly figure; `show(figure, alt)` puts it into a notebook as plotly
(JupyterLab, the pages of `make course`), as a static SVG (pages that run no script) and as words.
"""

import base64
import html
import itertools
import math
import re
from collections.abc import Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
from IPython.display import HTML, display

from inflight.errors import CourseError

# Okabe and Ito's colours, told apart with any kind of colour vision; each means one thing in the whole course.
PREFILL = "#E69F00"
DECODE = "#0072B2"
WASTE = "#999999"
REQUEST = ["#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"]

INK, GRID, FONT = "#222222", "#DDDDDD", "system-ui, sans-serif"
_AXIS = {"gridcolor": GRID, "linecolor": INK, "zeroline": False, "automargin": True}
WIDTH, HEIGHT = 760, 420
MARGIN = {"l": 70, "r": 24, "t": 80, "b": 56}
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


def show(fig: go.Figure, alt: str) -> None:
    """Display `fig` in the course's look: plotly, a static SVG and `alt` in one output.

    Args:
        alt: the picture in a sentence or two, for those who do not see it: what the axes are and what it shows.

    Raises:
        CourseError: `alt` is not a summary.
        NotImplementedError: the static picture cannot draw a part of `fig`; names the part.
    """
    if len(alt.split()) < 6:
        raise CourseError(f"show() got alt={alt!r}; say in a sentence what the picture shows, with its figures.")
    fig = go.Figure(fig).update_layout(template="course")
    height = fig.layout.height or HEIGHT
    fig.update_layout(height=height)
    if fig.layout.legend.y is None:  # between the title and the titles of subplots
        fig.update_layout(legend_y=1 - 54 / height)
    spec = fig.to_dict()
    plotly = {"data": spec["data"], "layout": spec["layout"], "config": {"displaylogo": False, "responsive": True}}
    bundle = {"application/vnd.plotly.v1+json": plotly, "image/svg+xml": static_svg(fig, alt), "text/plain": alt}
    display(bundle, raw=True)


def static_svg(fig: go.Figure, alt: str) -> str:
    """`fig` as SVG text: bars, lines, steps, markers, texts, rect and line shapes, annotations, legend, subplots.

    Raises:
        NotImplementedError: `fig` uses something else; the message names it, as `trace.fill`.
    """
    spec = fig.to_dict()
    spec["layout"].pop("template", None)
    return _Picture(spec["data"], spec["layout"]).svg(alt)


# The static picture ---------------------------------------------------------------------------------------------------

# What it draws, by part of the figure; then what only a live chart can do, and what the course's look decides.
KNOWN = {
    "layout": "title width height margin legend showlegend barmode bargap shapes annotations",
    "axis": "title range type domain tickvals ticktext tickmode tickformat ticksuffix dtick visible showticklabels "
    "showgrid autorange rangemode categoryorder categoryarray",
    "scatter": "x y name mode text textposition textfont line marker opacity showlegend orientation",
    "bar": "x y base width name text textposition textfont marker opacity showlegend orientation",
    "line": "color width dash shape",
    "marker": "color size symbol line opacity",
    "shape": "x0 x1 y0 y1 xref yref fillcolor opacity line layer",
    "annotation": "x y xref yref text showarrow ax ay xanchor yanchor font xshift yshift",
}
QUIET = """type xaxis yaxis uid visible hoverinfo hovertext hovertemplate hoverlabel hovermode customdata legendgroup
legendrank uirevision offsetgroup alignmentgroup cliponaxis insidetextanchor textangle constraintext dragmode anchor
matches zeroline gridcolor linecolor automargin fixedrange font plot_bgcolor paper_bgcolor align arrowhead arrowcolor
arrowwidth ticks tickfont showline""".split()
DASHES = {"solid": "none", "dot": "2 3", "dash": "8 5", "dashdot": "8 4 2 4", "longdash": "14 6"}
# Paths of one marker: its middle x, y, its radius r, its sides.
_DISC = "M{left},{y} a{r},{r} 0 1,0 {d},0 a{r},{r} 0 1,0 -{d},0"
SYMBOLS = {
    "circle": _DISC,
    "square": "M{left},{top} H{right} V{bottom} H{left} Z",
    "diamond": "M{x},{top} L{right},{y} L{x},{bottom} L{left},{y} Z",
    "x": "M{left},{top} L{right},{bottom} M{right},{top} L{left},{bottom}",
    "line-ns-open": "M{x},{top} V{bottom}",
}
ANCHORS = {"left": "start", "center": "middle", "right": "end", "auto": "middle"}


def _known(part: str, given: dict | None) -> dict:
    """`given`, a part of the figure, once each of its properties is one that the picture draws."""
    for key in given or {}:
        if key not in KNOWN[part].split() and key not in QUIET:
            raise NotImplementedError(f"the static picture cannot draw {part}.{key}; it draws {KNOWN[part]}")
    return given or {}


def _one_of(part: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise NotImplementedError(f"the static picture cannot draw {part} {value!r}; it draws {', '.join(choices)}")
    return value


def _list(data: object, count: int = 0) -> list:
    """A plotly array, packed or not, as a list; a single value `count` times."""
    if isinstance(data, dict):
        return np.frombuffer(base64.b64decode(data["bdata"]), dtype=data["dtype"]).tolist()
    return list(data) if isinstance(data, list | tuple | np.ndarray) else [data] * count


def _title(spec: dict) -> str:
    title = spec.get("title") or ""
    return title.get("text", "") if isinstance(title, dict) else title


def _stroke(line: dict) -> str:
    dash = DASHES[_one_of("line.dash", line.get("dash", "solid"), DASHES)]
    return f'stroke="{line["color"]}" stroke-width="{line.get("width", 2)}" stroke-dasharray="{dash}"'


def _runs(points: list) -> list[list]:
    """The stretches of `points` between the gaps."""
    return [list(run) for whole, run in itertools.groupby(points, key=lambda point: point is not None) if whole]


class _Axis:
    """One axis: from data to a linear scale (`number`), from there to pixels between `start` and `end` (`pixel`)."""

    def __init__(self, spec: dict, start: float, length: float) -> None:
        low, high = _list(spec.get("domain", (0, 1)))
        self.spec, self.start, self.end = _known("axis", spec), start + low * length, start + high * length
        self.log = _one_of("axis type", spec.get("type", "-"), ("-", "linear", "log", "category")) == "log"
        self.categories, self.seen, self.holds_zero = _list(spec.get("categoryarray")), [], False

    def number(self, value: float | str) -> float:
        if isinstance(value, str) or self.spec.get("type") == "category":
            if value not in self.categories:
                self.categories.append(value)
            return self.categories.index(value)
        return math.log10(value) if self.log else float(value)

    def pixel(self, number: float) -> float:
        return round(self.start + (number - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def settle(self) -> None:
        """Fix the range, once every mark has been seen."""
        seen = [number for number in self.seen if math.isfinite(number)] or [0, 1]
        low, high = min(seen), max(seen)
        if self.categories:
            low, high = -0.5, len(self.categories) - 0.5
        else:
            pad = (high - low) * 0.05 or 0.5
            low, high = low - pad * (low < 0 or not self.holds_zero), high + pad * (high > 0 or not self.holds_zero)
        if self.spec.get("rangemode") == "tozero":
            low, high = min(low, 0), max(high, 0)
        given = _list(self.spec.get("range")) or (None, None)
        self.low, self.high = (auto if end is None else end for end, auto in zip(given, (low, high), strict=True))
        if self.spec.get("autorange") == "reversed":
            self.low, self.high = self.high, self.low

    def ticks(self) -> list[tuple[float, str]]:
        low, high = sorted((self.low, self.high))
        label = lambda value: format(value, self.spec.get("tickformat") or ",.10g") + self.spec.get("ticksuffix", "")
        if "tickvals" in self.spec:
            values = _list(self.spec["tickvals"])
            labels = _list(self.spec.get("ticktext")) or [label(value) for value in values]
            pairs = list(zip(map(self.number, values), map(str, labels), strict=True))
        elif self.categories:
            pairs = list(enumerate(map(str, self.categories)))
        else:
            wished = (high - low) / max(abs(self.end - self.start) / 60, 2)
            power = 10.0 ** math.floor(math.log10(wished))
            step = self.spec.get("dtick") or next(m * power for m in (1, 2, 5, 10) if m * power >= wished * 0.999)
            step = max(1, round(step)) if self.log else step
            steps = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
            places = [round(k * step, 10) for k in steps]
            pairs = [(place, label(10.0**place if self.log else place)) for place in places]
        return [pair for pair in pairs if low - 1e-9 <= pair[0] <= high + 1e-9]


class _Picture:
    """A figure on its way to SVG: note the marks in data units, settle the axes that must hold them, draw."""

    def __init__(self, traces: list[dict], layout: dict) -> None:
        specs = {key.replace("axis", ""): layout.pop(key) for key in list(layout) if re.match("[xy]axis", key)}
        self.layout, self.marks, self.out, self.legend = _known("layout", layout), [], [], []
        self.width, self.height = layout.get("width", WIDTH), layout.get("height", HEIGHT)
        margin = {**MARGIN, **layout.get("margin", {})}
        traces = [trace for trace in traces if trace.get("visible", True) is True]
        named = [len(value) for trace in traces for value in _list(trace.get("y")) if isinstance(value, str)]
        self.left, self.top = max([margin["l"], *(8 * letters + 30 for letters in named)]), margin["t"]
        self.across, self.down = self.width - self.left - margin["r"], self.height - self.top - margin["b"]
        names = {trace.get(k + "axis", k) for trace in traces for k in "xy"} | set(specs) | {"x", "y"}
        self.axes = {name: self._axis(name[0], specs.get(name, {})) for name in sorted(names)}
        self.bars, self.ends = [trace for trace in traces if trace["type"] == "bar"], {}
        for trace, colour in zip(traces, itertools.cycle([DECODE, PREFILL, *REQUEST, WASTE])):  # noqa: B905
            self._read(trace, colour)

    def svg(self, alt: str) -> str:
        shapes = [_known("shape", shape) for shape in self.layout.get("shapes", [])]
        for shape, k in itertools.product(shapes, "xy"):
            if shape.get(k + "ref", k) in self.axes:
                axis = self.axes[shape.get(k + "ref", k)]
                axis.seen += [axis.number(shape[k + "0"]), axis.number(shape[k + "1"])]
        for axis in self.axes.values():
            axis.settle()
        self._draw_axes()
        for below in (True, False):
            for shape in shapes:
                if (shape.get("layer") == "below") is below:
                    self._draw_shape(shape)
            for draw, *mark in self.marks if below else []:
                draw(*mark)
        for note in self.layout.get("annotations", []):
            self._draw_annotation(_known("annotation", note))
        self._draw_legend()
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}" font-size="13">'
        ground = f'<title>{html.escape(alt)}</title>\n<rect width="100%" height="100%" fill="white"/>'
        return "\n".join([head, ground, *self.out, "</svg>"])

    def _axis(self, letter: str, spec: dict) -> _Axis:
        if letter == "x":
            return _Axis(spec, self.left, self.across)
        return _Axis(spec, self.top + self.down, -self.down)

    def _read(self, trace: dict, colour: str) -> None:
        kind = _one_of("trace", trace["type"], ("bar", "scatter"))
        line, marker = _known("line", trace.get("line")), _known("marker", _known(kind, trace).get("marker"))
        given = marker.get("color", line.get("color", colour))
        colours = itertools.cycle(_list(given, 1))
        if not all(isinstance(one, str) for one in _list(given, 1)):
            raise NotImplementedError("the static picture cannot draw marker.color as numbers; give colours by name")
        axes = [self.axes[trace.get(k + "axis", k)] for k in "xy"]
        (self._read_bar if kind == "bar" else self._read_scatter)(trace, axes, colours)
        shown = trace.get("showlegend", self.layout.get("showlegend", len(self.axes) > 0))
        if trace.get("name") and shown:
            self.legend.append((trace["name"], line.get("color") or _list(given, 1)[0]))

    def _read_bar(self, trace: dict, axes: list[_Axis], colours: Iterable[str]) -> None:
        flat = trace.get("orientation") == "h"
        along, value = reversed(axes) if flat else axes
        lengths = _list(trace["x" if flat else "y"])
        value.holds_zero = True
        places = [along.number(p) for p in _list(trace.get("y" if flat else "x")) or range(len(lengths))]
        mode = _one_of("barmode", self.layout.get("barmode", "group"), ("group", "stack", "relative", "overlay"))
        peers = [bar for bar in self.bars if self._pair(bar) == self._pair(trace)] if mode == "group" else [trace]
        gaps = [b - a for a, b in itertools.pairwise(sorted(set(places)))] or [1]
        room = min(gaps) * (1 - self.layout.get("bargap", 0.2))
        widths = _list(trace.get("width", room / len(peers)), len(places))
        texts, bases = _list(trace.get("text", ""), len(places)), _list(trace.get("base"), len(places))
        inside = _one_of("textposition", trace.get("textposition", "auto"), ("auto", "inside", "outside")) != "outside"
        edge = (trace.get("marker") or {}).get("line", {})
        bars = zip(places, lengths, widths, texts, bases, colours)  # noqa: B905: the colours repeat
        for place, length, width, text, base, colour in bars:
            key = (*self._pair(trace), place, length < 0)
            if base is None:
                base = self.ends.get(key, 0) if mode in ("stack", "relative") else 0
            self.ends[key] = base + length
            middle = place + room * ((peers.index(trace) + 0.5) / len(peers) - 0.5)
            sides, run = (middle - width / 2, middle + width / 2), (base, base + length)
            along.seen += sides
            value.seen += run
            box = (*run, *sides) if flat else (*sides, *run)
            self.marks.append((self._draw_bar, axes, box, colour, edge, trace.get("opacity", 1)))
            x, y = (run[0] + run[1]) / 2 if inside else run[1], middle
            self.marks.append((self._draw_label, axes, (x, y) if flat else (y, x), text, trace, inside, flat))

    def _pair(self, trace: dict) -> tuple[str, str]:
        return trace.get("xaxis", "x"), trace.get("yaxis", "y")

    def _read_scatter(self, trace: dict, axes: list[_Axis], colours: Iterable[str]) -> None:
        y = _list(trace["y"])
        points = list(zip(_list(trace.get("x")) or range(len(y)), y, strict=True))
        # A gap (None or NaN) breaks the line in two, as in plotly.
        whole = [None not in point and point[1] == point[1] for point in points]
        points = [[a.number(v) for a, v in zip(axes, p, strict=True)] if w else None for p, w in zip(points, whole)]
        for axis, numbers in zip(axes, zip(*filter(None, points), strict=True), strict=False):
            axis.seen += numbers
        mode = trace.get("mode", "lines+markers" if len(points) < 20 else "lines")
        marker, colour, opacity = trace.get("marker", {}), next(colours), trace.get("opacity", 1)
        if "lines" in mode:
            style = {"color": colour, **trace.get("line", {})}
            self.marks += [(self._draw_line, axes, run, style, opacity) for run in _runs(points)]
        texts = _list(trace.get("text", ""), len(points))
        sizes = _list(marker.get("size", 7), len(points))
        for point, text, size, fill in zip(points, texts, sizes, itertools.chain([colour], colours)):  # noqa: B905
            if point and "markers" in mode:
                symbol = _one_of("marker.symbol", marker.get("symbol", "circle"), SYMBOLS)
                self.marks.append((self._draw_marker, axes, point, symbol, size, fill, marker.get("opacity", opacity)))
            if point and "text" in mode:
                self.marks.append((self._draw_label, axes, point, text, trace, None, False))

    def _draw_bar(self, axes: list[_Axis], box: tuple, colour: str, edge: dict, opacity: float) -> None:
        (x0, x1), (y0, y1) = sorted(map(axes[0].pixel, box[:2])), sorted(map(axes[1].pixel, box[2:]))
        stroke = f'stroke="{edge.get("color", "none")}" stroke-width="{edge.get("width", 0)}"'
        size = f'width="{x1 - x0:.1f}" height="{y1 - y0:.1f}"'
        self.out.append(f'<rect x="{x0}" y="{y0}" {size} fill="{colour}" opacity="{opacity}" {stroke}/>')

    def _draw_line(self, axes: list[_Axis], run: list, style: dict, opacity: float = 1) -> None:
        shape = _one_of("line.shape", style.get("shape", "linear"), ("linear", "hv", "vh"))
        places = [(axes[0].pixel(x), axes[1].pixel(y)) for x, y in run]
        corners = [places[0]]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            corners += {"linear": [], "hv": [(x1, y0)], "vh": [(x0, y1)]}[shape] + [(x1, y1)]
        path = " ".join(f"{x},{y}" for x, y in corners)
        self.out.append(f'<polyline points="{path}" fill="none" opacity="{opacity}" {_stroke(style)}/>')

    def _draw_marker(self, axes: list[_Axis], at: list, symbol: str, size: float, colour: str, opacity: float) -> None:
        x, y, r = axes[0].pixel(at[0]), axes[1].pixel(at[1]), size / 2
        path = SYMBOLS[symbol].format(x=x, y=y, r=r, d=2 * r, left=x - r, right=x + r, top=y - r, bottom=y + r)
        self.out.append(f'<path d="{path}" fill="{colour}" stroke="{colour}" stroke-width="1.5" opacity="{opacity}"/>')

    def _draw_label(self, axes: list, at: list, text: str, trace: dict, inside: bool | None, flat: bool) -> None:
        """A point's or a bar's text; `inside` is None for a point, whose textposition says where it goes."""
        x, y = axes[0].pixel(at[0]), axes[1].pixel(at[1])
        vertical, horizontal = "middle", "center"
        if inside is None:
            vertical, horizontal = (trace.get("textposition", "middle center").split() + ["center"])[:2]
        elif not inside:
            vertical, horizontal = ("middle", "right") if flat else ("top", "center")
        dx, dy = {"left": -7, "center": 0, "right": 7}[horizontal], {"top": -8, "middle": 4.5, "bottom": 18}[vertical]
        anchor = {"left": "end", "center": "middle", "right": "start"}[horizontal]
        colour = trace.get("textfont", {}).get("color") or ("white" if inside else INK)
        self._text(x + dx, y + dy, text, anchor, colour, trace.get("textfont", {}).get("size", 12))

    def _draw_axes(self) -> None:
        for name, axis in self.axes.items():
            other = self.axes[axis.spec.get("anchor", "y" if name[0] == "x" else "x")]
            if axis.spec.get("visible", True) is False or not axis.seen:
                continue
            for number, label in axis.ticks():
                at = axis.pixel(number)
                label = label if axis.spec.get("showticklabels", True) else ""
                if axis.spec.get("showgrid", True):
                    self._segment(name, at, other.start, other.end, GRID)
                if name[0] == "x":
                    self._text(at, other.start + 17, label)
                else:
                    self._text(other.start - 7, at + 4.5, label, "end")
            self._segment("y" if name[0] == "x" else "x", other.start, axis.start, axis.end, INK)
            middle, title = (axis.start + axis.end) / 2, _title(axis.spec)
            if name[0] == "x":
                self._text(middle, other.start + 40, title)
            else:
                room = max([52, *(8 * len(label) + 14 for _, label in axis.ticks())])
                self._text(other.start - room, middle, title, turn=-90)
        self._text(self.left, 22, _title(self.layout), "start", size=17)

    def _segment(self, name: str, at: float, start: float, end: float, colour: str) -> None:
        """A line across the axis `name` at one of its places."""
        line = (at, start, at, end) if name[0] == "x" else (start, at, end, at)
        self.out.append('<line x1="{}" y1="{}" x2="{}" y2="{}" '.format(*line) + f'stroke="{colour}"/>')

    def _place(self, part: dict, letter: str, value: float | str, is_number: bool = False) -> float:
        """The pixel of a shape's or annotation's coordinate: on an axis, on the paper, or across an axis' domain."""
        reference = part.get(letter + "ref", letter)
        if reference in self.axes:
            return self.axes[reference].pixel(value if is_number else self.axes[reference].number(value))
        axis = self.axes.get(reference.removesuffix(" domain")) or self._axis(letter, {})
        return round(axis.start + value * (axis.end - axis.start), 1)

    def _draw_shape(self, shape: dict) -> None:
        kind = _one_of("shape", shape["type"], ("rect", "line"))
        x0, x1, y0, y1 = (self._place(shape, key[0], shape[key]) for key in ("x0", "x1", "y0", "y1"))
        look = f'opacity="{shape.get("opacity", 1)}" {_stroke({"color": INK, **shape.get("line", {})})}'
        if kind == "line":
            self.out.append(f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" {look}/>')
            return
        size = f'width="{abs(x1 - x0):.1f}" height="{abs(y1 - y0):.1f}" fill="{shape.get("fillcolor", "none")}"'
        self.out.append(f'<rect x="{min(x0, x1)}" y="{min(y0, y1)}" {size} {look}/>')

    def _draw_annotation(self, note: dict) -> None:
        # On a logarithmic axis plotly wants an annotation's place as a logarithm, unlike a shape's.
        x, y = (self._place(note, k, note[k], not isinstance(note[k], str)) for k in "xy")
        x, y = x + note.get("xshift", 0), y - note.get("yshift", 0)
        if note.get("showarrow", True):
            tail = x + note.get("ax", -10), y + note.get("ay", -30)
            self.out.append(f'<line x1="{x}" y1="{y}" x2="{tail[0]}" y2="{tail[1]}" stroke="{INK}"/>')
            x, y = tail[0], tail[1] - 8
        drop = {"top": 13, "middle": 4.5, "bottom": -4, "auto": 4.5}[note.get("yanchor", "auto")]
        font = note.get("font", {})
        anchor = ANCHORS[note.get("xanchor", "auto")]
        self._text(x, y + drop, note.get("text", ""), anchor, font.get("color", INK), font.get("size", 13))

    def _draw_legend(self) -> None:
        x, y = self.left, min(50, self.top - 6)
        if len(self.legend) > 1 or self.layout.get("showlegend"):
            for name, colour in self.legend:
                self.out.append(f'<rect x="{x}" y="{y - 10}" width="14" height="10" fill="{colour}"/>')
                self._text(x + 19, y, name, "start")
                x += 36 + 7.2 * len(name)

    def _text(self, x: float, y: float, text: str, anchor="middle", colour=INK, size=13, turn=0) -> None:
        """Lines of text at a pixel; of plotly's markup `<br>` counts and the rest is dropped."""
        for line in re.split(r"<br ?/?>", str(text or "")):
            words = html.escape(html.unescape(re.sub(r"<[^>]+>", "", line)))
            turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
            look = f'text-anchor="{anchor}" fill="{colour}" font-size="{size}"{turned}'
            self.out += [f'<text x="{x:.1f}" y="{y:.1f}" {look}>{words}</text>'] if words else []
            y += size * 1.25


# Lesson 03: when the words arrive -------------------------------------------------------------------------------------


def token_timeline(pieces: pd.DataFrame) -> go.Figure:
    """Answers on one time line: grey while there is nothing to read, a mark for each piece that arrives.

    Args:
        pieces: one row a piece: `case` (what its users share), `user`, `time_s` from sending the request. In one case
            either each answer is one piece, given whole, or each is streamed; one case is a single user's stream.
    """
    fig, names, middles, top = go.Figure(), [], [], 0.0
    for case, rows in pieces.groupby("case", sort=False):
        users = [user["time_s"].tolist() for _, user in rows.groupby("user")]
        places = [top - number for number in range(len(users))]
        _draw_answers(fig, users, places)
        if len(users) == 1 and len(users[0]) > 1:
            _mark_latencies(fig, users[0], top)
        names.append(case.replace(", ", ",<br>"))
        middles.append((places[0] + places[-1]) / 2)
        note = {"x": max(map(max, users)), "y": middles[-1], "text": _latencies(users), "xshift": 14}
        fig.add_annotation(note, xanchor="left", showarrow=False, align="left")
        top = places[-1] - 3.2
    fig.update_xaxes(title="time since the request was sent (s)", range=[0, pieces["time_s"].max() * 1.25])
    fig.update_yaxes(tickvals=middles, ticktext=names, range=[top + 2, 2.5], showgrid=False)
    return fig.update_layout(height=580, showlegend=False, margin={"l": 110, "t": 16})


def _draw_answers(fig: go.Figure, users: list[list[float]], places: list[float]) -> None:
    for place, times in zip(places, users, strict=True):
        line = {"color": WASTE, "width": 2}
        fig.add_shape(type="line", x0=0, x1=times[0], y0=place, y1=place, line=line, layer="below")
    points = [(round(time, 4), place) for place, times in zip(places, users, strict=True) for time in times]
    is_whole = len(users[0]) == 1
    marker = {"color": DECODE, "symbol": "square" if is_whole else "line-ns-open", "size": 10, "line": {"width": 1.6}}
    fig.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], mode="markers", marker=marker)


def _mark_latencies(fig: go.Figure, times: list[float], place: float) -> None:
    """TTFT and one ITL above the answer at `place`, end-to-end latency below it."""
    middle = len(times) // 2
    for name, start, end, side in (("TTFT", 0, times[0], 1), ("ITL", times[middle], times[middle + 1], 1),
                                   ("end-to-end", 0, times[-1], -1)):  # fmt: skip
        fig.add_shape(type="line", x0=start, x1=end, y0=place + side, y1=place + side, line={"color": INK, "width": 3})
        anchor = {"yanchor": "bottom" if side > 0 else "top", "yshift": 2 * side}
        fig.add_annotation(x=(start + end) / 2, y=place + side, text=name, showarrow=False, **anchor)


def _latencies(users: list[list[float]]) -> str:
    """What a user of the case sees: the median over its users."""
    end_to_end = f"end-to-end {np.median([times[-1] for times in users]):.2f} s"
    if len(users[0]) == 1:
        return f"all at once<br>{end_to_end}"
    gaps = np.concatenate([np.diff(times) for times in users])
    first = f"TTFT {np.median([times[0] for times in users]) * 1000:.0f} ms"
    return f"{first}<br>ITL {np.median(gaps) * 1000:.0f} ms<br>{end_to_end}"


# Lesson 02: the repository and its ensemble ---------------------------------------------------------------------------

_BOX = {"width": 140, "height": 34, "left": 206}  # pixels; the tree is left of the boxes, the labels right of them
_ROW, _LANE, _MAP_WIDTH = 19, 650, 880


def repository_map(files: list[str], edges: pd.DataFrame) -> go.Figure:
    """A model repository as a tree, and beside it the ensemble's models with the tensors that flow between them.

    Parameters
    ----------
    files : list of str
        Paths of the files within the repository, as "ensemble/config.pbtxt".
    edges : DataFrame
        One row a tensor: source, target, output, input, data_type, dims, optional; "client" is at both ends, and
        targets come in the order of the steps. Optional tensors are counted, the others named.
    """
    steps = list(dict.fromkeys(name for name in edges.target if name != "client"))
    nodes = ["client", *steps, "client "]  # the client asks at the top and is answered at the bottom
    edges = edges.assign(target=edges.target.replace("client", "client "))
    flows = {pair: _flow_lines(rows) for pair, rows in edges.groupby(["source", "target"], sort=False)}
    gaps = [len(flows.get(pair, [])) * _ROW + 40 for pair in itertools.pairwise(nodes)]
    height = sum(gaps) + len(nodes) * _BOX["height"] + 20
    tops = [height - 10 - sum(gaps[:i]) - i * _BOX["height"] for i in range(len(nodes))]
    layout = {"width": _MAP_WIDTH, "height": height, "margin": dict.fromkeys("lrtb", 0), "dragmode": False}
    fig = go.Figure(layout=layout)
    for axis, end in (("xaxis", _MAP_WIDTH), ("yaxis", height)):
        fig.update_layout({axis: {"visible": False, "range": [0, end], "fixedrange": True}})
    # Without a trace plotly draws no plot area, and with it no shapes.
    fig.add_scatter(x=[0], y=[0], mode="markers", marker={"opacity": 0, "size": 1}, hoverinfo="skip", showlegend=False)
    frame = {"x0": _BOX["left"] - 22, "x1": _MAP_WIDTH - 8, "y0": tops[-1] + 8, "y1": tops[0] - _BOX["height"] - 8}
    fig.add_shape(type="rect", **frame, line={"color": WASTE, "dash": "dot"})
    _write(fig, frame["x1"] - 8, frame["y1"] - 14, "ensemble", "right", WASTE)
    places = dict(zip(nodes, tops, strict=True))
    for name, top in places.items():
        _draw_node(fig, name, top)
    for (source, target), lines in flows.items():
        neighbours = nodes.index(target) == nodes.index(source) + 1
        draw = _draw_arrow if neighbours else _draw_detour
        draw(fig, places[source] - _BOX["height"], places[target], lines)
    _draw_tree(fig, files, places, frame["y1"])
    return fig


def _flow_lines(rows: pd.DataFrame) -> list[str]:
    """What is written at an arrow: each required tensor by name, type and shape, and how many more there may be."""
    lines = []
    for row in rows[~rows.optional].sort_values("output").itertuples():
        name = row.output if row.input == row.output else f"{row.output} → {row.input}"
        lines.append(f"{name}  {row.data_type} {list(row.dims)}")
    count = int(rows.optional.sum())
    return lines + ([f"and {count} optional"] if lines else [f"{count} optional"]) * (count > 0)


def _write(
    fig: go.Figure, x: float, y: float, text: str, anchor: str = "left", colour: str = INK, size: int = 12
) -> None:
    fig.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle",
                       font={"color": colour, "size": size})


def _draw_node(fig: go.Figure, name: str, top: float) -> None:
    is_client, left = name.strip() == "client", _BOX["left"]
    line = {"color": WASTE if is_client else INK, "width": 1 if is_client else 2}
    fig.add_shape(type="rect", x0=left, x1=left + _BOX["width"], y0=top - _BOX["height"], y1=top, line=line,
                  fillcolor="white" if is_client else "#EAF3FA")
    text = name.strip() if is_client else f"<b>{name}</b>"
    _write(fig, left + _BOX["width"] / 2, top - _BOX["height"] / 2, text, "center", size=13)


def _draw_arrow(fig: go.Figure, y0: float, y1: float, lines: list[str]) -> None:
    """Straight down from a box to the next, with the tensors at its right."""
    x = _BOX["left"] + _BOX["width"] / 2
    fig.add_shape(type="line", x0=x, x1=x, y0=y0, y1=y1 + 6, line={"color": DECODE, "width": 2})
    _write(fig, x, y1 + 6, "▼", "center", DECODE)
    for index, line in enumerate(lines):
        _write(fig, x + 12, (y0 + y1) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, line)


def _draw_detour(fig: go.Figure, y0: float, y1: float, lines: list[str]) -> None:
    """Around the boxes between, at the right, with the tensors outside."""
    right, line = _BOX["left"] + _BOX["width"], {"color": DECODE, "width": 1.5, "dash": "dash"}
    start, end = y0 + _BOX["height"] * 0.25, y1 - _BOX["height"] * 0.25
    for x0, x1, at, to in ((right, _LANE, start, start), (_LANE, _LANE, start, end), (_LANE, right + 8, end, end)):
        fig.add_shape(type="line", x0=x0, x1=x1, y0=at, y1=to, line=line)
    _write(fig, right + 6, end, "◀", "center", DECODE)
    for index, text in enumerate(lines):
        _write(fig, _LANE + 8, (start + end) / 2 + (len(lines) / 2 - index - 0.5) * _ROW, text)


def _draw_tree(fig: go.Figure, files: list[str], places: dict[str, float], ensemble_top: float) -> None:
    """The files, each model's at the height of its box; the ensemble's at the top of its frame."""
    for model in dict.fromkeys(path.split("/")[0] for path in files):
        own = [path.split("/", 1)[1] for path in files if path.startswith(f"{model}/")]
        top = places[model] - _BOX["height"] / 2 if model in places else ensemble_top
        _write(fig, 14, top, f"<b>{model}/</b>", size=13)
        end = _BOX["left"] if model in places else _BOX["left"] - 22
        fig.add_shape(type="line", x0=146, x1=end - 4, y0=top, y1=top, line={"color": WASTE, "dash": "dot"})
        for index, path in enumerate(own, 1):
            y = top - index * _ROW
            fig.add_shape(type="line", x0=22, x1=36, y0=y, y1=y, line={"color": WASTE})
            _write(fig, 42, y, path)
        fig.add_shape(type="line", x0=22, x1=22, y0=top - 8, y1=top - len(own) * _ROW, line={"color": WASTE})


# Tables, for whoever reads them -----------------------------------------------------------------------------------------


def table(frame: pd.DataFrame, decimals: int = 1) -> HTML:
    """`frame` without its index: text to the left, numbers to the right, whole texts."""
    def cell(tag: str, value: object, is_number: bool) -> str:
        look = f"text-align: {'right' if is_number else 'left'}; vertical-align: top"
        text = f"{value:,.{decimals}f}" if isinstance(value, float) else f"{value:,}" if is_number and tag == "td" else str(value)
        return f'<{tag} style="{look}">{html.escape(text)}</{tag}>'

    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    head = "".join(cell("th", name, number) for name, number in zip(frame.columns, numeric, strict=True))
    rows = ["".join(cell("td", value, number) for value, number in zip(row, numeric, strict=True))
            for row in frame.itertuples(index=False, name=None)]
    return HTML(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>")


# Lesson 00: the path of one request, the map of the course --------------------------------------------------------------

_LANES = ("postprocessing", "tensorrt_llm", "preprocessing", "client")  # from the bottom up
_STEPS = {"travel": WASTE, "text to tokens": REQUEST[0], "prompt": PREFILL, "token": DECODE, "tokens to text": REQUEST[1]}


def request_path(path: pd.DataFrame) -> go.Figure:
    """One request through client and models over time; `path` as `inflight.request_path.measure` gives it."""
    fig = go.Figure()
    for what, colour in _STEPS.items():
        rows = path[path["what"] == what]
        fig.add_bar(x=rows["end_ms"] - rows["start_ms"], base=rows["start_ms"], y=[_LANES.index(lane) for lane in rows["lane"]],
                    width=0.42, orientation="h", marker={"color": colour, "line": {"color": "white", "width": 1}},
                    name=what, showlegend=False)
    arrivals = path[path["what"] == "arrival"]["end_ms"]
    fig.add_scatter(x=arrivals, y=[3] * len(arrivals), mode="markers", showlegend=False,
                    marker={"symbol": "diamond", "size": 10, "color": REQUEST[1]}, name="a piece of text arrives")
    _draw_first_word(fig, path)
    ends = path["end_ms"].max()
    fig.update_xaxes(title="milliseconds since Enter", range=[-0.01 * ends, 1.04 * ends])
    fig.update_yaxes(tickvals=list(range(4)), ticktext=list(_LANES), range=[-0.7, 3.9], showgrid=False)
    return fig.update_layout(title="One request, from Enter to the last word", barmode="overlay", height=430,
                             margin={"l": 120, "r": 24, "t": 56, "b": 60})


def _draw_first_word(fig: go.Figure, path: pd.DataFrame) -> None:
    """The way of the first word as one line through the lanes, and the names of the steps beside it."""
    begins = path.groupby("what")["start_ms"].min()
    tokenized, computed = begins["text to tokens"], begins["prompt"]
    decoded, arrived = begins["tokens to text"], begins["arrival"]
    way = [(0, 3), (tokenized, 3), (tokenized, 2), (computed, 2), (computed, 1), (decoded, 1), (decoded, 0), (arrived, 0),
           (arrived, 3)]
    fig.add_scatter(x=[x for x, _ in way], y=[y for _, y in way], mode="lines", line={"color": INK, "width": 1.5},
                    showlegend=False, name="the first word")
    gap = path["end_ms"].max() * 0.012
    tokens = path[path["what"] == "token"]
    notes = [(arrived, 3.42, f"<b>first word: {arrived:.0f} ms</b>", "left", INK), (0, 3.42, "Enter", "left", INK),
             (computed + gap, 2, "text → tokens", "left", INK), (computed + gap, 1.38, "prompt", "left", INK),
             (max(tokens["start_ms"].min(), arrived) + gap, 1.38, f"{len(tokens)} iterations, one token each", "left", INK),
             (arrived + gap, -0.42, "tokens → text, piece by piece", "left", INK)]
    for x, y, text, anchor, colour in notes:
        fig.add_annotation(x=x, y=y, text=text, showarrow=False, xanchor=anchor, yanchor="middle",
                           font={"color": colour, "size": 13})


def request_path_summary(path: pd.DataFrame, first_word: pd.DataFrame) -> str:
    """The picture of `request_path` in a paragraph."""
    parts = ", ".join(f"{row.stage} {row.ms:.1f} ms" for row in first_word.itertuples())
    arrivals = path[path["what"] == "arrival"]["end_ms"]
    return (f"Four lanes over time: client, preprocessing, tensorrt_llm, postprocessing. The first word goes through all of them "
            f"and arrives after {first_word['ms'].sum():.0f} ms: {parts}. Then tensorrt_llm makes one token an iteration, and "
            f"each is turned into text while the next is computed; the last of {len(arrivals)} pieces arrives after "
            f"{arrivals.max():.0f} ms.")


def course_map(lessons: pd.DataFrame) -> HTML:
    """The lessons as cards, in columns by `part`; columns `number`, `title`, `part`, `question`, `minutes`, `link` (or blank)."""
    columns = "".join(
        f'<div style="flex: 1 1 14em; min-width: 14em"><div style="font-weight: 600; margin: 4px">{html.escape(part)}</div>'
        f'{"".join(map(_card, rows.to_dict("records")))}</div>' for part, rows in lessons.groupby("part", sort=False))
    return HTML(f'<div style="display: flex; flex-wrap: wrap; gap: 12px">{columns}</div>')


def _card(lesson: dict) -> str:
    title = f"{lesson['number']} · {html.escape(lesson['title'])}"
    if lesson["link"]:
        title = f'<a href="{lesson["link"]}">{title}</a>'
    colour, state = (DECODE, "") if lesson["link"] else (WASTE, " · planned")
    return (f'<div style="border-left: 6px solid {colour}; padding: 4px 10px; margin: 6px 0; background: #F7F7F7; color: {INK}">'
            f'<div style="font-weight: 600">{title}</div><div>{html.escape(lesson["question"])}</div>'
            f'<div style="color: #555555">{lesson["minutes"]} min{state}</div></div>')


# Lesson 01: bytes -------------------------------------------------------------------------------------------------------

_KINDS = {"feed-forward": "#444444", "embedding": "#6E6E6E", "attention": "#9A9A9A", "norms": "#C8C8C8"}
MB, GB = 1e6, 1e9


def engine_bytes(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> go.Figure:
    """Above, weights and the KV cache of a few users on one scale; below, the cache growing until memory is full.

    `weights` has `kind`, `bytes`; `kv_per_user` has `tokens`, `bytes`: the KV cache of one user with that many tokens,
    the longest first.
    """
    fig = go.Figure()
    _draw_bars(fig, weights, kv_per_user.iloc[0])
    for row in kv_per_user.itertuples():
        _draw_growth(fig, row.tokens, row.bytes / GB, weights["bytes"].sum() / GB, memory_bytes / GB)
    most = _users_that_fit(memory_bytes / GB, weights["bytes"].sum() / GB, kv_per_user["bytes"].min() / GB)
    fig.add_shape(type="line", xref="x2", yref="y2", x0=0, x1=most * 1.15, y0=memory_bytes / GB, y1=memory_bytes / GB,
                  line={"color": REQUEST[3], "width": 2, "dash": "dash"})
    fig.add_annotation(xref="x2", yref="y2", x=0, y=memory_bytes / GB, text=f"free memory: {memory_bytes / GB:.1f} GB", xanchor="left",
                       yanchor="bottom", yshift=22, showarrow=False, font={"color": REQUEST[3]})
    fig.update_layout(
        title="What fills the memory", barmode="stack", height=640, margin={"l": 150, "r": 30, "t": 56, "b": 60},
        xaxis={"title": "megabytes", "anchor": "y"}, yaxis={"domain": [0.68, 1], "showgrid": False},
        xaxis2={"title": "users at the same time", "anchor": "y2", "range": [0, most * 1.15]},
        yaxis2={"title": "gigabytes", "domain": [0, 0.5], "anchor": "x2", "range": [0, memory_bytes / GB * 1.3]})
    return fig


def _draw_bars(fig: go.Figure, weights: pd.DataFrame, longest: pd.Series) -> None:
    lanes, megabytes = ["KV, 4 users ", "KV, 1 user ", "weights "], longest["bytes"] / MB
    look = {"orientation": "h", "showlegend": False, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    for row in weights.itertuples():
        fig.add_bar(x=[0, 0, row.bytes / MB], y=lanes, name=row.kind,
                    marker={"color": _KINDS[row.kind], "line": {"color": "white", "width": 1}}, **look)
    for user in range(4):
        fig.add_bar(x=[megabytes, 0 if user else megabytes, 0], y=lanes, name=f"user {user + 1}", text=[f"{megabytes:.0f}", "", ""],
                    marker={"color": DECODE, "line": {"color": "white", "width": 1}}, **look)
    kinds = ", ".join(f"{row.kind} {row.bytes / MB:,.1f}" for row in weights.itertuples())
    for lane, end, text in ((lanes[2], weights["bytes"].sum() / MB, kinds),
                            (lanes[1], megabytes, f"{megabytes:.1f}: {longest['tokens']:,.0f} tokens")):
        fig.add_annotation(x=end, y=lane, text=text, xanchor="left", yanchor="middle", xshift=8, showarrow=False)


def _users_that_fit(memory: float, weights: float, per_user: float) -> int:
    return max(1, int((memory - weights) / per_user))


def _draw_growth(fig: go.Figure, tokens: int, per_user: float, weights: float, memory: float) -> None:
    """A line from the weights alone to full memory, with the number of users at its end."""
    users = _users_that_fit(memory, weights, per_user)
    fig.add_scatter(x=[0, users], y=[weights, weights + users * per_user], mode="lines+markers+text", xaxis="x2", yaxis="y2",
                    text=["", f"{users:,} × {tokens:,} tokens"], textposition="top center", showlegend=False,
                    line={"color": DECODE, "width": 2}, marker={"color": DECODE, "size": 8}, name=f"{tokens} tokens a user")


def engine_bytes_summary(weights: pd.DataFrame, kv_per_user: pd.DataFrame, memory_bytes: float) -> str:
    """The picture of `engine_bytes` in a paragraph."""
    total, kinds = weights["bytes"].sum(), ", ".join(f"{row.kind} {row.bytes / MB:.1f}" for row in weights.itertuples())
    ends = "; ".join(f"{_users_that_fit(memory_bytes, total, row.bytes):,} users of {row.tokens:,} tokens"
                     for row in kv_per_user.itertuples())
    first = kv_per_user.iloc[0]
    return (f"Above, in megabytes: the weights take {total / MB:.1f} ({kinds}), and the KV cache of a single user with "
            f"{first['tokens']:,.0f} tokens {first['bytes'] / MB:.1f}, {first['bytes'] / total:.2f} times as much as the whole "
            f"model. Below, memory against users, one straight line a length: {memory_bytes / GB:.1f} GB are full at {ends}.")
