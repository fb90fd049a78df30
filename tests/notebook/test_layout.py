"""What can be told of a picture's layout from its figure: sizes of title, caption, legend and notes."""

import re

import plotly.graph_objects as go
import pytest

from inflight import machine
from inflight.notebook.charts import display
from inflight.notebook.charts.display import BUTTONS_PX, CHARACTER_EM, NARROWEST_PX, in_course_look
from inflight.notebook.charts.panels import stack
from tests.notebook.chart_samples import FIGURES

LOOKS = {name: in_course_look(figure)["layout"] for name, figure in FIGURES.items()}
LONG = "A title that goes on and on until no page of any laptop has the room for it in one line"


def width_px(text: str, size: int) -> float:
    """Of the widest line of a text."""
    return max(len(re.sub("<[^>]+>", "", line)) for line in text.split("<br>")) * size * CHARACTER_EM


def num_lines(text: str) -> int:
    return text.count("<br>") + 1 if text else 0


@pytest.mark.parametrize("name", LOOKS)
def test_title_and_caption_leave_plotly_its_buttons_and_the_picture_its_room(name):
    title, margin = LOOKS[name].get("title", {}), LOOKS[name]["margin"]
    heads = [(title.get("text", ""), title["font"]["size"])] if title else []
    if "subtitle" in title:
        heads.append((title["subtitle"]["text"], title["subtitle"]["font"]["size"]))
    assert all(width_px(text, size) + BUTTONS_PX[0] <= NARROWEST_PX for text, size in heads)
    assert margin["t"] >= max(BUTTONS_PX[1], sum(1.3 * size * num_lines(text) for text, size in heads))


@pytest.mark.parametrize("name", LOOKS)
def test_a_picture_is_as_wide_as_its_place_and_its_notes_fit_the_narrowest(name):
    layout = LOOKS[name]
    assert "width" not in layout
    notes = [(note["text"], note.get("font", {}).get("size", 14)) for note in layout.get("annotations", [])]
    assert [text for text, size in notes if width_px(text, size) > NARROWEST_PX] == []


@pytest.mark.parametrize("name", LOOKS)
def test_the_legend_has_a_place_of_its_own_at_the_bottom(name):
    legend = display.pio.templates["course"].layout.legend.to_plotly_json() | LOOKS[name].get("legend", {})
    assert (legend["xref"], legend["yref"], legend["y"], legend["yanchor"]) == ("container", "container", 0, "bottom")


def test_a_long_title_wraps_and_the_picture_keeps_its_room():
    plain = {"height": 300, "margin": {"t": 40, "b": 60}}
    layout = in_course_look(go.Figure(layout={**plain, "title": LONG}))["layout"]
    assert num_lines(layout["title"]["text"]) == 3
    assert layout["title"]["subtitle"]["text"] == f"measured on {machine.device_name()}"
    assert layout["height"] - layout["margin"]["t"] - layout["margin"]["b"] == 200


def test_a_legend_gets_as_many_rows_as_the_narrowest_page_needs():
    def height(*names):
        figure = go.Figure([go.Bar(x=[1], y=[1], name=name) for name in names], layout={"meta": {"device": ""}})
        return in_course_look(figure)["layout"]["height"]

    none, row, rows = height("alone"), height("short", "long"), height(*["an entry of thirty characters"] * 3)
    assert none < row < rows
    grouped = go.Figure([go.Bar(x=[1], y=[1], name="short", showlegend=number == 0) for number in range(5)])
    assert (
        in_course_look(grouped)["layout"]["height"] == in_course_look(go.Figure(grouped.data[:1]))["layout"]["height"]
    )


def test_panels_and_their_titles_lie_apart():
    figure = go.Figure()
    domains = stack(figure, ["first", LONG], [100, 50], ["a note", LONG], axis_px=20)
    inner_px = figure.layout.height - figure.layout.margin.t - figure.layout.margin.b
    (low, high), (lower, upper) = [(inner_px * start, inner_px * end) for start, end in domains]
    assert (high - low, upper - lower) == (pytest.approx(100), pytest.approx(50)) and high == inner_px and lower == 0
    title = figure.layout.annotations[1]
    assert low - upper >= 20 + 1.3 * title.font.size * num_lines(title.text) and num_lines(title.text) >= 4


def test_no_picture_offers_to_be_uploaded_and_no_figure_beside_a_bar_is_cut_off():
    spec = in_course_look(go.Figure(go.Bar(x=[1], y=[1])))
    assert spec["config"]["showSendToCloud"] is False
    assert "responsive" not in spec["config"], "a slow JupyterLab would show pictures without height"
    assert spec["data"][0]["cliponaxis"] is False
