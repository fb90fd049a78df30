"""A file of arrivals with their lengths, in the columns of the public Azure LLM inference traces.

    trace = read(find("small"))
    requests = trace.requests(tokenizer)

The columns are TIMESTAMP (when a request came), ContextTokens (of its prompt) and GeneratedTokens (of its answer). What
was asked is in no such file: a prompt is plain words of the same length, and the answer is made as long as it was.
"""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pandas as pd

from inflight import files
from inflight.bench.names import TRACE_FILES
from inflight.bench.workload import MOST_SECONDS, MOST_TOKENS, Recording
from inflight.errors import CourseError
from inflight.paths import ASSETS, cache_dir

TIME, PROMPT, ANSWER = COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_BYTES = 1 << 30  # the public week of 2024 has some 700 MB a file
MOST_ROWS = 200_000  # of the file's beginning: more than any load here sends
AZURE = "https://github.com/Azure/AzurePublicDataset, folder data"


def find(name: str) -> Path:
    """The file that `name` names: a path, or a name of `TRACE_FILES` (the small one ships with the course).

    Raises
    ------
    CourseError
        There is no such file; for one of the public ones the message says where it is to be had.
    """
    path = Path(name).expanduser()
    if name not in TRACE_FILES:
        if path.exists():
            return path
        raise CourseError(
            f"There is no trace file {name}: give the path of a CSV file with the columns {', '.join(COLUMNS)}, or "
            f"{' or '.join(TRACE_FILES)}."
        )
    places = [folder / TRACE_FILES[name] for folder in (ASSETS / "datasets", cache_dir() / "traces", Path())]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise CourseError(
            f"The trace {name} is not on this machine: download {TRACE_FILES[name]} from {AZURE} to "
            f"{cache_dir() / 'traces'}, or give its path."
        )
    return found


def read(path: str | Path) -> Recording:
    """Times in seconds after the first arrival, and lengths, of the requests of a trace file, in its order.

    A time is a date with its time of day, in any zone, or a plain number of seconds. Requests without an answer
    (GeneratedTokens 0) are left out.

    Raises
    ------
    CourseError
        It cannot be read, is no CSV, lacks a column, a value is not in its range, or the times run backwards: the
        message names the line.
    """
    path = Path(path).expanduser()
    table = _table(path)
    for column in COLUMNS:
        if column not in table:
            raise CourseError(
                f"The trace {path} has no column {column}: give a CSV file with the columns {', '.join(COLUMNS)}."
            )
    if table.empty:
        raise CourseError(f"The trace {path} has no request: give one that has some.")
    times = _times(table[TIME], path)
    prompts = _lengths(table[PROMPT], 1, path)
    answers = _lengths(table[ANSWER], 0, path)
    kept = answers > 0
    if not kept.any():
        raise CourseError(f"The trace {path} has no request with an answer: give one that has some.")
    times = times[kept] - times[kept].iloc[0]
    return Recording(times.tolist(), prompts[kept].astype(int).tolist(), answers[kept].astype(int).tolist())


def _table(path: Path) -> pd.DataFrame:
    give = f"Give a CSV file with the columns {', '.join(COLUMNS)}."
    content = files.read_bytes(path, "trace", MOST_BYTES, give)
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # a line that is too long
            return pd.read_csv(io.BytesIO(content), index_col=False, nrows=MOST_ROWS)
    except (ValueError, pd.errors.ParserWarning) as error:  # the parser's own and the decoder's are ValueErrors
        raise CourseError(f"The trace {path} is not a CSV file ({str(error).splitlines()[0]}). {give}") from error


def _times(texts: pd.Series, path: Path) -> pd.Series:
    """Seconds, never falling."""
    seconds = pd.to_numeric(texts, errors="coerce")
    if seconds.isna().any():
        moments = pd.to_datetime(texts.astype(str), format="ISO8601", utc=True, errors="coerce")
        if bad := _first(moments.isna()):
            raise CourseError(
                f"In line {bad} of the trace {path}, {TIME} is {str(texts[bad - 2])[:40]!r}, which is neither a date "
                "with a time of day nor a number of seconds: correct or remove it."
            )
        seconds = (moments - moments.iloc[0]).dt.total_seconds()
    if bad := _first(~seconds.between(-MOST_SECONDS * 10_000, MOST_SECONDS * 10_000)):
        raise CourseError(f"In line {bad} of the trace {path}, {TIME} is no moment: correct or remove it.")
    if bad := _first(seconds.diff() < 0):
        back_s = seconds[bad - 3] - seconds[bad - 2]
        raise CourseError(
            f"The times of the trace {path} run backwards in line {bad}, by {back_s:.3g} s: sort it by {TIME}."
        )
    if seconds.iloc[-1] - seconds.iloc[0] > MOST_SECONDS:
        raise CourseError(
            f"The trace {path} lasts {(seconds.iloc[-1] - seconds.iloc[0]) / 86400:.0f} days, and "
            f"{MOST_SECONDS // 86400} are the most: give a part of it."
        )
    return seconds


def _lengths(texts: pd.Series, least: int, path: Path) -> pd.Series:
    numbers = pd.to_numeric(texts, errors="coerce")
    if bad := _first(~(numbers.between(least, MOST_TOKENS) & (numbers % 1 == 0))):
        raise CourseError(
            f"In line {bad} of the trace {path}, {texts.name} is {str(texts[bad - 2])[:40]}, which is not a whole "
            f"number from {least} to {MOST_TOKENS:,}: correct or remove it."
        )
    return numbers


def _first(bad: pd.Series) -> int | None:
    """The line in the file of the first row that is bad; None if there is none. The header is line 1."""
    return int(bad.idxmax()) + 2 if bad.any() else None
