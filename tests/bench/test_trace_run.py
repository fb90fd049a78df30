"""What a run of a trace tells, worked out from an iteration log that is known."""

import pandas as pd
import pytest

from inflight.bench.load import Run
from inflight.bench.trace_run import TraceRun


def log_of(*iterations):
    """A log of iterations of 10 ms that end at the given times (ms), with the ids that each computes."""
    rows = [
        {
            "iteration": number,
            "timestamp": (ends_ms - 10) / 1000,
            "iteration_ms": 10.0,
            "requests": [[request, 0, 1, 1] for request in ids],
            "paused_ids": [],
        }
        for number, (ends_ms, ids) in enumerate(iterations, 1)
    ]
    return pd.DataFrame(rows)


def test_the_time_between_tokens_is_the_engines_and_finds_its_request():
    # 501 has two tokens and 502 three; the client sent the longer one first.
    log = log_of((10, [501]), (30, [501, 502]), (60, [502]), (100, [502]))
    requests = pd.DataFrame({"output_len": [3, 2]})
    itl_ms = TraceRun(Run(requests, 0.0), log).itl_ms
    assert itl_ms.tolist() == pytest.approx([(100 - 30) / 2, 30 - 10])


def test_of_equal_lengths_who_came_first_is_first():
    log = log_of((10, [7]), (20, [7, 8]), (50, [8]))
    itl_ms = TraceRun(Run(pd.DataFrame({"output_len": [2, 2]}), 0.0), log).itl_ms
    assert itl_ms.tolist() == pytest.approx([10, 30])


def test_a_single_token_has_no_time_between():
    itl_ms = TraceRun(Run(pd.DataFrame({"output_len": [1, 2]}), 0.0), log_of((10, [1, 2]), (30, [2]))).itl_ms
    assert itl_ms.isna().tolist() == [True, False]
