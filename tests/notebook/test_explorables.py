"""Pictures that follow their sliders: what is worked out, what is said of it, and how measured points join it."""

import json

import pytest

from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine import builder as engine
from inflight.engine.config import BuildConfig
from inflight.engine.folder import read
from inflight.engine.prediction import schedule
from inflight.engine.sizing import Sizing
from inflight.lessons import batching
from inflight.lessons import engine as engine_lesson
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.execution import WIDGET_MIME

LENGTHS = [8] * 12 + [256] + [16] * 6 + [256] + [8] * 4


@pytest.fixture(scope="module")
def sizing():
    return Sizing(GgufFile(fetch().path), read(engine.cached(fetch())).pretrained_config)


def memory(sizing):
    return engine_lesson.memory(sizing, BuildConfig(), 4e9)


POINTS = {
    "memory": ([{"users": 8, "bytes": 9e8}], {"tokens": 2048, "cache": "INT8"}),
    "slots_on_paper": (
        [{"type": "V1", "iterations": 590}, {"type": "inflight_fused_batching", "iterations": 299}],
        {"requests": len(LENGTHS), "slots": 4, "longest": 256},
    ),
}  # fmt: skip


@pytest.fixture(params=POINTS)
def name(request):
    return request.param


@pytest.fixture
def explorable(name, sizing):
    made = {
        "memory": lambda: memory(sizing),
        "slots_on_paper": lambda: batching.slots_on_paper(LENGTHS, slots=4),
    }
    return made[name]()


def shown(explorable):
    """What the page has of the figure."""
    return json.loads(explorable.picture.value)


def measured_traces(explorable):
    return [trace for trace in explorable.frame.figure.data if "measured" in str(trace.hovertemplate)]


def test_each_control_changes_picture_and_words_at_once(explorable):
    for control_name, control in explorable.controls.items():
        values = [control.min, control.max] if hasattr(control, "max") else control.options
        pictures, words = set(), set()
        for value in values:
            control.value = value
            pictures.add(explorable.picture.value)
            words.add(explorable.words.value)
        assert (len(pictures), len(words)) == (2, 2), control_name


def test_every_axis_has_a_title_and_every_mark_a_text(name, explorable):
    explorable.measured(POINTS[name][0], **POINTS[name][1])
    for axis in shown(explorable)["layout"].items():
        if axis[0].startswith(("xaxis", "yaxis")) and axis[1].get("showticklabels", True):
            assert axis[1].get("title", {}).get("text") or name == "slots_on_paper", axis
    for trace in explorable.frame.figure.data:
        if name != "slots_on_paper" or trace.type == "scatter":  # the bars are those of the chart
            assert trace.hovertemplate or trace.hovertext, trace.name


def test_measured_points_are_shown_with_the_settings_of_their_run(name, explorable):
    points, settings = POINTS[name]
    assert measured_traces(explorable) == [] and shown(explorable)["layout"]["meta"] == {"device": ""}
    explorable.measured(points, **settings)
    assert {name: explorable.controls[name].value for name in settings} == settings
    assert measured_traces(explorable) and shown(explorable)["layout"].get("meta") != {"device": ""}
    number = len(measured_traces(explorable))
    explorable.measured(points, **settings)  # the cell was run twice
    assert len(measured_traces(explorable)) == number
    moved = explorable.controls[next(iter(settings))]
    moved.value = moved.min if hasattr(moved, "min") else "as computed"
    assert measured_traces(explorable) == []


def test_where_there_is_no_kernel_the_picture_and_its_words_stay(explorable):
    bundle = explorable._repr_mimebundle_()
    assert bundle[PLOTLY_MIME]["data"] == shown(explorable)["data"] and WIDGET_MIME in bundle
    assert bundle["text/plain"].startswith(explorable.frame.alt) and "object at 0x" not in bundle["text/plain"]


def test_the_words_are_the_arithmetic(sizing):
    explorable = memory(sizing)
    config, users = BuildConfig(), sizing.users(BuildConfig(), 2048, 4e9)
    assert "With 8 slots the slots are the limit" in explorable.frame.alt
    explorable.controls["slots"].value = users + 5
    assert f"full at {users} users, and 5 slots stay empty" in explorable.frame.alt
    assert f"{sizing.kv_bytes_per_user(config, 2048) / 1e6:.1f} MB" in explorable.frame.alt

    on_paper = batching.slots_on_paper(LENGTHS, slots=4)
    static, joining = (len(schedule(LENGTHS, 4, kind).iterations) for kind in ("V1", "inflight_fused_batching"))
    assert f"{static} iterations static and {joining} in flight" in on_paper.frame.alt
    on_paper.controls["longest"].value = 8
    on_paper.controls["requests"].value = 1
    assert "8 iterations static and 8 in flight, 1.0 times fewer" in on_paper.frame.alt
