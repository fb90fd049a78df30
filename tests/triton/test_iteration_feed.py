"""Iterations of an engine that writes no log of ours, from its metrics."""

import dataclasses

import pytest

from inflight.triton import iteration_feed
from inflight.triton.iteration_feed import filled, from_metrics


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
