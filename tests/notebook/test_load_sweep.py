"""The picture of a sweep: its knee, its capacities, and hover texts in words and units."""

import json

import pytest

from inflight.notebook import charts
from inflight.notebook.charts.display import in_course_look, page
from tests.notebook.chart_samples import SWEEP_RESULT as RESULT


def test_the_knee_and_both_capacities_are_marked():
    fig = charts.load_sweep(RESULT)
    assert "knee: 4 requests/s" in json.dumps(fig.to_plotly_json(), default=str)
    levels = {trace.name: trace.y[0] for trace in fig.data if trace.name.startswith("capacity")}
    assert levels == {"capacity, measured": 5.0, "capacity, predicted from an iteration's cost": 5.5}
    assert "P99 of ITL" not in [trace.name for trace in fig.data]  # whole answers have none
    named = [note.text for note in fig.layout.annotations]
    assert "TTFT at most 400 ms" in named and "end-to-end latency at most 4000 ms" in named


def test_a_point_says_itself_in_words_and_units():
    fig = charts.load_sweep(RESULT)
    answered = next(trace for trace in fig.data if trace.name == "answered")
    assert answered.text[2].startswith("6 requests come a second<br>over its limit<br>17 % meet the objective")
    assert "requests answered a second" in answered.hovertemplate
    ttft = next(trace for trace in fig.data if trace.name == "P99 of TTFT")
    assert "TTFT: P50 160 ms, P90 160 ms, P99 160 ms" in ttft.text[0]
    assert list(answered.error_y.array) == pytest.approx([0.2, 0.39, 0.5])


@pytest.mark.parametrize("changed", [{"knee": None}, {"capacity": {"measured": None, "predicted": None}}])
def test_what_is_not_known_is_not_drawn(changed):
    fig = charts.load_sweep(RESULT | changed)
    assert len(fig.layout.annotations) == 3 - ("knee" in changed)
    assert charts.load_sweep_summary(RESULT | changed)


def test_in_words():
    summary = charts.load_sweep_summary(RESULT)
    assert summary == (
        "Requests answered a second by requests that come, from 2 to 6 a second: 2.00 at the lowest, 5.00 at the "
        "highest; the objective was kept up to 4 a second, the knee; P99 of the end-to-end latency rises from 1,800 to "
        "5,400 ms; over its limit the server answers 5.00 a second; 5.50 were predicted from the cost of an iteration."
    )


def test_it_is_a_page_of_its_own():
    fig = charts.load_sweep(RESULT)
    written = page(fig)
    assert "measured on AMD EPYC" in json.dumps(in_course_look(fig)) and "measured on AMD EPYC" in written
    assert 'src="http' not in written
