"""A picture that follows its sliders; the lessons' own are in `test_charts`."""

import ipywidgets
import plotly.graph_objects as go
import pytest

from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.pages.execution import WIDGET_MIME
from inflight.notebook.widgets.dashboard import Frame
from inflight.notebook.widgets.explorable import Explorable


@pytest.fixture
def explorable():
    def draw(slots, kind):
        return Frame(go.Figure(go.Bar(y=[slots], name=kind)), f"{slots} slots, {kind}.")

    slider = ipywidgets.IntSlider(4, 1, 9, description="slots")
    return Explorable({"slots": slider, "kind": ipywidgets.Dropdown(options=["V1", "V2"])}, draw, "Slots")


def drawn(explorable):
    return [(trace.name, list(trace.y)) for trace in explorable.figure.data]


def test_each_control_changes_picture_and_words_at_once(explorable):
    assert drawn(explorable) == [("V1", [4])] and explorable.words.value == "4 slots, V1."
    for name, value in (("slots", 7), ("kind", "V2")):
        before = explorable.picture.value
        explorable.controls[name].value = value
        assert explorable.picture.value != before
    assert drawn(explorable) == [("V2", [7])] and explorable.words.value == "7 slots, V2."


def test_where_there_is_no_kernel_the_picture_and_its_words_stay(explorable):
    bundle = explorable._repr_mimebundle_()
    assert bundle[PLOTLY_MIME]["data"][0]["y"] == [4] and WIDGET_MIME in bundle
    assert bundle["text/plain"].startswith("4 slots, V1. Set: slots = 4, kind = V1.")
