"""Figures and files of a benchmark, from rows made by hand."""

import pandas as pd
import pytest

from inflight.bench import report
from inflight.bench.load import COLUMNS, Run
from inflight.errors import CourseError

# Three streamed requests of 10, 20 and 30 tokens in two seconds, a whole answer, and one that failed.
NAN = float("nan")
ROWS = pd.DataFrame(
    [
        # request, sent, first, last, input, output, most, ttft, tpot, latency, error
        (0, 0.0, 0.1, 1.0, 5, 10, 10, 100.0, 100.0, 1000.0, ""),
        (1, 0.0, 0.2, 2.1, 7, 20, 20, 200.0, 100.0, 2100.0, ""),
        (2, 0.5, 0.8, 2.25, 9, 30, 30, 300.0, 50.0, 1750.0, ""),
        (3, 1.0, NAN, 2.5, 11, 4, 4, NAN, NAN, 1500.0, ""),
        (4, 1.5, NAN, 9.0, 13, 0, 4, NAN, NAN, NAN, 'no, "never"'),
    ],
    columns=[name for name in COLUMNS if name not in ("due_s", "request_id")],
).reindex(columns=COLUMNS)
STARTED_AT = 1_700_000_000.0


@pytest.fixture
def run():
    return Run(ROWS, STARTED_AT)


# Figures --------------------------------------------------------------------------------------------------------------


def test_figures_by_hand(run):
    figures = report.summary(run)
    assert (figures["requests"], figures["errors"]) == (4, 1)
    assert figures["total_latency_ms"] == pytest.approx(2500)  # the failed request does not count
    assert figures["requests_per_s"] == pytest.approx(4 / 2.5)
    assert figures["tokens_per_s"] == pytest.approx(64 / 2.5)
    assert figures["in_flight_mean"] == pytest.approx((1.0 + 2.1 + 1.75 + 1.5) / 2.5)
    assert (figures["input_len_mean"], figures["output_len_mean"]) == (8.0, 16.0)
    assert figures["latency_ms_mean"] == pytest.approx(1587.5)
    assert figures["latency_ms_p50"] == pytest.approx((1500 + 1750) / 2)
    assert figures["latency_ms_p90"] == pytest.approx(1750 + 0.7 * 350)  # place 0.9 × 3 = 2.7 of 1000, 1500, 1750, 2100
    assert figures["latency_ms_p99"] == pytest.approx(1750 + 0.97 * 350)
    assert (figures["ttft_ms_mean"], figures["ttft_ms_p50"]) == (200.0, 200.0)  # of the three that streamed
    assert figures["tpot_ms_mean"] == pytest.approx(250 / 3)


@pytest.mark.parametrize("late, told", [(1, False), (2, True)])
def test_one_late_of_a_hundred_is_in_time(late, told):
    rows = [{"due_s": 0.0, "sent_s": 1.0 * (place < late), "latency_ms": 5.0, "error": ""} for place in range(100)]
    assert bool(report.lateness(Run(pd.DataFrame(rows), STARTED_AT))) == told


# Files ----------------------------------------------------------------------------------------------------------------


def test_csv_has_a_line_a_request_can_be_read_again(run, tmp_path):
    path = tmp_path / "run.csv"
    report.write(path, run.requests)
    read = pd.read_csv(path, keep_default_na=True).fillna({"error": ""})
    pd.testing.assert_frame_equal(read, run.requests, check_dtype=False)


def test_a_write_that_fails_is_one_sentence(run, tmp_path):
    with pytest.raises(CourseError, match="cannot be written"):
        report.write(tmp_path, run.requests)
