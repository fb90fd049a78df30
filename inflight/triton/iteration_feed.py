"""Writes an iteration log in the course's form for an engine that writes none, from what else it tells.

TensorRT-LLM tells of its iterations in the metrics, which show the latest every `stats_check_period_ms`. The feed reads
them and appends to the file that the model's `iteration_log_path` names. So whoever reads that file reads the same
columns, wherever the engine runs.

What the engine does not tell is left blank: who was in an iteration, and how many it completed. Two columns mean
something else there: `paused` counts the requests that were paused in that iteration, and `waiting` those that have a
seat and cannot run, not those in the queue before the seats.
"""

from __future__ import annotations

import dataclasses
import json
import math
import threading
import time
from pathlib import Path

from inflight.engine.config import IterationStats
from inflight.errors import CourseError
from inflight.triton import telemetry

STAND_IN = "iterations are told from its metrics (those between two looks as the latest), and seats from your own clock"
LOOK_EVERY_S = 0.05
PATIENCE_S = 5.0  # for figures that lag behind
SETTLED_S = 0.5  # the figures stand still this long when nothing runs
MOST_FILLED = 2000  # iterations between two looks


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


def filled(before: IterationStats, now: IterationStats, since: float) -> list[IterationStats]:
    """The iterations after `before` up to `now`: those between two looks are taken for as `now`, and as long.

    Parameters
    ----------
    since : float
        When the earlier look was, in seconds since 1970: what was before it cannot have been in between.
    """
    number = min(now.iteration - before.iteration, MOST_FILLED)
    if number <= 0:
        return []
    step = max(0.0, now.timestamp - max(before.timestamp, since)) / number
    return [
        dataclasses.replace(
            now,
            iteration=now.iteration - left,
            timestamp=now.timestamp - left * step,
            iteration_ms=step * 1000,
        )
        for left in reversed(range(number))
    ]


# Feeds ----------------------------------------------------------------------------------------------------------------


class Feed:
    """Appends what `_look` finds to an iteration log, from a thread of its own. A context manager."""

    def __init__(self, log_path: Path):
        self._path = log_path
        self._is_over = threading.Event()
        self._looked = threading.Condition()
        self._grown_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="iteration-feed", daemon=True)

    def _look(self) -> list[IterationStats]:
        """The iterations since the last look."""
        raise NotImplementedError

    def _work(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            rows = self._look()
            with self._looked:
                if rows:
                    self._write(rows)
                    self._grown_at = time.monotonic()
                self._looked.notify_all()

    def _write(self, rows: list[IterationStats]) -> None:
        text = "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows)
        try:
            with open(self._path, "a", encoding="utf-8") as log:
                log.write(text)
        except OSError:  # the folder has gone with its notebook
            self._is_over.set()

    def catch_up(self) -> None:
        """Wait until nothing is added any more: the figures of what has been answered are in the log then."""
        deadline = time.monotonic() + PATIENCE_S
        with self._looked:
            self._grown_at = time.monotonic()
            self._looked.wait_for(
                lambda: (
                    self._is_over.is_set()
                    or time.monotonic() - self._grown_at > SETTLED_S
                    or time.monotonic() > deadline
                ),
                PATIENCE_S,
            )

    def __enter__(self):
        self._path.touch()
        telemetry.LATE[self._path] = self.catch_up
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        telemetry.LATE.pop(self._path, None)
        self._is_over.set()
        self._thread.join(PATIENCE_S)


class MetricsFeed(Feed):
    """From the metrics of a server."""

    def __init__(self, metrics_url: str, log_path: Path):
        super().__init__(log_path)
        self._url = metrics_url
        self._before: IterationStats | None = None
        self._looked_at = time.time()

    def __enter__(self):
        self._look()  # iterations are counted from here on, also one that runs before the thread does
        return super().__enter__()

    def _look(self) -> list[IterationStats]:
        try:
            now = from_metrics(telemetry.page(self._url))
        except CourseError:  # the server restarts, or has no metrics: there is nothing to tell
            return []
        before, since = self._before, self._looked_at
        if now is None:
            return []
        self._before = now
        if before is None:  # the first look
            return []
        if now.iteration < before.iteration:  # the model was loaded again, and counts from 0
            before = dataclasses.replace(before, iteration=0)
        rows = filled(before, now, since)
        if rows or now.active == 0:
            self._looked_at = time.time()
        return rows
