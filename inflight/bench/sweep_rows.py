"""The requests of a sweep in a CSV file that is whole after every round, one line a request."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench import report
from inflight.bench.load_generator import Run
from inflight.bench.workload import MOST_RECORDED_BYTES
from inflight.errors import CourseError


class SweepRows:
    """The file for one line a request, rewritten after every round; without a path nothing.

    Raises
    ------
    CourseError
        A sweep is taken up again, and the file that is there is none of a sweep's requests.
    """

    def __init__(self, path: Path | None, resume: bool):
        self._path = path
        self._table = _rows_of(path) if path is not None and resume and path.exists() else pd.DataFrame()

    def keep(self, run: Run, rate: float, number: int) -> None:
        """Add a round's requests; those of the same round that ended early make way."""
        if self._path is None:
            return
        if len(self._table):
            is_same = (self._table["rate"] == rate) & (self._table["round"] == number)
            self._table = self._table[~is_same]
        table = report.requests_table(run)
        table.insert(0, "rate", rate)
        table.insert(1, "round", number)
        self._table = pd.concat([self._table, table]) if len(self._table) else table
        report.write(self._path, self._table.to_csv(index=False, lineterminator="\n"))


def _rows_of(path: Path) -> pd.DataFrame:
    """The requests of the sweep's earlier part."""
    fix = "Name the file of the sweep's requests, or a new one."
    content = files.read_bytes(path, "table of requests", MOST_RECORDED_BYTES, fix)
    try:
        table = pd.read_csv(io.BytesIO(content))
    except ValueError as error:  # the parser's own and the decoder's are ValueErrors
        raise CourseError(f"{path} is not a CSV file ({str(error).splitlines()[0]}). {fix}") from error
    if [*table.columns[:2]] != ["rate", "round"]:
        raise CourseError(f"{path} has other columns than the requests of a sweep. {fix}")
    return table
