"""show(): one output that every reader can use; and what the figures of lesson 05 hold."""

import json

import pandas as pd
import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from inflight import machine
from inflight.errors import CourseError
from inflight.lessons import batching
from inflight.lessons.kv_cache import kv_blocks, kv_blocks_summary
from inflight.notebook.charts import show
from inflight.notebook.charts.display import BUTTONS_PX, in_course_look
from inflight.notebook.palette import DECODE, HEIGHT, PREFILL

ALT = "Two bars: decode takes 3 ms, prefill takes 1 ms."


@pytest.fixture
def shell():
    """What display() needs to hand outputs to a reader."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_show_gives_plotly_and_words_in_one_small_output(shell):
    with capture_output() as captured:
        show(go.Figure(go.Bar(x=["prefill", "decode"], y=[1, 3])), ALT)
    (output,) = captured.outputs
    assert set(output.data) == {"application/vnd.plotly.v1+json", "text/plain"}
    assert output.data["text/plain"] == f"{ALT} Measured on {machine.device_name()}."
    assert len(json.dumps(output.data)) < 3000


def test_every_figure_has_the_look_of_the_course_and_a_height():
    spec = in_course_look(go.Figure(go.Bar(x=[1], y=[1]), layout={"template": "plotly_dark"}))
    assert spec["layout"]["template"]["layout"]["colorway"][:2] == [DECODE, PREFILL]
    assert spec["layout"]["height"] > HEIGHT
    own = in_course_look(go.Figure(layout={"height": 300, "legend": {"y": 0.5}, "meta": {"device": ""}}))["layout"]
    assert (own["height"], own["legend"]["y"]) == (300 + BUTTONS_PX[1], 0.5) and "title" not in own


def test_a_caption_names_what_was_measured_on():
    captioned = in_course_look(go.Figure())["layout"]
    assert captioned["title"]["text"] == f"measured on {machine.device_name()}"
    titled = go.Figure(layout={"title": "Builds", "meta": {"device": "NVIDIA H200"}})
    title = in_course_look(titled)["layout"]["title"]
    assert (title["text"], title["subtitle"]["text"]) == ("Builds", "measured on NVIDIA H200")


# Lesson 04 ------------------------------------------------------------------------------------------------------------

PAID = {
    "static": pd.DataFrame({"output_len": [8, 64], "latency_ms": [4000.0, 5000.0], "itl_ms": [10.0, 8.0]}),
    "in flight": pd.DataFrame({"output_len": [8, 64], "latency_ms": [500.0, 6000.0], "itl_ms": [14.0, 13.0]}),
}


def test_who_pays_shows_those_who_gain_nothing():
    fig = batching.who_pays(PAID)
    notes = [note.text for note in fig.layout.annotations]
    assert any("1 of 2 requests slower in flight" in note for note in notes)
    assert any("2 of 2 requests slower in flight" in note for note in notes), "every token comes later"
    long = next(trace for trace in fig.data if trace.name == "long answer")
    assert long.y[0] > long.x[0], "above the line"
    assert "it is longer for 1 of 2 requests; the mean ITL goes from 9.0 ms to 13.5 ms" in batching.who_pays_summary(
        PAID
    )


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


def test_promised_blocks_lie_on_those_that_are_held():
    promised, free = [2, 1, 0, 0, 3], [3, 2, 0, 0, 2]
    idle = pd.DataFrame({"iteration": range(1, 6), "promised": promised, "to_nobody": free})
    runs = {"guaranteed": PAUSES, "utilization": PAUSES}
    fig = kv_blocks(runs, {"guaranteed": idle})
    (layer,) = [trace for trace in fig.data if trace.legendgroup == "promised"]
    assert layer.yaxis == "y" and layer.name == "promised, not yet held" and layer.showlegend
    held = [3, 5, 8, 8, 3]
    corners = list(zip(layer.x, layer.y, strict=True))
    top, bottom = corners[: len(corners) // 2], corners[len(corners) // 2 :]
    assert set(top) >= {(0, 5), (1, 5), (1, 6), (2, 6), (2, 8), (4, 8), (4, 6), (5, 6)}
    assert set(bottom) >= {(0, held[0]), (1, held[0]), (1, held[1]), (5, held[4])}
    assert "on average 1 block" in layer.text
    said = kv_blocks_summary(runs, {"guaranteed": idle})
    assert said.count("15 % only promised") == 1
    assert not [trace for trace in kv_blocks(runs).data if trace.legendgroup == "promised"]


def test_runs_of_blocks_share_one_scale_and_a_run_may_be_empty():
    runs = {"one": PAUSES, "nothing yet": PAUSES.iloc[:0]}
    fig = kv_blocks(runs)
    layout = fig.layout
    assert layout.xaxis.range == layout.xaxis4.range and layout.yaxis.range == layout.yaxis3.range
    assert "nothing yet: nothing yet" in kv_blocks_summary(runs)
    assert "at most 3 waiting and 1 paused" in kv_blocks_summary(runs)
    assert len(json.dumps(in_course_look(fig))) < 20_000
