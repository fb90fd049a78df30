"""show(): one output that every reader can use; and the static picture, which draws all of a figure or refuses it."""

import json
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from plotly.subplots import make_subplots

from inflight.errors import CourseError
from inflight.notebook.charts import kv_blocks, kv_blocks_summary, show
from inflight.notebook.palette import DECODE, MARGIN, PREFILL, REQUEST, WASTE
from inflight.notebook.static_chart import static_svg

ALT = "Two bars: decode takes 3 ms, prefill takes 1 ms."
NS = "{http://www.w3.org/2000/svg}"


def drawn(fig, tag):
    """The attributes of each such element of the picture, background apart."""
    found = ElementTree.fromstring(static_svg(fig, ALT)).iter(NS + tag)
    return [element.attrib for element in found if element.get("width") != "100%"]


def words(fig):
    return [element.text for element in ElementTree.fromstring(static_svg(fig, ALT)).iter(NS + "text")]


def bars(fig):
    return [{k: float(bar[k]) for k in ("x", "y", "width", "height")} for bar in drawn(fig, "rect")]


@pytest.fixture
def shell():
    """What display() needs to hand outputs to a reader."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_show_gives_plotly_svg_and_words_in_one_small_output(shell):
    with capture_output() as captured:
        show(go.Figure(go.Bar(x=["prefill", "decode"], y=[1, 3])), ALT)
    (output,) = captured.outputs
    assert set(output.data) == {"application/vnd.plotly.v1+json", "image/svg+xml", "text/plain"}
    assert output.data["text/plain"] == ALT
    ElementTree.fromstring(output.data["image/svg+xml"])
    assert len(json.dumps(output.data)) < 6000


def test_show_leaves_the_figure_as_it_was():
    fig = go.Figure(go.Bar(x=[1], y=[1]), layout={"template": "plotly_dark"})
    before = fig.to_json()
    with capture_output():
        show(fig, ALT)
    assert fig.to_json() == before


@pytest.mark.parametrize("alt", ["", "chart", "a chart"])
def test_show_wants_a_summary(alt):
    with pytest.raises(CourseError, match="say in a sentence what the picture shows"):
        show(go.Figure(), alt)


def test_the_palette_has_no_colour_twice():
    colours = [PREFILL, DECODE, WASTE, *REQUEST]
    assert len(set(colours)) == len(colours)


def test_the_picture_has_its_summary_for_a_screen_reader():
    root = ElementTree.fromstring(static_svg(go.Figure(), "a < b & c, in some more words"))
    assert root.get("role") == "img" and root.find(NS + "title").text == "a < b & c, in some more words"


def test_bars_are_as_tall_as_their_values():
    low, high = bars(go.Figure(go.Bar(x=["a", "b"], y=[1, 3])))
    assert high["height"] == pytest.approx(3 * low["height"], abs=0.5) and low["width"] == high["width"]
    assert low["y"] + low["height"] == pytest.approx(high["y"] + high["height"], abs=0.2)


def test_stacked_bars_stand_on_each_other():
    fig = go.Figure([go.Bar(x=[1], y=[1]), go.Bar(x=[1], y=[2])], layout={"barmode": "stack"})
    below, above = bars(fig)
    assert above["y"] + above["height"] == pytest.approx(below["y"], abs=0.2) and above["x"] == below["x"]


def test_grouped_bars_stand_side_by_side():
    left, right = bars(go.Figure([go.Bar(x=["a", "b"], y=[1, 1]), go.Bar(x=["a", "b"], y=[2, 2])]))[::2]
    assert left["x"] + left["width"] == pytest.approx(right["x"], abs=0.2)


def test_horizontal_bars_start_at_their_base():
    first, second = bars(go.Figure(go.Bar(y=["seat 1", "seat 2"], x=[5, 7], base=[0, 5], orientation="h")))
    assert second["x"] == pytest.approx(first["x"] + first["width"], abs=0.2)
    assert second["y"] < first["y"]


def test_bars_of_length_zero_have_an_axis_too():
    assert [bar["height"] for bar in bars(go.Figure(go.Bar(x=["a", "b"], y=[0, 0])))] == [0, 0]


def test_an_area_has_its_corners_and_a_gap_makes_two():
    x, y = [0, 1, 1, 0, None, 2, 3, 3], [0, 0, 1, 1, None, 0, 0, 1]
    fig = go.Figure(go.Scatter(x=x, y=y, fill="toself", fillcolor=DECODE, mode="none"))
    first, second = drawn(fig, "polygon")
    assert (len(first["points"].split()), len(second["points"].split())) == (4, 3)
    assert first["fill"] == second["fill"] == DECODE


def test_a_hatched_area_brings_its_pattern_along():
    look = {"shape": "/", "fgcolor": WASTE, "bgcolor": "white"}
    fig = go.Figure(go.Scatter(x=[0, 1, 1], y=[0, 0, 1], fill="toself", fillpattern=look, mode="none"))
    (pattern,), (area,) = drawn(fig, "pattern"), drawn(fig, "polygon")
    assert area["fill"] == f"url(#{pattern['id']})"


def test_a_step_line_has_corners_and_a_gap_breaks_it():
    fig = go.Figure(go.Scatter(x=[0, 1, 2, 3], y=[0, 1, None, 2], mode="lines", line_shape="hv"))
    first, second = (line["points"].split() for line in drawn(fig, "polyline"))
    assert len(first) == 3 and len(second) == 1
    assert first[1].split(",")[1] == first[0].split(",")[1]


def test_packed_arrays_draw_as_lists_do():
    x, y = np.arange(5), np.arange(5) ** 2.0
    fig, same = (go.Figure(go.Scatter(x=a, y=b)) for a, b in ((x, y), (x.tolist(), y.tolist())))
    assert static_svg(fig, ALT) == static_svg(same, ALT)


def test_a_logarithmic_axis_spaces_decades_evenly():
    fig = go.Figure(go.Scatter(x=[1, 10, 100], y=[1, 2, 3], mode="lines"), layout={"xaxis": {"type": "log"}})
    xs = [float(point.split(",")[0]) for point in drawn(fig, "polyline")[0]["points"].split()]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert {"1", "10", "100"} <= set(words(fig))


def test_titles_ticks_labels_annotations_and_legend_are_words():
    line = go.Scatter(x=[0, 1], y=[0, 1], name="a", mode="lines+text", text=["p", "q"])
    fig = go.Figure([line, go.Bar(x=[0], y=[1], name="b")], layout={"title": "Title", "xaxis_title": "time (s)"})
    fig.update_yaxes(title="tokens", tickvals=[0, 1], ticktext=["no", "all"])
    fig.add_annotation(x=0.5, y=0.5, text="<b>two</b><br>lines &amp; more")
    assert {"Title", "time (s)", "tokens", "no", "all", "p", "q", "a", "b", "two", "lines & more"} <= set(words(fig))


def test_shapes_lie_on_axes_and_paper():
    fig = go.Figure(go.Scatter(x=[0, 10], y=[0, 10]), layout={"xaxis_range": [0, 10], "yaxis_range": [0, 10]})
    fig.add_vrect(x0=5, x1=10, fillcolor=WASTE)
    fig.add_hline(y=5, line_dash="dash")
    (rect,) = bars(fig)
    assert rect["width"] == pytest.approx((760 - 70 - 24) / 2) and rect["height"] == pytest.approx(
        420 - MARGIN["t"] - MARGIN["b"]
    )
    line = next(line for line in drawn(fig, "line") if line.get("stroke-dasharray") == "8 5")
    assert line["y1"] == line["y2"] and float(line["y1"]) == pytest.approx(
        MARGIN["t"] + (420 - MARGIN["t"] - MARGIN["b"]) / 2
    )


def test_subplots_keep_to_their_place():
    fig = make_subplots(rows=1, cols=2, subplot_titles=["left", "right"])
    fig.add_scatter(x=[0, 1], y=[0, 1], row=1, col=1, mode="lines")
    fig.add_scatter(x=[0, 1], y=[0, 100], row=1, col=2, mode="lines")
    ends = [[float(p.split(",")[0]) for p in line["points"].split()] for line in drawn(fig, "polyline")]
    assert max(ends[0]) < 760 / 2 < min(ends[1])
    assert {"left", "right"} <= set(words(fig))


@pytest.mark.parametrize(
    ("fig", "names"),
    [
        (go.Figure(go.Pie(values=[1, 2])), "trace 'pie'"),
        (go.Figure(go.Scatter(x=[1], y=[1], fill="tozeroy")), "fill 'tozeroy'"),
        (go.Figure(go.Scatter(x=[1], y=[1], error_y={"value": 1})), "scatter.error_y"),
        (go.Figure(go.Scatter(x=[1], y=[1], mode="markers", marker_symbol="star")), "marker.symbol 'star'"),
        (go.Figure(go.Scatter(x=[1], y=[1], marker_color=[0.5])), "marker.color as numbers"),
        (go.Figure(go.Scatter(x=[1, 2], y=[1, 2], line_shape="spline")), "line.shape 'spline'"),
        (go.Figure(go.Bar(x=[1], y=[1], marker_pattern_shape="/")), "marker.pattern"),
        (go.Figure(go.Scatter(x=[1], y=[1], fill="toself", fillpattern={"shape": "x"})), "fillpattern.shape 'x'"),
        (go.Figure(layout={"shapes": [{"type": "circle", "x0": 0, "x1": 1, "y0": 0, "y1": 1}]}), "shape 'circle'"),
        (go.Figure(layout={"sliders": [{}]}), "layout.sliders"),
        (go.Figure(layout={"xaxis": {"type": "date"}}), "axis type 'date'"),
    ],
)
def test_what_it_cannot_draw_is_refused_by_name(fig, names):
    with pytest.raises(NotImplementedError, match=names):
        static_svg(fig, ALT)


# Lesson 05: blocks ----------------------------------------------------------------------------------------------------


def iteration(number, requests, paused=(), waiting=0):
    used = sum(row[3] for row in requests)
    return {
        "iteration": number,
        "requests": requests,
        "paused_ids": list(paused),
        "paused": len(paused),
        "waiting": waiting,
        "kv_blocks_used": used,
        "kv_blocks_max": 8,
    }


PAUSES = pd.DataFrame([  # the second request is paused in the third iteration, and comes back in the fifth
    iteration(1, [[1, 32, 0, 1], [2, 64, 0, 2]], waiting=3),
    iteration(2, [[1, 0, 1, 2], [2, 0, 1, 3]]),
    iteration(3, [[1, 0, 1, 8]], paused=[2]),
    iteration(4, [[1, 0, 1, 8]], paused=[2]),
    iteration(5, [[2, 66, 0, 3]]),
])  # fmt: skip


def areas(fig):
    return [trace for trace in fig.data if trace.fill == "toself"]


def test_blocks_are_stacked_by_request():
    older, younger = areas(kv_blocks({"tight": PAUSES}))[:2]
    assert list(zip(older.x, older.y, strict=True))[:4] == [(0, 1), (1, 1), (1, 2), (2, 2)]
    assert [max(filter(None, area.y)) for area in (older, younger)] == [8, 5]
    assert younger.x.count(None) == 2  # its two stays
    assert [x for x in younger.x if x is not None and 2 < x < 4] == []


def test_what_is_computed_again_is_marked_where_it_comes_back():
    (again,) = [trace for trace in kv_blocks({"tight": PAUSES}).data if trace.line.color == PREFILL]
    assert (list(again.x), list(again.y)) == ([4, 4, None], [0, 3, None])


def test_paused_and_waiting_lie_below_each_other():
    *_, waiting, paused = areas(kv_blocks({"tight": PAUSES}))
    assert paused.fillpattern.shape == "/" and max(paused.y) == 1
    assert max(waiting.y) == 3


def test_runs_of_blocks_share_one_scale_and_a_run_may_be_empty():
    runs = {"one": PAUSES, "nothing yet": PAUSES.iloc[:0]}
    fig = kv_blocks(runs)
    layout = fig.layout
    assert layout.xaxis.range == layout.xaxis4.range and layout.yaxis.range == layout.yaxis3.range
    assert "nothing yet: nothing yet" in kv_blocks_summary(runs)
    assert "at most 3 waiting and 1 paused" in kv_blocks_summary(runs)
    assert len(static_svg(fig, kv_blocks_summary(runs))) < 20_000
