"""Prometheus text and iteration logs become tables; what is neither is refused in one sentence."""

import dataclasses
import json
from types import SimpleNamespace

import pandas as pd
import pytest

from inflight.engine.messages import IterationStats
from inflight.errors import CourseError
from inflight.triton import telemetry
from inflight.triton.telemetry import COLUMNS, Statistics, iterations, metrics, read_log, shares, slots, wait_for

PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 3
nv_inference_request_success{model="tensorrt_llm",version="1"} 5
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 2
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 0
# HELP nv_cpu_utilization CPU utilization rate [0.0 - 1.0]
# TYPE nv_cpu_utilization gauge
nv_cpu_utilization 0.5
"""

ITERATION = IterationStats(
    iteration=1,
    timestamp=1e9,
    iteration_ms=9.5,
    active=2,
    scheduled=1,
    waiting=1,
    paused=0,
    context_tokens=30,
    generation_tokens=0,
    kv_blocks_used=1,
    kv_blocks_free=7,
    kv_blocks_max=8,
    kv_blocks_reused=0,
    tokens_per_block=32,
    finished=0,
    empty_slots=7,
    requests=[[1, 30, 0, 1]],
    paused_ids=[],
)


def log_line(**changes) -> str:
    return json.dumps(dataclasses.asdict(dataclasses.replace(ITERATION, **changes))) + "\n"


def test_each_sample_is_a_row_with_its_model_its_own_label_and_its_kind():
    table = metrics(PAGE)
    assert list(table.columns) == COLUMNS
    assert table.values.tolist() == [
        ["nv_inference_request_success", "ensemble", "", 3.0, "counter"],
        ["nv_inference_request_success", "tensorrt_llm", "", 5.0, "counter"],
        ["nv_trt_llm_request_metrics", "tensorrt_llm", "active", 2.0, "gauge"],
        ["nv_trt_llm_request_metrics", "tensorrt_llm", "waiting", 0.0, "gauge"],
        ["nv_cpu_utilization", "", "", 0.5, "gauge"],
    ]


@pytest.mark.parametrize("text", ["<html>not found</html>", 'nv_x{model="a"} many\n'])
def test_what_is_not_a_metrics_page_is_refused(text):
    with pytest.raises(CourseError, match="not a metrics page.*metrics_url"):
        metrics(text)


def test_the_log_has_a_row_an_iteration_and_the_fields_of_the_executor(tmp_path):
    (tmp_path / "log").write_text(log_line() + log_line(iteration=2, context_tokens=0, generation_tokens=1))
    table = iterations(tmp_path / "log")
    assert list(table.columns) == [field.name for field in dataclasses.fields(IterationStats)]
    assert table["iteration"].tolist() == [1, 2]
    assert table["requests"].tolist()[0] == [[1, 30, 0, 1]]
    assert table["context_tokens"].sum() + table["generation_tokens"].sum() == 31


def test_a_missing_log_is_refused_and_a_wrong_line_named_as_an_editor_counts_it(tmp_path):
    log = tmp_path / "log"
    with pytest.raises(CourseError, match="No such file.*iteration_log_path"):
        iterations(log)
    log.write_text('{"n": 1}\n{"n": 2}\n')
    start = log.stat().st_size
    log.write_text(log.read_text() + '{"n": 3}\n[4]\n{"n"')
    with pytest.raises(
        CourseError, match=r"log, line 4 is not a line of an execution log: .* execution_log_path names"
    ):
        read_log(log, "execution", ["n"], start)
    log.write_bytes(log.read_bytes().replace(b"[4]\n", b"") + "é".encode()[:1])  # half a character
    assert read_log(log, "execution", ["n"], start)["n"].tolist() == [3]


def test_a_slot_is_kept_to_the_last_token_and_given_up_in_a_pause(tmp_path):
    first, second, third = [1, 30, 0, 1], [2, 20, 0, 1], [3, 10, 0, 1]
    rows = [
        ([first, second], []),
        ([[1, 0, 1, 1]], []),
        ([[1, 0, 1, 1], [2, 0, 1, 1]], []),
        ([[1, 0, 1, 1]], [2]),
        ([[1, 0, 1, 1], third], [2]),
        ([[3, 0, 1, 1], [2, 22, 0, 1]], []),
    ]
    log = tmp_path / "log"
    log.write_text(
        "".join(
            log_line(iteration=number, requests=requests, paused_ids=paused)
            for number, (requests, paused) in enumerate(rows, 1)
        )
    )
    assert slots(iterations(log)).values.tolist() == [
        [1, 1, 1, 5, 1],
        [2, 2, 1, 3, 1],
        [3, 2, 5, 6, 5],
        [2, 1, 6, 6, 6],
    ]
    table = shares(iterations(log))
    assert table[table["request"] == 2].values.tolist() == [[1, 2, 20, 0, 1], [3, 2, 0, 1, 1], [6, 2, 22, 0, 1]]


@pytest.fixture
def clock(monkeypatch):
    """The module's clock, which only its own sleep and what is read move on."""
    clock = SimpleNamespace(now_s=0.0, monotonic=lambda: clock.now_s)
    clock.sleep = lambda seconds: setattr(clock, "now_s", clock.now_s + seconds)
    monkeypatch.setattr(telemetry, "time", clock)
    return clock


@pytest.mark.parametrize("within_s", [None, 3])
def test_figures_are_waited_for_and_no_longer_than_was_said(clock, within_s):
    late_s = within_s or telemetry.METRICS_LAG_S
    assert wait_for(lambda: clock.now_s, lambda now_s: now_s > late_s - 1, "Too late.", within_s) < late_s
    with pytest.raises(CourseError, match="Too late."):
        wait_for(lambda: clock.now_s, lambda now_s: now_s > 3 * late_s, "Too late.", within_s)
    assert clock.now_s == pytest.approx(2 * late_s - 1, abs=0.1)


@pytest.mark.parametrize(("look_s", "settles_at_s"), [(0.0, 2.5), (1.0, 12.2)])  # half a second; ten looks
def test_figures_that_stay_as_they_are_have_settled(clock, look_s, settles_at_s):
    def figures():
        clock.now_s += look_s
        return min(clock.now_s, 2.0)  # they change until then

    assert telemetry.settled(figures) == 2.0
    assert clock.now_s == pytest.approx(settles_at_s, abs=0.1)
    with pytest.raises(CourseError, match="keep changing"):
        telemetry.settled(lambda: clock.sleep(0.1) or clock.now_s)


def test_counts_of_a_model_are_those_of_the_time_between():
    before, after = (
        Statistics(*counts, pd.Series(batches, dtype=int))
        for counts, batches in (((3, 2, 2, 1), {1: 1, 2: 1}), ((11, 4, 5, 3), {1: 1, 2: 2, 6: 1}))
    )
    since = after - before
    assert (since.inferences, since.executions, since.succeeded, since.failed) == (8, 2, 3, 2)
    assert since.batches.to_dict() == {2: 1, 6: 1}
