"""show(): one output that every reader can use, in the course's look; and colours that are told from the page."""

import json
import re

import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from inflight import machine
from inflight.errors import CourseError
from inflight.notebook.charts import show
from inflight.notebook.charts.display import in_course_look
from inflight.notebook.charts.palette import DECODE, INK, ON_SHADES, PREFILL, REQUEST, SHADES, WASTE, WASTE_TEXT
from inflight.paths import PACKAGE

ALT = "Two bars: decode takes 3 ms, prefill takes 1 ms."


@pytest.fixture
def shell():
    """What display() needs to hand outputs to a reader."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_show_gives_plotly_and_words_in_one_small_output_and_leaves_the_figure_as_it_was(shell):
    fig = go.Figure(go.Bar(x=["prefill", "decode"], y=[1, 3]), layout={"template": "plotly_dark"})
    before = fig.to_json()
    with capture_output() as captured:
        show(fig, ALT)
    (output,) = captured.outputs
    assert fig.to_json() == before
    assert set(output.data) == {"application/vnd.plotly.v1+json", "text/plain"}
    assert output.data["text/plain"] == f"{ALT} Measured on {machine.device_name()}."
    assert len(json.dumps(output.data)) < 3000


def test_every_figure_has_the_courses_colours_and_none_offers_to_be_uploaded():
    spec = in_course_look(go.Figure(go.Bar(x=[1], y=[1]), layout={"template": "plotly_dark"}))
    assert spec["layout"]["template"]["layout"]["colorway"][:2] == [DECODE, PREFILL]
    assert spec["config"]["showSendToCloud"] is False
    assert "responsive" not in spec["config"], "a slow JupyterLab would show pictures without height"


def test_colours_are_seen_on_a_white_page_and_words_can_be_read():
    marks = [PREFILL, DECODE, WASTE, INK, *REQUEST, *SHADES]
    assert [colour for colour in marks if contrast(colour, "#FFFFFF") < 3] == []
    named = {"white": "#FFFFFF", "black": "#000000"}
    words = [(INK, "#FFFFFF"), (WASTE_TEXT, "#FFFFFF"), *zip(SHADES, map(named.get, ON_SHADES))]
    assert [pair for pair in words if contrast(*pair) < 4.5] == []


def contrast(one, other):
    """The contrast ratio of WCAG 2, from 1 to 21."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_caption_names_what_was_measured_on():
    captioned = in_course_look(go.Figure())["layout"]
    assert captioned["title"]["text"] == f"measured on {machine.device_name()}"
    titled = go.Figure(layout={"title": "Builds", "meta": {"device": "NVIDIA H200"}})
    title = in_course_look(titled)["layout"]["title"]
    assert (title["text"], title["subtitle"]["text"]) == ("Builds", "measured on NVIDIA H200")
    assert "title" not in in_course_look(go.Figure(layout={"meta": {"device": ""}}))["layout"], "nothing was measured"


@pytest.mark.parametrize("alt", ["", "chart", "a chart"])
def test_show_wants_a_summary(alt):
    with pytest.raises(CourseError, match="say in a sentence what the picture shows"):
        show(go.Figure(), alt)


def test_every_colour_stands_in_the_palette():
    sources = [path for path in PACKAGE.rglob("*.py") if path.name != "palette.py" and "parts" not in path.parts]
    assert [path for path in sources if re.search(r"['\" ]#[0-9A-Fa-f]{6}\b", path.read_text("utf-8"))] == []
