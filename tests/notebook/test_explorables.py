"""Pictures that follow their sliders, and how measured points join them."""

import json

import pytest

from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine import builder as engine
from inflight.engine.config import BuildConfig
from inflight.engine.folder import read
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
