"""The pictures of lesson 13: the lines that cross, and each round of three ways."""

import pandas as pd

from inflight.lessons import moving_a_cache as lesson
from inflight.notebook.charts.palette import DECODE, PREFILL


def test_lines():
    ms = {
        ("float32", 0.5): (210.0, 200.0, 900.0),
        ("float32", 2): (60.0, 50.0, 40.0),
        ("INT8", 0.5): (60.0, 61.0, 62.0),
    }
    rows = [(*of, each) for of, three in ms.items() for each in three]
    rows = pd.DataFrame(rows, columns=["cache", "Gbit/s", "ms"])
    computed = {"float32": 100.0, "INT8": 110.0}
    fig = lesson.lines(rows, computed)
    assert {line.name: (line.line.color, line.line.dash, list(line.x), list(line.y)) for line in fig.data} == {
        "taken, float32": (DECODE, "solid", [0.5, 2], [210, 50]),
        "taken, INT8": (DECODE, "dash", [0.5], [61]),
        "computed, float32": (PREFILL, "solid", [0.5, 2], [100, 100]),
        "computed, INT8": (PREFILL, "dash", [0.5], [110]),
    }
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    summary = lesson.lines_summary(rows[rows["cache"] == "float32"], computed)
    assert "float32: computed in 100 ms, taken in 210 at 0.5 Gbit/s, 50 at 2.0 Gbit/s" in summary


def test_gaps():
    rows = [("whole", 500.0, 700.0), ("whole", 520.0, 720.0), ("apart", 90.0, 900.0), ("apart", 110.0, 950.0)]
    found = pd.DataFrame(rows, columns=["engines", "longest gap (ms)", "TTFT (ms)"])
    fig = lesson.gaps(found)
    bars = [dict(zip(trace.y, trace.x)) for trace in fig.data if trace.type == "bar"]
    assert bars == [{"whole": 510, "apart": 100}, {"whole": 710, "apart": 925}]
    marks = [sorted(trace.x) for trace in fig.data if trace.type == "scatter"]
    assert marks == [[90, 110, 500, 520], [700, 720, 900, 950]]
    assert {note.text for note in fig.layout.annotations} == {"longest gap (ms)", "TTFT (ms)"}
    assert "whole: 510 ms, TTFT 710 ms; apart: 100 ms, TTFT 925 ms" in lesson.gaps_summary(found)
