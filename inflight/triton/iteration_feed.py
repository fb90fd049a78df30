"""Writes an iteration log in the course's form for an engine that writes none, from what else it tells.

TensorRT-LLM tells of its iterations in the metrics, which show the latest every `stats_check_period_ms`. The feed looks
at them and appends the one that it finds to the file that the model's `iteration_log_path` names: one row a look, and
none for what was in between. So whoever reads that file reads the same columns, wherever the engine runs.

What the engine does not tell is left blank: who was in an iteration, and how many it completed. Two columns mean
something else there: `paused` counts the requests that were paused in that iteration, and `waiting` those that have a
seat and cannot run, not those in the queue before the seats.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading
import time
from pathlib import Path

from inflight.engine.config import IterationStats
from inflight.errors import CourseError
from inflight.triton import telemetry

STAND_IN = "of its iterations those are told that its metrics show, one a look, and seats from your own clock"
LOOK_EVERY_S = 0.05
PATIENCE_S = 5.0  # for figures that lag behind
SETTLED_S = 0.5  # the figures stand still this long when nothing runs


# From the metrics -----------------------------------------------------------------------------------------------------


def from_metrics(page: str) -> IterationStats | None:
    """What a page of metrics tells of the latest iteration; None when it tells of no engine."""
    found = telemetry.metrics(page)
    found = found[found["name"].str.startswith("nv_trt_llm_")]
    values = {(row.name, row.label): row.value for row in found.itertuples(index=False)}

    def number(family: str, label: str) -> int:
        value = values.get((f"nv_trt_llm_{family}", label), 0)
        return int(value) if math.isfinite(value) else 0

    if ("nv_trt_llm_general_metrics", "iteration_counter") not in values:
        return None
    in_flight = ("nv_trt_llm_inflight_batcher_metrics", "generation_requests") in values
    family = "inflight_batcher_metrics" if in_flight else "v1_metrics"
    active, scheduled = number("request_metrics", "active"), number("request_metrics", "scheduled")
    return _stats(
        iteration=number("general_metrics", "iteration_counter"),
        timestamp=number("general_metrics", "timestamp") / 1e6,
        active=active,
        scheduled=scheduled,
        most=number("request_metrics", "max"),
        waiting=max(0, active - scheduled),
        paused=number(family, "paused_requests"),
        context_tokens=number(family, "total_context_tokens"),
        generation_tokens=number(family, "generation_requests" if in_flight else "total_generation_tokens"),
        used=number("kv_cache_block_metrics", "used"),
        free=number("kv_cache_block_metrics", "free"),
        blocks=number("kv_cache_block_metrics", "max"),
        reused=number("kv_cache_block_metrics", "reused"),
        tokens_per_block=number("kv_cache_block_metrics", "tokens_per"),
    )


def _stats(
    *, most: int, used: int, free: int, blocks: int, reused: int, scheduled: int, **values: int | float
) -> IterationStats:
    return IterationStats(
        **values,  # type: ignore[arg-type]
        scheduled=scheduled,
        iteration_ms=0.0,
        kv_blocks_used=used,
        kv_blocks_free=free,
        kv_blocks_max=blocks,
        kv_blocks_reused=reused,
        finished=0,
        empty_seats=max(0, most - scheduled),
        requests=[],
        paused_ids=[],
    )


class MetricsFeed:
    """Appends a row to an iteration log whenever the metrics show another iteration. A context manager."""

    def __init__(self, metrics_url: str, log_path: Path):
        self._url, self._path = metrics_url, log_path
        self._last = -1  # iteration that is written
        self._is_over = threading.Event()
        self._looked = threading.Condition()
        self._grown_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="iteration-feed", daemon=True)

    def _work(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            with contextlib.suppress(CourseError):  # the server restarts, or has no metrics: there is nothing to tell
                self._note(from_metrics(telemetry.page(self._url)))
            with self._looked:
                self._looked.notify_all()

    def _note(self, row: IterationStats | None) -> None:
        if row is None or row.iteration == self._last:
            return
        self._last, self._grown_at = row.iteration, time.monotonic()
        try:
            with open(self._path, "a", encoding="utf-8") as log:
                log.write(json.dumps(dataclasses.asdict(row)) + "\n")
        except OSError:  # the folder has gone with its notebook
            self._is_over.set()

    def catch_up(self) -> None:
        """Wait until nothing is added any more: the figures of what has been answered are in the log then."""
        with self._looked:
            self._grown_at = time.monotonic()
            self._looked.wait_for(
                lambda: self._is_over.is_set() or time.monotonic() - self._grown_at > SETTLED_S, PATIENCE_S
            )

    def __enter__(self) -> MetricsFeed:
        self._path.touch()
        with contextlib.suppress(CourseError):  # what was before is not told
            now = from_metrics(telemetry.page(self._url))
            self._last = -1 if now is None else now.iteration
        telemetry.LATE[self._path] = self.catch_up
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        telemetry.LATE.pop(self._path, None)
        self._is_over.set()
        self._thread.join(PATIENCE_S)
