"""Shared by dashboards and editors: runs on one server, each compared with the one before; an edit that is loaded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from inflight.bench import trace_run
from inflight.bench.load import NO_RUN
from inflight.bench.trace_run import TraceRun
from inflight.bench.workload import TimedRequest
from inflight.engine.messages import IterationStats
from inflight.errors import CourseError
from inflight.triton import repository
from inflight.triton.client.client import Client
from inflight.triton.serving.server import Server

NO_ITERATION = pd.DataFrame(columns=[field.name for field in dataclasses.fields(IterationStats)])
NOTHING_YET = TraceRun(NO_RUN, NO_ITERATION)


class Runs:
    """Runs one after the other on one server, each with other parameters; the one before stays to compare with."""

    def __init__(self, log_path: str | Path):
        self._log_path, self._before = log_path, dict[str, TraceRun]()

    def next(
        self, server: Server, title: str, requests: list[TimedRequest], **parameters
    ) -> Iterator[dict[str, TraceRun]]:
        """Edit the engine's config, load it again, send `requests`; yield the runs so far, by their title."""
        before = {f"before: {name}": run for name, run in self._before.items()}
        yield {**before, title: NOTHING_YET}
        edit_and_load(server, "tensorrt_llm", **parameters)
        with Client(server.grpc_url) as client:
            for so_far in trace_run.follow(client, requests, self._log_path):
                yield {**before, title: so_far}
        self._before = {title: so_far}


def edit_and_load(server: Server, model: str, **values) -> None:
    """Change a model's config and load it; the file is as it was where Triton refuses it."""
    path = server.repo / model / repository.CONFIG
    before = repository.read_config(path)
    repository.edit(server.repo, model, **values)
    try:
        server.load(model)
    except CourseError:
        repository.write_config(before, path)
        raise
