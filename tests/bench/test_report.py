"""Figures and files of a benchmark, from rows made by hand."""

import pandas as pd
import pytest

from inflight.bench import report
from inflight.bench.load import COLUMNS, Run
from inflight.errors import CourseError

# Three streamed requests of 10, 20 and 30 tokens in two seconds, a whole answer, and one that failed.
ROWS = [
    {
        "request": 0,
        "sent_s": 0.0,
        "first_s": 0.1,
        "last_s": 1.0,
        "input_len": 5,
        "output_len": 10,
        "max_tokens": 10,
        "ttft_ms": 100.0,
        "itl_ms": 100.0,
        "latency_ms": 1000.0,
        "error": "",
    },
    {
        "request": 1,
        "sent_s": 0.0,
        "first_s": 0.2,
        "last_s": 2.1,
        "input_len": 7,
        "output_len": 20,
        "max_tokens": 20,
        "ttft_ms": 200.0,
        "itl_ms": 100.0,
        "latency_ms": 2100.0,
        "error": "",
    },
    {
        "request": 2,
        "sent_s": 0.5,
        "first_s": 0.8,
        "last_s": 2.25,
        "input_len": 9,
        "output_len": 30,
        "max_tokens": 30,
        "ttft_ms": 300.0,
        "itl_ms": 50.0,
        "latency_ms": 1750.0,
        "error": "",
    },
    {
        "request": 3,
        "sent_s": 1.0,
        "last_s": 2.5,
        "input_len": 11,
        "output_len": 4,
        "max_tokens": 4,
        "latency_ms": 1500.0,
        "error": "",
    },
    {
        "request": 4,
        "sent_s": 1.5,
        "last_s": 9.0,
        "input_len": 13,
        "output_len": 0,
        "max_tokens": 4,
        "error": 'no, "never"',
    },
]
STARTED_AT = 1_700_000_000.0


@pytest.fixture
def run():
    return Run(pd.DataFrame(ROWS, columns=COLUMNS), STARTED_AT)


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
    assert figures["itl_ms_mean"] == pytest.approx(250 / 3)


# Files ----------------------------------------------------------------------------------------------------------------


def test_csv_has_a_line_a_request_can_be_read_again_and_grows(run, tmp_path):
    path = tmp_path / "run.csv"
    report.write(path, run.requests)
    report.write(path, run.requests, more=True)
    read = pd.read_csv(path, keep_default_na=True).fillna({"error": ""})
    pd.testing.assert_frame_equal(read, pd.concat([run.requests] * 2, ignore_index=True), check_dtype=False)


def test_what_cannot_be_written_is_refused_and_nothing_left(tmp_path):
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "nowhere" / "run.csv", tmp_path / "file" / "run.csv", tmp_path):
        with pytest.raises(CourseError, match="cannot be written"):
            report.check_writable(path)
    report.check_writable(tmp_path / "file")
    report.check_writable(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"


def test_a_write_that_fails_is_one_sentence(run, tmp_path):
    with pytest.raises(CourseError, match="cannot be written"):
        report.write(tmp_path, run.requests)
