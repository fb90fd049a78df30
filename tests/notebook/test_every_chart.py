"""What holds for every picture of the course: it answers when pointed at, and is read by everybody.

Everything is looked up on the figures of `chart_samples`, drawn in the course's look: nothing is rendered.
"""

import importlib
import inspect
import re
from collections import Counter

import plotly.graph_objects as go
import pytest

from inflight.notebook.charts.display import in_course_look
from inflight.notebook.palette import INK, contrast
from inflight.paths import PACKAGE
from tests.notebook.chart_samples import FIGURES

WORDS, MARKS = 4.5, 3.0  # contrast with what is behind them, of WCAG 2
PAPER = "#FFFFFF"
NAMED = {"white": "#FFFFFF", "black": "#000000"}
# Pictures of several panels.
LINKED = ("batches", "kv_blocks", "race", "slot_map")
# Where shapes are only the branches of a tree; everywhere else they would be marks that say nothing.
DRAWN_BESIDE = {"repository_map"}

MODULES = [f"inflight.lessons.{file.parent.name}.charts" for file in (PACKAGE / "lessons").glob("*/charts.py")]
every_figure = pytest.mark.parametrize("name", FIGURES)


def of(name):
    return in_course_look(FIGURES[name])


def test_every_sample_is_of_a_picture():
    functions = {
        name
        for module in MODULES
        for name, function in vars(importlib.import_module(module)).items()
        if inspect.isfunction(function) and function.__module__ == module and not name.startswith("_")
        if inspect.get_annotations(function).get("return") in (go.Figure, "go.Figure")
    }
    assert functions >= {name.split(".")[0] for name in FIGURES}


# What a mark says -----------------------------------------------------------------------------------------------------


def said(trace, place):
    """What is shown when the mark at `place` of a trace is pointed at."""
    if "hovertemplate" not in trace:
        assert trace.get("hoverinfo") == "text", "plotly's own label is a tuple of numbers"
        return trace["hovertext"][place]

    def value(match):
        column, _, form = match[1].partition(":")
        number = trace[column][place]
        return format(number, form) if form else str(number)

    return re.sub(r"%\{([^}]+)\}", value, trace["hovertemplate"].removesuffix("<extra></extra>"))


def marks(trace):
    """The places of a trace's marks: a bar of no length is none, nor is a gap in a line."""
    if trace["type"] == "bar":
        lengths = trace["x" if trace.get("orientation") == "h" else "y"]
        return [place for place, length in enumerate(lengths) if length]
    return [place for place, x in enumerate(trace["x"]) if x is not None]


def texts(trace):
    if "fills" in trace.get("hoveron", ""):
        yield trace["text"]
    if trace.get("hoveron") != "fills":
        yield from (said(trace, place) for place in marks(trace))


def is_told(text):
    """Whether a text has words, and each number in it has one beside it: a unit, or what it counts."""
    plain = re.sub(r"<[^>]+>", " ", text)
    assert not re.search(r"\b(None|nan|NaN)\b|%\{|[()]\s*[\d.]+\s*,", plain), text
    for number in re.finditer(r"(?<![\w.-])\d[\d,]*(\.\d+)?(?![\w.])", plain):
        before, after = plain[: number.start()], plain[number.end() :]
        if not re.search(r"[^\W\d]:? ?[-−]?$", before) and not re.match(r" ?(%|[^\W\d])", after):
            return False
    return bool(re.search(r"[^\W\d]{2,}", plain))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("request 7 · 5 blocks · paused at iteration 120 · 34 ms", True),
        ("34.15308", False),
        ("request 7 · 34", False),
        ("P95 101 ms", True),
    ],
)
def test_a_text_has_words_and_units(text, told):
    assert is_told(text) == told


@every_figure
def test_every_mark_says_in_words_and_units_what_it_is(name):
    spec = of(name)
    assert spec["layout"].get("hovermode") is not False
    for trace in spec["data"]:
        assert trace.get("hoverinfo") not in ("skip", "none"), trace
        for text in texts(trace):
            assert text and is_told(text), f"{name}: {text!r}"
    assert not spec["layout"].get("shapes") or name in DRAWN_BESIDE, "a shape cannot be pointed at: draw a trace"


# Several panels -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKED)
def test_panels_are_zoomed_together(name):
    axes = {axis: of_it for axis, of_it in of(name)["layout"].items() if axis.startswith("xaxis")}
    assert axes.keys() > {"xaxis"}
    assert all(of_it["matches"] == "x" for axis, of_it in axes.items() if axis != "xaxis")


@pytest.mark.parametrize("name", ["slot_map", "kv_blocks"])
def test_an_engines_ids_go_on_from_run_to_run_and_the_numbers_in_a_picture_do_not(name):
    panels = {}
    for trace in of(name)["data"]:
        numbers = re.findall(r"\brequest (\d+)", " ".join(texts(trace)))
        panels.setdefault(trace.get("xaxis", "x"), set()).update(map(int, numbers))
    first, *others = filter(None, panels.values())
    assert others and all({1, 2, 3} <= numbers <= set(range(1, 40)) for numbers in (first, *others))


# Contrast -------------------------------------------------------------------------------------------------------------


def hex_of(colour, opacity=1.0):
    """`colour` as "#RRGGBB", as it looks on paper with an opacity."""
    colour = NAMED.get(colour, colour)
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * part + (1 - opacity) * 255):02X}" for part in parts)


def is_seen(colour, opacity=1.0):
    return contrast(hex_of(colour, opacity), PAPER) >= MARKS


def drawn_in(trace):
    """(colour, outline or None) of everything that a trace draws."""
    marker, line = trace.get("marker", {}), trace.get("line", {})
    if trace["type"] == "bar" or "markers" in trace["mode"]:
        colours = marker["color"] if isinstance(marker["color"], list) else [marker["color"]]
        outline = marker.get("line", {})
        yield from ((colour, outline.get("color") if outline.get("width", 1) >= 1 else None) for colour in colours)
    if trace.get("fill") == "toself":
        pattern = trace.get("fillpattern", {})
        yield trace["fillcolor"], pattern.get("fgcolor") or (line["color"] if line["width"] >= 1 else None)
    elif "lines" in trace.get("mode", ""):
        yield line["color"], None


@every_figure
def test_every_mark_is_seen_on_paper(name):
    for trace in of(name)["data"]:
        opacity = trace.get("opacity", 1.0)
        for colour, outline in drawn_in(trace):
            assert is_seen(colour, opacity) or (outline and is_seen(outline, opacity)), f"{name}: {colour}, {outline}"


def all_texts(spec):
    """(colour, behind it) of all that is written in a figure."""
    for trace in spec["data"]:
        if "text" not in trace.get("mode", "") and not (trace["type"] == "bar" and trace.get("text")):
            continue
        font = trace["textfont"]["color"]  # without it plotly chooses, by what is behind, or the trace's own colour
        inside = trace.get("textposition") in ("inside", "middle center")
        behind = trace["marker"]["color"] if inside else PAPER
        pairs = zip(font, behind, strict=True) if isinstance(font, list) else [(font, behind)]
        yield from pairs
    for note in spec["layout"].get("annotations", []):
        yield note.get("font", {}).get("color", INK), PAPER
    hovering = spec["layout"]["template"]["layout"]["hoverlabel"]
    yield hovering["font"]["color"], hovering["bgcolor"]
    title = spec["layout"].get("title", {})
    for part in (title, title.get("subtitle", {})):
        yield part.get("font", {}).get("color", INK), PAPER


@every_figure
def test_everything_written_can_be_read(name):
    for colour, behind in all_texts(of(name)):
        assert contrast(hex_of(colour), hex_of(behind)) >= WORDS, f"{name}: {colour} on {behind}"


# Classes --------------------------------------------------------------------------------------------------------------


def form(trace):
    """How a trace is told from others without its colour."""
    marker, line = trace.get("marker", {}), trace.get("line", {})
    if trace["type"] == "bar":
        return "bar", marker.get("pattern", {}).get("shape", ""), marker.get("line", {}).get("color") != "white"
    if "fill" in trace:
        return "area", trace.get("fillpattern", {}).get("shape")
    symbol = marker.get("symbol", "circle") if "markers" in trace["mode"] else None
    return "scatter", symbol, line.get("dash", "solid") if "lines" in trace["mode"] else None


@every_figure
def test_no_class_is_told_by_its_colour_alone(name):
    forms = Counter(form(trace) for trace in of(name)["data"] if trace.get("showlegend"))
    assert all(number == 1 for number in forms.values()), f"{name}: {forms}"


@every_figure
def test_a_class_is_once_in_the_legend_and_is_switched_in_every_panel(name):
    spec = of(name)
    shown = [trace for trace in spec["data"] if trace.get("showlegend")]
    if spec["layout"].get("showlegend"):
        names = [trace["name"] for trace in shown]
        assert len(set(names)) == len(names) and all(trace.get("legendgroup") for trace in shown)
        assert {trace["legendgroup"] for trace in spec["data"] if "legendgroup" in trace} == {
            trace["legendgroup"] for trace in shown
        }
    else:
        assert not shown
