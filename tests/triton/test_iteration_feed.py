"""Iterations of an engine that writes no log of ours, from its metrics."""

import dataclasses
import json
import threading

from inflight.triton import iteration_feed, telemetry
from inflight.triton.iteration_feed import MetricsFeed, from_metrics


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


def test_each_look_that_shows_another_iteration_is_a_row(tmp_path, monkeypatch):
    now, seen = from_metrics(PAGE), threading.Event()
    shown = iter([now, now, dataclasses.replace(now, iteration=9), dataclasses.replace(now, iteration=9)])
    monkeypatch.setattr(telemetry, "page", lambda url: "")

    def look(page):
        row = next(shown, None)
        if row is None:
            seen.set()
        return row

    monkeypatch.setattr(iteration_feed, "from_metrics", look)
    with MetricsFeed("http://127.0.0.1:9/metrics", tmp_path / "log.jsonl"):
        assert seen.wait(60)
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [9]  # what was there before is not told
