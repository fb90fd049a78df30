"""What a server says about itself, as tables: Triton's /metrics and the engine's iteration log.

    now = metrics(httpx.get(server.metrics_url).text)       # one row a sample
    log = iterations("iterations.jsonl")                    # one row an iteration
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from inflight.errors import CourseError
from inflight.executor import IterationStats

COLUMNS = ["name", "model", "label", "value", "type"]


def metrics(text: str) -> pd.DataFrame:
    """The samples of a /metrics page.

    Parameters
    ----------
    text : str
        The page, in Prometheus' text format.

    Returns
    -------
    DataFrame
        One row a sample: `name`; `model`, blank where the sample belongs to the whole server; `label`, the values of
        its other labels but the version, as "active" for `request_type="active"`; `value`, in the unit of its name;
        `type`, "counter" (only grows), "gauge" (goes up and down), "histogram" or "summary".

    Raises
    ------
    CourseError
        The text is not a metrics page.
    """
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, KeyError, IndexError) as error:
        raise CourseError(f"This is not a metrics page ({error}): read it from the server's metrics_url.") from None
    rows = [_row(text, sample, family.type) for family in families for sample in family.samples]
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(text: str, sample, kind: str) -> tuple:
    # The parser gives every counter the ending that Prometheus recommends; Triton's own names have none.
    name = sample.name if sample.name in text else sample.name.removesuffix("_total")
    others = [value for label, value in sample.labels.items() if label not in ("model", "version")]
    return name, sample.labels.get("model", ""), ", ".join(others), sample.value, kind


def iterations(path: str | Path) -> pd.DataFrame:
    """The iteration log that an engine writes when `iteration_log_path` is set.

    Returns
    -------
    DataFrame
        One row an iteration, columns as `executor.IterationStats`: `timestamp` in seconds since 1970, `iteration_ms` in
        milliseconds, counts of requests, tokens and KV cache blocks. An engine that still writes may have the last line
        half done; that line is left out.

    Raises
    ------
    CourseError
        There is no such file, or a line of it is not one of an iteration log.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise CourseError(f"The iteration log {path} cannot be read ({error.strerror}). Set iteration_log_path and "
                          "send a request first.") from None
    columns = [field.name for field in fields(IterationStats)]
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            row = json.loads(line)
            rows.append([row[column] for column in columns])
        except (ValueError, TypeError, KeyError):
            raise CourseError(f"{path}, line {number} is not a line of an iteration log: name the file that "
                              "iteration_log_path names.") from None
    return pd.DataFrame(rows, columns=columns)
