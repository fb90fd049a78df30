"""Lesson 06's pictures and its dashboard."""

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from inflight import CourseError
from inflight.lessons import batchers
from inflight.lessons.batchers import batch_run
from inflight.lessons.batchers import dashboard as boards
from inflight.lessons.batchers.batch_run import Outcome
from inflight.notebook.charts import display
from inflight.notebook.charts.display import in_course_look
from inflight.notebook.palette import DECODE, WASTE
from inflight.triton import repository
from inflight.triton.server import Server
from inflight.triton.telemetry import Statistics

NO_STATISTICS = Statistics(0, 0, 0, 0, pd.Series(dtype=int))


def outcome(batches, requests=4, rejected=(), urgent=()):
    """Requests that come every 10 ms; a batch is (instance, start_s, end_s, its requests)."""
    table = pd.DataFrame(
        [(number, *batch[:3], len(batch[3]), len(batch[3]), batch[3]) for number, batch in enumerate(batches, 1)],
        columns=["execution", "instance", "start_s", "end_s", "size", "work", "requests"],
    )
    home = {request: row for row in table.itertuples() for request in row.requests}
    rows = [
        {
            "request": number,
            "sent_s": 0.01 * number,
            "priority": int(number in urgent),
            "answered_s": home[number].end_s + 0.001 if number in home else 0.01 * number + 0.02,
            "outcome": "rejected" if number in rejected else "answered",
            "execution": home[number].execution if number in home else None,
        }
        for number in range(1, requests + 1)
    ]
    frame = pd.DataFrame(rows).astype({"execution": "Int64"})
    frame["latency_ms"] = (frame["answered_s"] - frame["sent_s"]) * 1000
    return Outcome(frame, table, NO_STATISTICS)


TOGETHER = outcome([(0, 0.01, 0.05, [1]), (0, 0.05, 0.1, [2, 3, 4])])
TWO_COPIES = outcome([(0, 0.05, 0.09, [1, 3]), (1, 0.06, 0.1, [2])], rejected=(4,), urgent=(3,))


def drawn(fig):
    """What plotly.js is given to draw: everything in it has to fit into JSON."""
    return json.dumps(in_course_look(fig))


def traces(fig, **look):
    return [trace for trace in fig.data if look.items() <= trace.to_plotly_json().items()]


def corners(fig, name="batch"):
    """Left, right, top and bottom of each box above the lanes."""
    boxes = [trace for trace in traces(fig, type="bar") if trace.text is None and trace.name.startswith(name)]
    return [
        (base, base + x, y - width / 2, y + width / 2)
        for trace in boxes
        for base, x, y, width in zip(trace.base, trace.x, trace.y, np.broadcast_to(trace.width, len(trace.x)))
    ]


# Batches --------------------------------------------------------------------------------------------------------------


def test_a_box_goes_around_the_requests_of_a_batch_from_its_start_to_its_end():
    assert corners(batchers.batches({"one": TOGETHER})) == [(10, 50, 0.55, 1.45), (50, 100, 1.55, 4.45)]


def test_a_batch_whose_requests_are_not_neighbours_has_several_boxes():
    assert sorted(corners(batchers.batches({"one": TWO_COPIES}))) == [
        (50, 90, 0.55, 1.45),
        (50, 90, 2.55, 3.45),
        (60, 100, 1.55, 2.45),
    ]


def test_waiting_is_grey_from_arrival_to_the_box_or_to_the_refusal():
    fig = batchers.batches({"one": TWO_COPIES})
    assert corners(fig, "waits") == [(10, 50, 0.5, 1.5), (20, 60, 1.5, 2.5), (30, 50, 2.5, 3.5), (40, 60, 3.5, 4.5)]
    assert {trace.marker.color for trace in traces(fig, name="waits")} == {WASTE}


def test_who_does_not_wait_has_no_grey():
    assert [top for *_, top, _ in corners(batchers.batches({"one": TOGETHER}), "waits")] == [1.5, 2.5, 3.5]


def test_an_answer_that_is_held_back_is_dotted():
    late = outcome([(0, 0.01, 0.05, [1]), (1, 0.02, 0.03, [2])], requests=2)
    late.requests["answered_s"] = [0.051, 0.052]
    [dots] = [trace for trace in traces(batchers.batches({"one": late}), mode="lines") if trace.line.dash == "dot"]
    assert list(dots.x) == [30, 52, None] and list(dots.y) == [2, 2, None]


def test_each_instance_has_a_lane_and_each_batch_its_size_in_it():
    fig = batchers.batches({"one": TWO_COPIES})
    lanes = [trace for trace in traces(fig, type="bar") if trace.text]
    assert [list(lane.text) for lane in lanes] == [["2"], ["1"]]
    assert lanes[0].marker.color == DECODE != lanes[1].marker.color
    assert list(fig.layout.yaxis2.ticktext) == ["model 0", "model 1"]


def test_the_legend_names_only_what_is_there():
    def legend(run):
        return [trace.name for trace in batchers.batches({"one": run}).data if trace.showlegend]

    assert legend(TWO_COPIES) == ["waits", "batch", "batch of model 1", "arrives", "urgent", "rejected"]
    assert legend(TOGETHER) == ["waits", "batch", "arrives"]


def test_on_a_phone_the_legend_has_two_entries_a_row():
    requests = TOGETHER.requests.assign(answered_s=TOGETHER.requests["answered_s"] + 0.1)
    names = [trace.name for trace in batchers.batches({"one": replace(TOGETHER, requests=requests)}).data]
    widest = max(names, key=len)
    assert "held back" in names
    assert display.LEGEND_MARK_PX + display.CHARACTER_EM * display.LEGEND_SIZE * len(widest) < display.LEGEND_PX / 2


def test_runs_of_batches_share_one_scale_and_have_words():
    runs = {"first": TOGETHER, "second": TWO_COPIES}
    layout = batchers.batches(runs).layout
    assert layout.xaxis.range == layout.xaxis2.range == layout.xaxis3.range == layout.xaxis4.range
    words = batchers.batches_summary(runs)
    assert "first: 4 requests in 2 batches" in words and "sizes 1, 3" in words
    assert "second: 3 requests in 2 batches, 1 rejected" in words
    assert len(drawn(batchers.batches(runs))) < 20_000


def test_a_run_in_which_nobody_was_answered_can_be_drawn():
    run = outcome([], requests=2, rejected=(1, 2))
    assert "0 requests in 0 batches, 2 rejected" in batchers.batches_summary({"none": run})
    assert drawn(batchers.batches({"none": run}))


# The dashboard --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log_path(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "executions.jsonl"


@pytest.fixture(scope="module")
def server(log_path, tmp_path_factory):
    repo = repository.assemble(
        tmp_path_factory.mktemp("board") / "repo", models=("batch-cost",), execution_log_path=log_path
    )
    with Server(repo) as server:
        yield server


@pytest.mark.server
def test_the_board_edits_the_config_draws_and_keeps_the_run_before(server, log_path):
    board = batchers.board(server, log_path)
    board.controls["arrivals"].value = "all at once"
    assert re.search(r"now: no batcher: 20 requests in 20 batches", board.run().alt)
    board.controls["dynamic_batching.max_queue_delay_microseconds"].value = "30000"
    alt = board.run().alt
    assert "before: no batcher: 20 requests in 20 batches" in alt
    assert re.search(r"now: at most 8, delay 30000 µs: 20 requests in [34] batches", alt)
    assert sum(board.frame.sizes) == 20
    assert "now: at most 8, delay 30000 µs: 20" in board.run().alt, "the batcher is still there"
    board.controls["dynamic_batching.max_queue_delay_microseconds"].value = ""
    assert "now: at most 8: 20 requests in" in board.run().alt, "the delay goes, and the batcher stays"
    repository.edit(server.repo, "batch-cost", dynamic_batching=False)


def test_the_batcher_and_its_fields_say_the_same():
    fields = {name: boards._field(name, "") for name in boards.BATCHER_FIELDS}
    boards._in_step(fields)
    delay = fields["dynamic_batching.max_queue_delay_microseconds"]
    delay.value = "30000"
    assert fields["dynamic_batching"].value == "true"
    delay.value = ""
    assert fields["dynamic_batching"].value == "true", "a batcher needs no field"
    delay.value, fields["dynamic_batching"].value = "500", ""
    assert delay.value == "" and fields["max_batch_size"].value == ""


@pytest.mark.server
def test_a_value_that_triton_refuses_is_told_and_the_file_is_as_it_was(server, log_path):
    board, config = batchers.board(server, log_path), server.repo / "batch-cost" / "config.pbtxt"
    before = config.read_text()
    board.controls["dynamic_batching.preferred_batch_size"].value = "99"
    with pytest.raises(CourseError, match="preferred size"):
        board.run()
    assert "<b>Failed.</b>" in board.status.value and config.read_text() == before


@pytest.mark.server
@pytest.mark.parametrize("arrivals", [name for name in boards.ARRIVALS if name != "all at once"])
def test_every_choice_of_arrivals_is_answered(server, log_path, arrivals):
    repository.edit(server.repo, "batch-cost", "dynamic_batching { }")
    board = batchers.board(server, log_path)
    board.controls["arrivals"].value = arrivals
    assert f"{len(boards.ARRIVALS[arrivals])} requests in" in board.run().alt
    assert batch_run.QUEUE_FULL not in board.status.value
