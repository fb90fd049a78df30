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


@pytest.mark.parametrize(
    ("lengths", "iterations", "tpot_ms"),
    [
        # 501 has two tokens and 502 three; the client sent the longer one first.
        ([3, 2], [(10, [501]), (30, [501, 502]), (60, [502]), (100, [502])], [(100 - 30) / 2, 30 - 10]),
        # Of equal lengths, who came first is first.
        ([2, 2], [(10, [7]), (20, [7, 8]), (50, [8])], [10, 30]),
        # A single token has no time between.
        ([1, 2], [(10, [1, 2]), (30, [2])], [float("nan"), 20]),
    ],
)
def test_the_time_between_tokens_is_the_engines_and_finds_its_request(lengths, iterations, tpot_ms):
    run = Run(pd.DataFrame({"output_len": lengths}), 0.0)
    assert TraceRun(run, log_of(*iterations)).tpot_ms.tolist() == pytest.approx(tpot_ms, nan_ok=True)
