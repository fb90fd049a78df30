"""What each picture says: its figure is read back, and compared with the table that it was made from.

Whose is which colour, what stands on which axis and in which unit, what is drawn where. A test of a chart has its
name, here or in its lesson's folder; the charts are those of `inflight/lessons/*/charts.py`. How a picture
looks is for somebody to look at.
"""

import importlib
import inspect
import itertools
import re
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from inflight.engine import BuildConfig
from inflight.lessons import (
    batchers,
    batching,
    capstone,
    engine,
    iterative_gpt2,
    kv_cache,
    repository,
    serve,
    speculation,
    start_here,
    structured_output,
)
from inflight.lessons.batchers.batch_run import Outcome
from inflight.lessons.batching.simulate import schedule
from inflight.lessons.capstone.contract import LECTURE, ROUND, Contract
from inflight.notebook.charts.palette import DECODE, EMPTY, INK, PREFILL, REQUEST, SHADES, WASTE
from inflight.paths import PACKAGE
from inflight.triton.telemetry import Statistics

GREEN, PINK, SKY, VERMILION, _ = REQUEST


def test_every_chart_of_a_lesson_has_its_test():
    charts = []
    for file in (PACKAGE / "lessons").glob("*/charts.py"):
        module = importlib.import_module(f"inflight.lessons.{file.parent.name}.charts")
        charts += [
            name
            for name, function in inspect.getmembers(module, inspect.isfunction)
            if function.__module__ == module.__name__ and not name.startswith("_")
            if inspect.get_annotations(function).get("return") in (go.Figure, "go.Figure")
        ]
    tests = "".join(file.read_text(encoding="utf-8") for file in Path(__file__).parent.rglob("test_*.py"))
    assert charts and [name for name in charts if f"def test_{name}(" not in tests] == []


def table(columns, *rows):
    return pd.DataFrame(rows, columns=columns.split())


# Reading a figure -----------------------------------------------------------------------------------------------------


def named(fig, axis="y"):
    """The traces on a y axis, by their names."""
    found = {}
    for trace in fig.data:
        if (trace.yaxis or "y") == axis:
            found.setdefault(trace.name, []).append(trace)
    return found


def one(fig, name, axis="y"):
    [trace] = named(fig, axis)[name]
    return trace


def bars(trace):
    """(lane, begin, length) of each bar of a trace that lies on its side."""
    assert trace.type == "bar" and trace.orientation == "h"
    return list(zip(trace.y, trace.base, trace.x, strict=True))


def points(trace):
    return list(zip(trace.x, trace.y, strict=True))


def edges(trace):
    """X -> (lower edge, upper edge) of an area of steps, from each whole x to the next."""
    found = {}
    for (left, y), (right, other) in itertools.pairwise(points(trace)):
        if y is not None and y == other:
            for x in range(min(left, right), max(left, right)):
                found.setdefault(x, set()).add(y)
    return {x: (min(ys), max(ys)) for x, ys in found.items()}


def drawn(fig, axis="y"):
    """Name -> colour and points of the markers and bars on a y axis, one trace each."""
    return {name: (trace.marker.color, points(trace)) for name, [trace] in named(fig, axis).items()}


def lanes(fig):
    """What is written at an axis of lanes -> where it stands."""
    return dict(zip(fig.layout.yaxis.ticktext, fig.layout.yaxis.tickvals, strict=True))


def titles(fig, *axes):
    return [fig.layout[axis].title.text for axis in axes]


def panel(fig, y_axis):
    """What is written above the panel of a y axis, in plain letters."""
    top = fig.layout[y_axis].domain[1]
    [note] = [note for note in fig.layout.annotations if note.yref == "paper" and note.y == pytest.approx(top)]
    return re.sub("<[^>]+>", " ", note.text).replace("  ", " ").strip()


def legend(fig):
    """Names in the legend; each stands there once, and switches its class in every panel."""
    shown = [trace for trace in fig.data if trace.showlegend]
    groups = {trace.legendgroup for trace in fig.data if trace.legendgroup}
    assert groups == {trace.legendgroup for trace in shown} and len(shown) == len(groups)
    return [trace.name for trace in shown]


# Lesson 00 ------------------------------------------------------------------------------------------------------------


def test_request_map():
    path = table(
        "lane what start_ms end_ms",
        ("preprocessing", "text to tokens", 4.0, 9.0),
        ("tensorrt_llm", "hand-over", 9.0, 11.0),
        ("tensorrt_llm", "prompt", 11.0, 55.0),
        ("tensorrt_llm", "token", 55.0, 70.0),
        ("tensorrt_llm", "token", 72.0, 90.0),
        ("postprocessing", "tokens to text", 56.0, 58.0),
        ("client", "arrival", 60.0, 60.0),
        ("client", "arrival", 93.0, 93.0),
    )
    fig = start_here.request_map(path)
    assert lanes(fig) == {"client": 3, "preprocessing": 2, "tensorrt_llm": 1, "postprocessing": 0}
    stays = {name: (trace.marker.color, bars(trace)) for name, [trace] in named(fig).items() if trace.type == "bar"}
    assert stays == {
        "text to tokens": (GREEN, [(2, 4, 5)]),
        "hand-over": (WASTE, [(1, 9, 2)]),
        "prompt": (PREFILL, [(1, 11, 44)]),
        "token": (DECODE, [(1, 55, 15), (1, 72, 18)]),
        "tokens to text": (PINK, [(0, 56, 2)]),
    }
    assert points(one(fig, "a piece of text arrives")) == [(60, 3), (93, 3)]
    measured, gap = points(one(fig, "the first word's path")), (None, None)
    assert measured == [(4, 3), (4, 2), (9, 2), (9, 1), (55, 1), gap, (56, 1), (56, 0), (60, 0), (60, 3)]
    remains = one(fig, "what remains")
    assert points(remains) == [(0, 3), (4, 3), gap, (55, 1), (56, 1)] and remains.line.dash == "dot"
    assert titles(fig, "xaxis") == ["milliseconds since Enter"]
    notes = {note.text: note.x for note in fig.layout.annotations}
    assert notes["<b>first word: 60 ms</b>"] == 60 and notes["Enter"] == 0 and notes["prompt"] == 11
    said = start_here.request_map_summary(path, pd.DataFrame({"stage": ["prompt"], "ms": [60.0]}))
    assert said.endswith("the last of 2 pieces arrives after 93 ms.")


# Lesson 01 ------------------------------------------------------------------------------------------------------------


def test_curve():
    measured = table(
        "users total memory arithmetic",
        (1, 100.0, 400.0, 3000.0),
        (8, 500.0, 2500.0, 3000.0),
        (64, 1500.0, 7000.0, 3000.0),
    )
    fig = engine.curve(measured, 2400.0, 0.25e9)
    assert points(one(fig, "all users")) == [(1, 100), (8, 500), (64, 1500)]
    assert points(one(fig, "each user")) == [(1, 100), (8, 62.5), (64, 1500 / 64)]
    assert points(one(fig, "memory roof")) == [(1, 400), (8, 2500), (64, 7000)]
    assert points(one(fig, "compute roof"))[-1] == (256, 3000)
    assert points(one(fig, "a prompt")) == [(256, 2400)]
    assert points(one(fig, "beyond the roof")) == [(1, 100), (1, 400)]
    assert [note.text for note in fig.layout.annotations] == ["no roof explains:<br>7.5 of 10.0 ms"]
    assert titles(fig, "yaxis", "yaxis2") == ["tokens a second", "billion FLOPs a second"]
    left, right = fig.layout.yaxis.range, fig.layout.yaxis2.range
    assert [10 ** (b - a) for a, b in zip(left, right)] == pytest.approx([0.25, 0.25]), "one height, two units"
    said = engine.curve_summary(measured, 2400.0)
    assert "1: 100 (25%), 8: 500 (20%), 64: 1,500 (50%)" in said and "The roofs meet below 64 users" in said
    assert "Of one user's 10.0 ms the roof asks for 2.5; 7.5 are beyond it." in said
    assert "A prompt of 256 tokens reaches 80% of the compute roof" in said


class Bytes:
    """A model of 100 MB; a user with 1,024 tokens takes 2 MB of cache, and half of that with INT8."""

    def weight_bytes(self, config):
        return 100e6

    def kv_bytes_per_user(self, config, tokens):
        return (2e6 if config.kv_cache_quant_algo is None else 1e6) * tokens / 1024

    def users(self, config, tokens, memory_bytes):
        return int((memory_bytes - 100e6) // self.kv_bytes_per_user(config, tokens))


def test_memory():
    config = BuildConfig(max_batch_size=8, max_seq_len=2048)
    picture = engine.memory(Bytes(), config, 180e6)  # 40 users with 1,024 tokens, 20 with 2,048
    picture.controls["tokens"].value = 1024
    fig = picture.figure
    looks = {name: trace.line.color for name, [trace] in named(fig).items()}
    assert looks == {"weights": WASTE, "with the KV cache": DECODE, "free memory": VERMILION, "slots": INK}
    assert set(one(fig, "weights").y) == {100} and set(one(fig, "free memory").y) == {180}
    assert set(one(fig, "slots").x) == {8}
    used = dict(points(one(fig, "with the KV cache")))
    assert used[1] == 102 and used[8] == 116, "2 MB a user"
    assert max(used.values()) == 116, "who has no slot takes no memory"
    assert titles(fig, "xaxis", "yaxis") == ["users who come at once", "megabytes"]
    assert "0.10 GB of weights, and 2.0 MB of KV cache for each user with 1,024 tokens" in picture.frame.alt
    assert "8 users take 0.12 of 0.2 GB. With 8 slots the slots are the limit" in picture.frame.alt
    picture.controls["slots"].value = 50
    assert max(one(picture.figure, "with the KV cache").y) == 180, "40 users fit"
    assert "full at 40 users, and 10 slots stay empty" in picture.frame.alt
    picture.controls["cache"].value = "INT8"
    assert "1.0 MB of KV cache" in picture.frame.alt


# Lesson 02 ------------------------------------------------------------------------------------------------------------


def test_nets():
    fig = repository.nets(["a typo", "a wrong path", "two tensors swapped"], ["files", "load", "answer"])
    assert [(line.name, *line.x, *line.y) for line in fig.data] == [
        ("a typo", 0, 1, 0, 0), ("a wrong path", 0, 2, 1, 1), ("two tensors swapped", 0, 3, 2, 2)
    ]  # fmt: skip
    assert [(note.text, note.y) for note in fig.layout.annotations] == [(line.name, line.y[0]) for line in fig.data]
    assert [line.x0 for line in fig.layout.shapes] == [1, 2, 3] == list(fig.layout.xaxis.tickvals)[1:]
    assert len({line.line.color for line in fig.data}) == 3
    said = repository.nets_summary(["a typo", "a wrong path"], ["load", "load"])
    assert said == "Found when the model is loaded: a typo, a wrong path."


# Lesson 03 ------------------------------------------------------------------------------------------------------------


def test_token_timeline():
    pieces = table(
        "case user time_s",
        ("one user, whole", 0, 1.2),
        *(("one user, streamed", 0, time_s) for time_s in (0.2, 0.3, 0.4, 0.6)),
        *(("two users, streamed", user, 0.5 + user + 0.1 * number) for user in range(2) for number in range(3)),
    )
    fig = serve.token_timeline(pieces)
    whole, streamed, both = (lanes(fig)[f"{case},<br>{way}"] for case, way in (
        ("one user", "whole"), ("one user", "streamed"), ("two users", "streamed")))  # fmt: skip
    assert whole > streamed > both
    assert points(one(fig, "a whole answer")) == [(1.2, whole)]
    arrived, waits = one(fig, "a piece of an answer"), one(fig, "nothing to read")
    assert points(arrived)[:4] == [(0.2, streamed), (0.3, streamed), (0.4, streamed), (0.6, streamed)]
    assert points(arrived)[4:] == [
        (pytest.approx(0.5 + user + 0.1 * number), both + 0.5 - user) for user in range(2) for number in range(3)
    ]
    assert points(waits)[:5] == [(0, whole), (1.2, whole), (None, whole), (0, streamed), (0.2, streamed)]
    marked = {shape.label.text: (shape.x0, shape.x1) for shape in fig.layout.shapes}
    assert marked == {"TTFT 200 ms": (0, 0.2), "ITL 200 ms": (0.4, 0.6), "end-to-end 600 ms": (0, 0.6)}
    assert arrived.marker.color == one(fig, "a whole answer").marker.color == DECODE and waits.line.color == WASTE
    assert titles(fig, "xaxis") == ["time since the request was sent (s)"]
    for words in ("all at once · end-to-end 1.20 s",
                  "TTFT 200 ms · median ITL 100.0 ms · TPOT 133.3 ms · end-to-end 0.60 s",
                  "TTFT 1000 ms · median ITL 100.0 ms · TPOT 100.0 ms · end-to-end 1.20 s"):  # fmt: skip
        assert words in serve.token_timeline_summary(pieces)


# Lesson 04 ------------------------------------------------------------------------------------------------------------

STAYS = {
    "static": table("request slot first last", (11, 1, 1, 8), (12, 2, 1, 64), (13, 1, 65, 96)),
    "in-flight": table("request slot first last", (21, 1, 1, 8), (22, 2, 1, 64), (23, 1, 9, 40)),
}


def test_slot_map():
    fig = batching.slot_map(STAYS, 2)
    colours = dict(zip(("short answer", "medium answer", "long answer"), (GREEN, SKY, VERMILION)))
    colours["empty slot: waste"] = EMPTY["color"]
    for x, y, begin, end in (("x", "y", 64, 96), ("x2", "y2", 8, 64)):
        stays = {name: trace for name, [trace] in named(fig, y).items()}
        assert {name: trace.marker.color for name, trace in stays.items()} == colours
        assert {name: bars(trace) for name, trace in stays.items()} == {
            "short answer": [(1, 0, 8)],
            "medium answer": [(1, begin, 32)],
            "long answer": [(2, 0, 64)],
            "empty slot: waste": [(1, 0, end), (2, 0, end)],
        }
        assert stays["empty slot: waste"].zorder == -1, "behind the stays"
        assert {trace.xaxis for trace in stays.values()} == {x}
    assert panel(fig, "yaxis") == "static 96 iterations, 46 % of the slots' time wasted"
    assert panel(fig, "yaxis2") == "in-flight 64 iterations, 19 % of the slots' time wasted"
    assert titles(fig, "xaxis2", "yaxis", "yaxis2") == ["iteration", "slot", "slot"]
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1], "slot 1 at the top"
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range and fig.layout.xaxis.matches == "x2"
    [hover] = one(fig, "medium answer", "y2").customdata[:, 0]
    assert hover.startswith("request 3 · slot 1 · medium answer"), "numbers begin with 1 in each run"
    assert legend(fig) == list(colours)
    assert "in-flight: 3 requests in 64 iterations, 19 %" in batching.slot_map_summary(STAYS, 2)
    assert "nobody yet" in panel(batching.slot_map({"now": STAYS["static"].iloc[:0]}, 2), "yaxis")


def test_simulated_slots():
    picture = batching.simulated_slots([8, 8, 64, 16, 8], 2)
    fig = picture.figure
    for axis, name in (("y", "V1"), ("y2", "inflight_fused_batching")):
        stays = [bar for kind in ("short", "medium", "long") for bar in bars(one(fig, f"{kind} answer", axis))]
        rows = schedule([8, 8, 64, 16, 8], 2, name).itertuples()
        assert sorted(stays) == sorted((row.slot, row.first - 1, row.last - row.first + 1) for row in rows)
        assert [length for _, _, length in bars(one(fig, "long answer", axis))] == [64]
    assert panel(fig, "yaxis").startswith("static (V1)") and panel(fig, "yaxis2").startswith("in-flight")
    assert "On paper 80 iterations static and 72 in flight" in picture.frame.alt
    picture.controls["longest"].value = 8
    assert [bar[2] for bar in bars(one(picture.figure, "long answer", "y"))] == [8], "whose answer it is stays drawn"
    picture.controls["requests"].value = 1
    assert "8 iterations static and 8 in flight" in picture.frame.alt and len(named(picture.figure)) == 2


def test_who_pays():
    runs = {
        "static": pd.DataFrame({"output_len": [8, 64], "latency_ms": [4000.0, 5000.0]}),
        "in flight": pd.DataFrame({"output_len": [8, 64], "latency_ms": [500.0, 6000.0]}),
    }
    fig = batching.who_pays(runs)
    assert drawn(fig, "y") == {"short answer": (GREEN, [(4, 0.5)]), "long answer": (VERMILION, [(5, 6)])}
    assert titles(fig, "xaxis", "yaxis") == ["complete after, static (s)", "complete after, in flight (s)"]
    [line] = fig.layout.shapes
    assert (line.x0, line.x1) == (line.y0, line.y1), "no change"
    sides = {note.text: note for note in fig.layout.annotations}
    later, earlier = sides["later in flight"], sides["earlier in flight"]
    assert later.y > later.x and earlier.y < earlier.x
    said = batching.who_pays_summary(runs)
    assert said.startswith("An answer is complete after 3.2 s on average in place of 4.5 s; 1 of 2 requests are")


# Lesson 05 ------------------------------------------------------------------------------------------------------------


PAUSES = table(  # the second request is paused in the third iteration, and comes back in the fifth
    "iteration requests paused_ids paused waiting kv_blocks_used kv_blocks_max",
    (1, [[31, 32, 0, 1], [32, 64, 0, 2]], [], 0, 3, 3, 8),
    (2, [[31, 0, 1, 2], [32, 0, 1, 3]], [], 0, 0, 5, 8),
    (3, [[31, 0, 1, 8]], [32], 1, 0, 8, 8),
    (4, [[31, 0, 1, 8]], [32], 1, 0, 8, 8),
    (5, [[32, 66, 0, 3]], [], 0, 0, 3, 8),
)


def test_block_tables():
    fig, said = kv_cache.block_tables({"A": [0, 1, 3], "B": [0, 2]}, {"A": 72, "B": 64}, 5, 32)
    (first, second, pool), boxes = fig.data[::2], fig.data[1::2]
    assert [row.text for row in boxes] == [("0", "1", "3"), ("0", "2"), ("A<br>B", "A", "B", "A", "")]
    shared, of_a, of_b, again, free = pool.marker.color
    assert of_a == again == first.marker.color[1] and of_b == second.marker.color[1]
    assert shared == first.marker.color[0] == second.marker.color[0] and len({shared, of_a, of_b, free}) == 4
    assert [x / boxes[0].x[0] for x in first.x] == [1, 1, 0.25] and pool.x[3:] == (first.x[2], 0)
    assert said == "Of 5 blocks A holds blocks 0, 1, 3; B holds blocks 0, 2. Both hold 0, where they begin alike."


def test_iterations_around():
    """Request 8 has the long prompt; of three rounds the middle one is drawn, from the prompt on."""

    def served(*ms: float, parts: int) -> pd.DataFrame:
        requests = [[[7, 5, 1, 1]], *[[[7, 0, 1, 1], [8, 50, 0, 2]]] * parts, [[7, 0, 1, 1]], [[7, 0, 1, 1]]]
        return pd.DataFrame({"iteration": range(1, parts + 4), "iteration_ms": ms, "requests": requests})

    whole = [served(15, ms, 16, 17, parts=1) for ms in (100, 200, 300)]
    in_parts = [served(15, 70, 71, 16, 17, parts=2)] * 3
    fig, said = kv_cache.iterations_around({"whole": whole, "in parts": in_parts})
    below, above = one(fig, "prompt, answers", "y"), one(fig, "prompt, answers", "y2")
    assert (points(above), points(below)) == ([(0, 200)], [(0, 70), (1, 71)])
    assert points(one(fig, "answers", "y2")) == [(1, 16), (2, 17)]
    assert above.marker.color == PREFILL != one(fig, "answers", "y2").marker.color
    assert [note.text for note in fig.layout.annotations] == ["in parts", "whole"]
    assert said.endswith(
        "whole: it takes 1 iteration, the longest 200 ms; in parts: it takes 2 iterations, the longest 71 ms."
    )


def test_kv_blocks():
    idle = {"guaranteed": pd.DataFrame({"iteration": range(1, 6), "promised": [2, 1, 0, 0, 3], "to_nobody": 0})}
    fig = kv_cache.kv_blocks({"tight": PAUSES, "guaranteed": PAUSES, "now": PAUSES.iloc[:0]}, idle)
    for axis in ("y", "y2"):
        older, younger = named(fig, axis)["a request's blocks"]
        assert edges(older) == {0: (0, 1), 1: (0, 2), 2: (0, 8), 3: (0, 8)}
        assert edges(younger) == {0: (1, 3), 1: (2, 5), 4: (0, 3)}, "on the older one's, and twice"
        assert (older.fillcolor, younger.fillcolor) == SHADES[:2]
        assert younger.text == "request 2 · at most 3 blocks · iterations 1 to 5 · paused at iteration 3, back at 5"
        again = one(fig, "computed again", axis)
        assert points(again) == [(4, 0), (4, 3), (None, None)] and again.line.color == PREFILL
        assert points(one(fig, "all blocks", axis)) == [(0, 8), (5, 8)]
    for axis in ("y4", "y5"):
        waiting, paused = one(fig, "waiting", axis), one(fig, "paused", axis)
        assert waiting.fillcolor == WASTE and paused.fillpattern.fgcolor == VERMILION
        assert {x: high - low for x, (low, high) in edges(waiting).items() if high > low} == {0: 3}
        assert {x: high - low for x, (low, high) in edges(paused).items() if high > low} == {2: 1, 3: 1}
    assert "promised, not yet held" not in named(fig)
    promised = one(fig, "promised, not yet held", "y2")
    assert {x: ends for x, ends in edges(promised).items() if x < 2 or x == 4} == {0: (3, 5), 1: (5, 6), 4: (3, 6)}
    assert "on average 1 block" in promised.text and promised.fillpattern.fgcolor == GREEN
    assert titles(fig, "yaxis", "yaxis4", "xaxis3") == ["KV blocks", "no slot", "iteration"]
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range and fig.layout.yaxis.range == fig.layout.yaxis2.range
    assert panel(fig, "yaxis").startswith("tight 5 iterations, 68 % of 8 blocks in use on average")
    assert panel(fig, "yaxis2").startswith("guaranteed 5 iterations") and "15 % only promised" in panel(fig, "yaxis2")
    assert panel(fig, "yaxis3") == "now nothing yet"
    assert legend(fig) == [
        "a request's blocks", "computed again", "all blocks", "waiting", "paused", "promised, not yet held",
    ]  # fmt: skip
    said = kv_cache.kv_blocks_summary({"tight": PAUSES})
    assert said.count("at most 3 waiting and 1 paused") == 1


# Lesson 06 ------------------------------------------------------------------------------------------------------------


def test_batches():
    executions = table(
        "execution instance start_s end_s requests size work",
        (1, 0, 0.010, 0.070, [1], 1, 1),
        (2, 1, 0.030, 0.090, [2, 3], 2, 1),
        (3, 0, 0.080, 0.140, [4, 6], 2, 1),
    )
    requests = table(
        "request sent_s priority answered_s outcome execution",
        (1, 0.010, 0, 0.071, "answered", 1),
        (2, 0.012, 0, 0.091, "answered", 2),
        (3, 0.030, 0, 0.190, "answered", 2),
        (4, 0.040, 0, 0.141, "answered", 3),
        (5, 0.050, 0, 0.060, "rejected", None),
        (6, 0.060, 1, 0.141, "answered", 3),
    ).astype({"execution": "Int64"})
    requests["latency_ms"] = 1000 * (requests["answered_s"] - requests["sent_s"])
    run = Outcome(requests, executions, Statistics(0, 0, 0, 0, pd.Series(dtype=int)))
    fig = batchers.batches({"before": run, "now": run})
    for rows, lanes in (("y", "y3"), ("y2", "y4")):
        marks = drawn(fig, rows)
        assert marks["arrives"] == (INK, [(10, 1), (12, 2), (30, 3), (40, 4), (50, 5)])
        assert marks["urgent"] == (PINK, [(60, 6)]) and marks["rejected"] == (VERMILION, [(60, 5)])
        waits = one(fig, "waits", rows)
        assert bars(waits) == [(2, 12, 18), (4, 40, 40), (5, 50, 10), (6, 60, 20)] and waits.marker.color == WASTE
        zero, first = one(fig, "batch", rows), one(fig, "batch of model 1", rows)
        assert bars(zero) == [(1, 10, 60), (4, 80, 60), (6, 80, 60)], "request 5 came between"
        assert bars(first) == [(2.5, 30, 60)] and list(first.width) == pytest.approx([1.9])
        assert (zero.marker.color, first.marker.color) == SHADES[:2]
        assert [(bars(trace), list(trace.text)) for [trace] in named(fig, lanes).values()] == [
            ([(0, 10, 60), (0, 80, 60)], ["1", "2"]),
            ([(1, 30, 60)], ["2"]),
        ]
    assert list(fig.layout.yaxis3.ticktext) == ["model 0", "model 1"]
    assert titles(fig, "yaxis", "yaxis2", "xaxis2") == ["request", "request", "time (ms)"]
    assert fig.layout.yaxis.range[0] > fig.layout.yaxis.range[1] and fig.layout.yaxis3.range[0] > 0, "from the top down"
    assert panel(fig, "yaxis") == "before 5 requests in 3 batches, 1 rejected, median latency 81 ms"
    assert panel(fig, "yaxis2").startswith("now ")
    assert legend(fig) == ["waits", "arrives", "urgent", "rejected", "batch", "batch of model 1"]
    assert "sizes 1, 2, 2" in batchers.batches_summary({"now": run})
    refused = Outcome(requests[requests["outcome"] == "rejected"], executions.iloc[:0], run.statistics)
    assert panel(batchers.batches({"now": refused}), "yaxis") == "now 0 requests in 0 batches, 1 rejected"


def test_latencies():
    views = pd.DataFrame({"sent": [100.0, 120.0], "due": [100.0, 900.0]}, index=[0.5, 1.0])
    fig, summary = batchers.latencies(views, limit_ms=300)
    assert {trace.name: (list(trace.x), list(trace.y)) for trace in fig.data} == {
        "sent: 0 late": ([0.5, 1.0], [100, 120]),
        "due: 1 late": ([0.5, 1.0], [100, 900]),
    }
    assert summary == "P95, and requests slower than 300 ms: sent, 119 ms and 0; due, 860 ms and 1."
    assert titles(fig, "xaxis", "yaxis") == ["when the request was due (s)", "latency (ms)"]


# Lesson 08 ------------------------------------------------------------------------------------------------------------


def test_race():
    columns = "stream token time_s"
    runs = {
        "simple": table(columns, (1, 1, 0.3), (1, 2, 0.5), (2, 1, 0.9)),
        "iterative": table(columns, (1, 1, 0.3), (2, 1, 0.4), (1, 2, 0.6)),
        "nothing yet": table(columns).astype({"stream": int, "token": int, "time_s": float}),
    }
    fig = iterative_gpt2.race(runs, {title: [0.0, 0.1] for title in runs})
    for axis, first, second in (
        ("y", [(0, 0), (0.3, 1), (0.5, 2)], [(0.1, 0), (0.9, 1)]),
        ("y2", [(0, 0), (0.3, 1), (0.6, 2)], [(0.1, 0), (0.4, 1)]),
    ):
        for name, expected, colour in (("stream 1", first, GREEN), ("stream 2", second, PINK)):
            line = one(fig, name, axis)
            assert points(line) == expected and line.line.color == colour
        sent = [trace for trace in named(fig, axis)[None] if trace.mode == "markers"]
        assert [(points(trace), trace.marker.color) for trace in sent] == [([(0, 0)], GREEN), ([(0.1, 0)], PINK)]
    together = {"simple": table(columns, (1, 1, 0.3), (2, 1, 0.9), (3, 1, 0.9), (4, 1, 0.901))}
    [ends] = [trace for trace in iterative_gpt2.race(together, {"simple": [0.0] * 4}).data if trace.mode == "text"]
    assert (list(ends.text), points(ends)) == (["1", "2, 3, 4"], [(0.3, 1), (0.901, 1)]), "one label where lines meet"
    assert [panel(fig, axis) for axis in ("yaxis", "yaxis2", "yaxis3")] == list(runs)
    assert titles(fig, "yaxis", "yaxis2", "xaxis3") == ["tokens", "tokens", "seconds since the first request was sent"]
    assert fig.layout.xaxis.range == fig.layout.xaxis2.range and fig.layout.yaxis.range == fig.layout.yaxis2.range
    assert legend(fig) == ["stream 1", "stream 2"]
    assert line.line.shape == "hv", "nothing rises while nothing comes"


def test_through_each_pass():
    columns = "pass stream tokens"
    runs = {
        "without": table(columns, (1, 1, 6), (2, 1, 7), (2, 2, 5)),
        "with": table(columns, (1, 1, 6), (2, 1, 1), (2, 2, 5)),
    }
    fig = iterative_gpt2.through_each_pass(runs)
    assert [panel(fig, axis) for axis in ("yaxis", "yaxis2")] == [
        "without: 18 tokens in 2 passes", "with: 12 tokens in 2 passes",
    ]  # fmt: skip
    assert points(one(fig, "stream 1", "y")) == [(1, 6), (2, 7)] and points(one(fig, "stream 2", "y2")) == [(2, 5)]
    assert titles(fig, "yaxis", "xaxis2") == ["tokens in the pass", "forward pass"]
    assert fig.layout.barmode == "stack" and fig.layout.yaxis.range is fig.layout.yaxis2.range is None
    assert legend(fig) == ["stream 1", "stream 2"]
    words = iterative_gpt2.through_each_pass_summary(runs)
    assert "without, 18 tokens in 2 passes, at most 12 in one; with, 12 tokens in 2 passes, at most 6 in one" in words


# Lesson 09 ------------------------------------------------------------------------------------------------------------


CONTRACT = Contract(LECTURE, ROUND, rate=2.0, ttft_ms=500, tpot_ms=40)
MEASURED = table(
    "setting rate share low high",
    ("default", 1.0, 0.97, 0.95, 1.0),
    ("default", 2.0, 0.4, 0.1, 0.6),
    ("tuned", 2.0, 0.96, 0.93, 0.98),
)


def test_service_against_load():
    fig = capstone.service_against_load(MEASURED, CONTRACT)
    assert points(one(fig, "default")) == [(1.0, 97), (2.0, 40)] and points(one(fig, "tuned")) == [(2.0, 96)]
    assert list(one(fig, "default").error_y.array) == pytest.approx([3, 20])
    assert list(one(fig, "default").error_y.arrayminus) == pytest.approx([2, 30])
    [corner] = fig.layout.shapes
    assert (corner.x0, corner.y0) == (2.0, 95) and corner.x1 == fig.layout.xaxis.range[1]
    assert titles(fig, "xaxis", "yaxis") == ["load (requests/s)", "in time (% of requests)"]
    assert {note.text.strip() for note in fig.layout.annotations} == {"default", "tuned", "the contract"}


# Lesson 10 ------------------------------------------------------------------------------------------------------------


def test_guided_steps():
    steps = table("text allowed", ("{", 1), (" cat", 500))
    fig = structured_output.guided_steps(steps, 1000)
    choice, forced = one(fig, "the model chooses"), one(fig, "the schema writes: one token may come")
    assert points(forced) == [(1, 0.1)] and points(choice) == [(2, 50)] and choice.marker.color == DECODE
    assert list(fig.layout.xaxis.ticktext) == ["{", "·cat"] and fig.layout.yaxis.type == "log"
    assert titles(fig, "yaxis") == ["may come, of the vocabulary (log)"]
    said = structured_output.guided_steps_summary(steps, 1000)
    assert said.startswith("Of the 2 tokens of this answer, 1 had no alternative;") and "50 % of the vocabulary" in said


# Lesson 11 ------------------------------------------------------------------------------------------------------------


def test_steps():
    answers = {"rewrite": [(0, 2), (3, 1)], "chat": [(0, 0), (0, 4), (1, 0)]}
    fig = speculation.steps(answers)
    for axis, accepted, thrown in (("y", (0, 3), (-2, -1)), ("y2", (0, 0, 1), (0, -4, 0))):
        own = one(fig, "the token that comes in any case", axis)
        assert points(own) == [(number, 1) for number in range(1, 1 + len(accepted))] and own.marker.color == DECODE
        assert tuple(one(fig, "accepted drafts", axis).y) == accepted
        assert tuple(one(fig, "drafts thrown away", axis).y) == thrown
    assert one(fig, "accepted drafts").marker.color == GREEN and one(fig, "drafts thrown away").marker.color == WASTE
    assert fig.layout.barmode == "relative"
    assert titles(fig, "xaxis2", "yaxis", "yaxis2") == ["iteration", "tokens", "tokens"]
    assert panel(fig, "yaxis") == "rewrite 5 tokens in 2 iterations, 3 thrown away"
    assert len(legend(fig)) == 3
    assert "chat: 4 tokens in 3 iterations" in speculation.steps_summary(answers)


def test_gains():
    columns = "users workload drafts times"
    rows = table(columns, (1, "edit", 0, 1), (1, "edit", 2, 1.5), (8, "edit", 0, 1), (8, "edit", 2, 0.9))
    fig = speculation.gains(rows)
    assert points(one(fig, "edit")) == [(0, 1), (2, 1.5)] and points(one(fig, "edit", "y2")) == [(0, 1), (2, 0.9)]
    assert (panel(fig, "yaxis"), panel(fig, "yaxis2")) == ("1 user", "8 users")
    assert titles(fig, "xaxis2", "yaxis") == ["tokens proposed at most", "times as fast"] and legend(fig) == ["edit"]
    assert [(shape.type, shape.y1) for shape in fig.layout.shapes] == 2 * [("line", 1)] + 2 * [("rect", 1)]
    said = speculation.gains_summary(rows)
    assert "8 users, edit: 1.00 times as fast with the best length, 0, and 0.90 with 2" in said


def test_turning_point():
    prices = pd.DataFrame({1: [10.0, 20.0], 2: [11.0, 30.0], 3: [12.0, 40.0]}, index=[1, 8])
    picture = speculation.turning_point(prices)
    one_user, eight = (1.8 / 1.1, 2.44 / 1.2), (1.8 / 1.5, 2.44 / 2)
    assert points(one(picture.figure, "this drafter")) == [(0, 1), *enumerate(map(pytest.approx, one_user), 1)]
    picture.controls["guess"].value = 0.5
    assert points(one(picture.figure, "this drafter"))[1:] == [(1, pytest.approx(1.125)), (2, pytest.approx(24.4 / 22))]
    picture.controls["guess"].value, picture.controls["users"].value = 0, 8
    assert points(one(picture.figure, "this drafter"))[1:] == [*enumerate(map(pytest.approx, eight), 1)]
