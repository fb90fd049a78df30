"""The pictures of lesson 13: each way's median, and each round."""

import pandas as pd

from inflight.lessons import moving_a_cache as lesson
from inflight.notebook.charts.palette import DECODE, PREFILL, REQUEST


def test_prices():
    ms = {"compute": (100.0, 110.0, 900.0), "take": (9.0, 10.0, 11.0), "fetch": (1.0, 2.0, 3.0)}
    rows = [(tokens, way, tokens / 32 * each) for tokens in (32, 96) for way, three in ms.items() for each in three]
    rows = pd.DataFrame(rows, columns=["tokens", "way", "ms"])
    fig = lesson.prices(rows)
    assert {line.name: (line.line.color, list(line.x), list(line.y)) for line in fig.data} == {
        "compute": (PREFILL, [32, 96], [110, 330]),
        "take": (DECODE, [32, 96], [10, 30]),
        "fetch": (REQUEST[0], [32, 96], [2, 6]),
    }
    assert [note.text for note in fig.layout.annotations] == [*ms], "each line says its name"
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    assert "96 tokens: computed in 330 ms, taken 30, fetched 6" in lesson.prices_summary(rows)


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
