"""Where the results of a load go: a CSV of requests, a line of statistics, a trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from inflight.bench import report
from inflight.bench.load_generator import Run
from inflight.errors import CourseError


@dataclass(frozen=True)
class ResultFiles:
    """Files for the results of a run, each where one is wanted.

    Attributes
    ----------
    csv : path or None
        One line a request.
    op_stats_csv : path or None
        A line of statistics is added to it, unless the run ended early.
    perfetto : path or None
        A trace that ui.perfetto.dev opens.

    Raises
    ------
    CourseError
        One of them cannot be written: before anything is measured.
    """

    csv: Path | None = None
    op_stats_csv: Path | None = None
    perfetto: Path | None = None

    def __post_init__(self):
        report.check_writable(*(path for path in (self.csv, self.op_stats_csv, self.perfetto) if path is not None))
        if self.op_stats_csv is not None:
            report.check_op_stats(self.op_stats_csv)

    def write(self, run: Run, iterations: pd.DataFrame | None) -> None:
        """Write what is wanted; `iterations` is the engine's log, where there is one."""
        if self.csv is not None:
            report.write(self.csv, report.requests_csv(run))
        if self.perfetto is not None:
            report.write(self.perfetto, json.dumps(report.timeline(run, iterations)))
        if self.op_stats_csv is not None and not run.stopped:
            report.write(self.op_stats_csv, report.with_op_stats(self.op_stats_csv, run))

    def __str__(self) -> str:
        return " and ".join(str(path) for path in (self.csv, self.perfetto) if path is not None)


def check_answered(run: Run, files: ResultFiles | None = None) -> None:
    """One sentence as a CourseError, for after the results, when not every request was answered."""
    if run.stopped:
        kept = f"They are in {files}." if str(files or "") else "They are above; --csv keeps them in a file."
        raise CourseError(f"{run.stopped} {kept}")
    failed = run.requests[run.requests["error"] != ""]
    if len(failed):
        raise CourseError(
            f"{len(failed)} of {len(run.requests)} requests failed, the first with: {failed['error'].iloc[0]}"
        )
