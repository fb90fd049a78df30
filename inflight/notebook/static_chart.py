"""A plotly figure as static SVG, for pages that run no script.

It draws what the course's figures use, and refuses the rest by name, so that nothing is dropped in silence.
"""

import base64
import html
import itertools
import math
import re
from collections.abc import Iterable

import numpy as np
import plotly.graph_objects as go

from inflight.notebook.palette import DECODE, FONT, GRID, HEIGHT, INK, MARGIN, PREFILL, REQUEST, WASTE, WIDTH


def static_svg(fig: go.Figure, alt: str) -> str:
    """`fig` as SVG text: bars, lines, areas, markers, texts, rect and line shapes, annotations, legend, subplots.

    Raises
    ------
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
    "scatter": "x y name mode text textposition textfont line marker opacity showlegend orientation fill fillcolor "
    "fillpattern",
    "bar": "x y base width name text textposition textfont marker opacity showlegend orientation",
    "line": "color width dash shape",
    "marker": "color size symbol line opacity",
    "fillpattern": "shape fgcolor bgcolor",
    "shape": "x0 x1 y0 y1 xref yref fillcolor opacity line layer",
    "annotation": "x y xref yref text showarrow ax ay xanchor yanchor font xshift yshift",
}
QUIET = [
    "type",
    "xaxis",
    "yaxis",
    "uid",
    "visible",
    "hoverinfo",
    "hovertext",
    "hovertemplate",
    "hoverlabel",
    "hovermode",
    "customdata",
    "legendgroup",
    "legendrank",
    "uirevision",
    "offsetgroup",
    "alignmentgroup",
    "cliponaxis",
    "insidetextanchor",
    "textangle",
    "constraintext",
    "dragmode",
    "anchor",
    "matches",
    "zeroline",
    "gridcolor",
    "linecolor",
    "automargin",
    "fixedrange",
    "font",
    "plot_bgcolor",
    "paper_bgcolor",
    "align",
    "arrowhead",
    "arrowcolor",
    "arrowwidth",
    "ticks",
    "tickfont",
    "showline",
]
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
            high += low == high  # bars of length zero only
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
        for trace, colour in zip(traces, itertools.cycle([DECODE, PREFILL, *REQUEST, WASTE])):
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
        if trace.get("fill"):
            _one_of("fill", trace["fill"], ("toself",))
            look = trace.get("fillcolor", colour), _known("fillpattern", trace.get("fillpattern")), opacity
            self.marks += [(self._draw_area, axes, run, *look) for run in _runs(points)]
        if "lines" in mode:
            style = {"color": colour, **trace.get("line", {})}
            self.marks += [(self._draw_line, axes, run, style, opacity) for run in _runs(points)]
        texts = _list(trace.get("text", ""), len(points))
        sizes = _list(marker.get("size", 7), len(points))
        for point, text, size, fill in zip(points, texts, sizes, itertools.chain([colour], colours)):
            if point and "markers" in mode:
                symbol = _one_of("marker.symbol", marker.get("symbol", "circle"), SYMBOLS)
                self.marks.append((self._draw_marker, axes, point, symbol, size, fill, marker.get("opacity", opacity)))
            if point and "text" in mode:
                self.marks.append((self._draw_label, axes, point, text, trace, None, False))

    def _draw_bar(self, axes: list[_Axis], box: tuple, colour: str, edge: dict, opacity: float) -> None:
        (x0, x1), (y0, y1) = sorted(map(axes[0].pixel, box[:2])), sorted(map(axes[1].pixel, box[2:]))
        stroke = f' stroke="{edge.get("color", "none")}" stroke-width="{edge.get("width", 0)}"' if edge else ""
        look = f'fill="{colour}"{stroke}' + ("" if opacity == 1 else f' opacity="{opacity}"')
        self.out.append(f'<rect x="{x0}" y="{y0}" width="{x1 - x0:.1f}" height="{y1 - y0:.1f}" {look}/>')

    def _draw_line(self, axes: list[_Axis], run: list, style: dict, opacity: float = 1) -> None:
        shape = _one_of("line.shape", style.get("shape", "linear"), ("linear", "hv", "vh"))
        places = [(axes[0].pixel(x), axes[1].pixel(y)) for x, y in run]
        corners = [places[0]]
        for (x0, y0), (x1, y1) in itertools.pairwise(places):
            corners += {"linear": [], "hv": [(x1, y0)], "vh": [(x0, y1)]}[shape] + [(x1, y1)]
        path = " ".join(f"{x},{y}" for x, y in corners)
        self.out.append(f'<polyline points="{path}" fill="none" opacity="{opacity}" {_stroke(style)}/>')

    def _draw_area(self, axes: list[_Axis], run: list, colour: str, pattern: dict, opacity: float) -> None:
        if pattern:
            _one_of("fillpattern.shape", pattern.get("shape"), ("/",))
            ground, colour = pattern.get("bgcolor", "white"), pattern["fgcolor"]
            name = "hatch-" + colour.lstrip("#")
            size = 'width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
            strokes = f'<rect width="6" height="6" fill="{ground}"/><rect width="2.5" height="6" fill="{colour}"/>'
            self.out.append(f'<defs><pattern id="{name}" {size}>{strokes}</pattern></defs>')
            colour = f"url(#{name})"
        corners = " ".join(f"{axes[0].pixel(x):g},{axes[1].pixel(y):g}" for x, y in run)
        self.out.append(f'<polygon points="{corners}" fill="{colour}" opacity="{opacity}"/>')

    def _draw_marker(self, axes: list[_Axis], at: list, symbol: str, size: float, colour: str, opacity: float) -> None:
        x, y, r = axes[0].pixel(at[0]), axes[1].pixel(at[1]), size / 2
        path = SYMBOLS[symbol].format(x=x, y=y, r=r, d=2 * r, left=x - r, right=x + r, top=y - r, bottom=y + r)
        look = f'" fill="{colour}" stroke="{colour}" stroke-width="1.5" opacity="{opacity}"/>'
        if self.out and self.out[-1].startswith('<path d="') and self.out[-1].endswith(look):  # one path for all alike
            path = self.out.pop().removeprefix('<path d="').removesuffix(look) + " " + path
        self.out.append(f'<path d="{path}{look}')

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
