"""Pictures that follow their sliders: what is worked out, what is said of it, and how measured points join it."""

import json
import random

import pandas as pd
import pytest

from inflight.bench import workload
from inflight.checkpoint.sources import fetch
from inflight.checkpoint.weights import GgufFile
from inflight.engine import builder as engine
from inflight.engine.config import BuildConfig
from inflight.engine.folder import read
from inflight.engine.prediction import schedule
from inflight.engine.sizing import Sizing
from inflight.lessons import batchers, batching, kv_cache
from inflight.lessons import engine as engine_lesson
from inflight.notebook.charts.display import PLOTLY_MIME
from inflight.notebook.execution import WIDGET_MIME
from tests.notebook.chart_samples import PROMISED, REPLAYED, SLOTS

LENGTHS = [8] * 12 + [256] + [16] * 6 + [256] + [8] * 4


@pytest.fixture(scope="module")
def sizing():
    return Sizing(GgufFile(fetch().path), read(engine.cached(fetch())).pretrained_config)


def memory(sizing):
    return engine_lesson.memory(sizing, BuildConfig(), 4e9)


def policies():
    choose = random.Random(5)
    lengths = [(choose.choice((45, 70, 130, 190)), choose.choice((40, 70, 110, 170))) for _ in range(16)]
    return kv_cache.policies_on_paper(lengths, BuildConfig(max_input_len=512, max_seq_len=1024))


def replay():
    return kv_cache.replay(REPLAYED, PROMISED, SLOTS)


def delay():
    return batchers.delay(workload.poisson(40, rate=1, seed=0), fixed_ms=40, item_ms=4)


POINTS = {
    "memory": ([{"users": 8, "bytes": 9e8}], {"tokens": 2048, "cache": "INT8"}),
    "slots_on_paper": (
        [{"type": "V1", "iterations": 590}, {"type": "inflight_fused_batching", "iterations": 299}],
        {"requests": len(LENGTHS), "slots": 4, "longest": 256},
    ),
    "policies_on_paper": ([{"policy": "max_utilization", "cache": 1536, "iterations": 314}], {"slots": 8}),
    "delay": (
        pd.DataFrame({"delay_ms": [0, 50], "p50_ms": [67, 94], "p95_ms": [90, 110], "mean_batch": [1.3, 1.8],
                      "busy": [0.83, 0.6]}),
        {"rate": 60, "max_batch_size": 4},
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
        "policies_on_paper": policies,
        "delay": delay,
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

    queue = delay()
    assert "can be served" not in queue.frame.alt
    queue.controls["rate"].value = 150
    assert "At most 111 a second can be served" in queue.frame.alt


def test_the_replay_goes_through_a_run_and_stays_at_its_end():
    explorable = replay()
    slider = explorable.controls["iteration"]
    assert slider.max == max(map(len, REPLAYED.values()))
    seen = set()
    for iteration in (1, 50, slider.max):
        slider.value = iteration
        seen.add(explorable.picture.value)
        assert f"at iteration {slider.value}" in explorable.frame.alt
    assert len(seen) == 3 and "all answers are complete" in explorable.frame.alt
    log = REPLAYED["guaranteed_no_evict, 1,280 tokens"].iloc[49]
    slider.value = 50
    assert f"{log['kv_blocks_used']} of 40 blocks held" in explorable.frame.alt
    held = [bar for bar in explorable.frame.figure.data if bar.type == "bar" and bar.legendgroup == "blocks held"]
    assert sum(sum(bar.x) for bar in held) >= log["kv_blocks_used"]


def test_the_end_of_answers_moves_the_policies_apart():
    explorable = policies()
    whole = explorable.frame.alt
    explorable.controls["used"].value = 0.2
    assert explorable.frame.alt != whole and "pauses" not in explorable.frame.alt
