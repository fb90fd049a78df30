"""Iterations of an engine that writes no log of ours, from Triton's verbose log and from its metrics."""

import dataclasses
import json

import pytest

from inflight.triton import iteration_feed, telemetry
from inflight.triton.iteration_feed import VerboseLogFeed, filled, from_log_line, from_metrics

TOLD = {
    "Active Request Count": 6, "Iteration Counter": 41, "Max Request Count": 8, "Runtime CPU Memory Usage": 0,
    "Runtime GPU Memory Usage": 12, "Runtime Pinned Memory Usage": 0, "Timestamp": "04-23-2025 10:20:30.250000",
    "Context Requests": 1, "Generation Requests": 4, "MicroBatch ID": 0, "Paused Requests": 0,
    "Scheduled Requests": 5, "Total Context Tokens": 17, "Waiting Requests": 1, "Free KV cache blocks": 90,
    "Max KV cache blocks": 100, "Tokens per KV cache block": 32, "Used KV cache blocks": 10,
    "Reused KV cache blocks": 2, "Fraction used KV cache blocks": 0.1,
}  # fmt: skip


def line(**changed):
    return f'I0423 10:20:30.250100 99 model_instance_state.cc:1033] "{json.dumps(TOLD | changed)}"'


def test_a_line_of_the_verbose_log_is_an_iteration():
    told = from_log_line(line())
    assert (told.iteration, told.active, told.scheduled, told.waiting, told.paused) == (41, 6, 5, 1, 0)
    assert (told.context_tokens, told.generation_tokens, told.empty_seats) == (17, 4, 3)
    assert (told.kv_blocks_used, told.kv_blocks_free, told.kv_blocks_max) == (10, 90, 100)
    assert (told.kv_blocks_reused, told.tokens_per_block, told.requests) == (2, 32, [])
    assert told.timestamp == 1745403630.25


@pytest.mark.parametrize(
    "other",
    [
        "", "I0423 server.cc:1] ready", line(Timestamp="yesterday"), line()[:-40], '"Iteration Counter" } {',
        line(Timestamp=None), line(**{"Active Request Count": "many"}), '{"Iteration Counter": []}',
    ],
)  # fmt: skip
def test_what_is_no_such_line_is_none(other):
    assert from_log_line(other) is None


def test_v1_tells_of_a_batch_and_its_tokens():
    told = dict(TOLD)
    for name in ("Generation Requests", "Paused Requests", "MicroBatch ID"):
        del told[name]
    told |= {"Total Generation Tokens": 96, "Empty Generation Slots": 12}
    assert from_log_line(json.dumps(told)).generation_tokens == 96


def test_the_time_of_an_iteration_is_that_since_the_one_before(tmp_path):
    source, target = tmp_path / "triton.log", tmp_path / "iterations.jsonl"
    source.write_text("I0423 start\n")
    with VerboseLogFeed(source, target) as feed:
        with open(source, "a") as log:
            log.write(line() + "\n" + "noise\n")
            log.flush()
            log.write(line(**{"Iteration Counter": 42, "Timestamp": "04-23-2025 10:20:30.275000"})[:-30])
            log.flush()
            log.write(line(**{"Iteration Counter": 42, "Timestamp": "04-23-2025 10:20:30.275000"})[-30:] + "\n")
            log.write(line(**{"Iteration Counter": 43, "Timestamp": "04-23-2025 10:21:30.275000"}) + "\n")
        feed.catch_up()
    log = telemetry.iterations(target)
    assert log["iteration"].tolist() == [41, 42, 43]
    assert log["iteration_ms"].round(3).tolist() == [0, 25, 0]  # nothing ran for a minute


def sample(family, label, value, number):
    return f'nv_trt_llm_{family}{{model="tensorrt_llm",{label}="{value}",version="1"}} {number}\n'


PAGE = "".join(
    [
        sample("request_metrics", "request_type", "active", 3),
        sample("request_metrics", "request_type", "scheduled", 2),
        sample("request_metrics", "request_type", "max", 4),
        sample("kv_cache_block_metrics", "kv_cache_block_type", "max", 50),
        sample("kv_cache_block_metrics", "kv_cache_block_type", "used", 20),
        sample("inflight_batcher_metrics", "inflight_batcher_specific_metric", "generation_requests", 2),
        sample("inflight_batcher_metrics", "inflight_batcher_specific_metric", "paused_requests", 1),
        sample("general_metrics", "general_type", "timestamp", 1745403630250000),
        sample("general_metrics", "general_type", "iteration_counter", 7),
    ]
)


def test_a_page_of_metrics_is_the_latest_iteration():
    told = from_metrics(PAGE)
    assert (told.iteration, told.active, told.scheduled, told.waiting, told.paused) == (7, 3, 2, 1, 1)
    assert (told.empty_seats, told.kv_blocks_used, told.generation_tokens) == (2, 20, 2)
    assert told.timestamp == 1745403630.25


def test_a_page_without_an_engine_tells_of_none():
    assert from_metrics("nv_gpu_utilization 0\n") is None
    assert from_metrics("") is None


def test_iterations_between_two_looks_are_taken_for_the_latest():
    before = from_metrics(PAGE)
    now = dataclasses.replace(before, iteration=10, timestamp=before.timestamp + 0.3)
    rows = filled(before, now, since=0)
    assert [row.iteration for row in rows] == [8, 9, 10]
    assert [round(row.iteration_ms) for row in rows] == [100, 100, 100]
    assert rows[-1].timestamp == now.timestamp and rows[0].timestamp == pytest.approx(now.timestamp - 0.2)
    assert filled(before, before, since=0) == []
    late = filled(before, now, since=now.timestamp - 0.03)  # nothing ran until a moment ago
    assert [round(row.iteration_ms) for row in late] == [10, 10, 10]
    assert len(filled(before, dataclasses.replace(now, iteration=10**9), since=0)) == iteration_feed.MOST_FILLED


def test_a_log_whose_folder_has_gone_ends_the_feed_quietly(tmp_path):
    source, folder = tmp_path / "triton.log", tmp_path / "gone"
    folder.mkdir()
    with VerboseLogFeed(source, folder / "iterations.jsonl") as feed:
        (folder / "iterations.jsonl").unlink()
        folder.rmdir()
        source.write_text(line() + "\n")
        feed.catch_up()
    assert not folder.exists()
