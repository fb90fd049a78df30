"""Reads what a server says about itself as tables: Triton's /metrics and the engine's iteration log.

now = metrics(page(server.metrics_url))                 # one row a sample
done = statistics(server.http_url, "ensemble")          # what Triton counts of one model
log = iterations("iterations.jsonl")                    # one row an iteration
stays = slots(log)                                      # one row a request's stay on a slot
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from inflight.engine.messages import IterationStats
from inflight.errors import CourseError
from inflight.triton.address import Address
from inflight.triton.client.connection import Refused, errors, get_json, http_client

STAY = ["request", "slot", "first", "last", "prompt_until"]
COLUMNS = ["name", "model", "label", "value", "type"]
METRICS_LAG_S = 20  # figures come at most so late, also on a busy machine
SETTLED_S, SETTLED_LOOKS = 0.5, 10
LOOK_EVERY_S = 0.02

Figures = TypeVar("Figures")


def wait_for(
    read: Callable[[], Figures], is_enough: Callable[[Figures], bool], otherwise: str, within_s: float | None = None
) -> Figures:
    """Call `read` until its result is enough, and return it: a server writes its figures a moment late.

    Raises
    ------
    CourseError
        The result was not enough within `within_s` (by default METRICS_LAG_S); `otherwise` is the message.
    """
    deadline = time.monotonic() + (METRICS_LAG_S if within_s is None else within_s)
    while not is_enough(figures := read()):
        if time.monotonic() > deadline:
            raise CourseError(otherwise)
        time.sleep(LOOK_EVERY_S)
    return figures


def settled(read: Callable[[], Figures], within_s: float | None = None) -> Figures:
    """Call `read` until its result has stayed the same for SETTLED_S, and return it: earlier requests are counted then.

    It is read SETTLED_LOOKS times at least meanwhile: on a busy machine a single look may take that long.

    Raises
    ------
    CourseError
        It still changed after `within_s` (by default METRICS_LAG_S): the server has other things to do.
    """
    since, latest, looks = time.monotonic(), read(), 0

    def is_settled(figures: Figures) -> bool:
        nonlocal since, latest, looks
        looks += 1
        if figures != latest:
            since, latest, looks = time.monotonic(), figures, 0
        return looks >= SETTLED_LOOKS and time.monotonic() - since > SETTLED_S

    otherwise = "The server's figures keep changing. Measure when it has nothing else to do."
    return wait_for(read, is_settled, otherwise, within_s)


def metrics(text: str) -> pd.DataFrame:
    """Read the samples of a /metrics page.

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


def page(url: str) -> str:
    """Fetch the text of /metrics at a server's `metrics_url`.

    Raises
    ------
    CourseError
        Nobody answers there.
    """
    with errors(url), http_client(url) as http:
        return http.get(url).text


def engine_figures(url: str) -> dict[str, float]:
    """Read what the engine of the server at `url` says: requests "active" and "scheduled", the cache's "fraction".

    Raises
    ------
    CourseError
        The server's page cannot be read, or has no engine on it.
    """
    table = metrics(page(Address.at(url).metrics_url))
    ours = table[table["name"].isin(("nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"))]
    figures = dict(zip(ours["label"], ours["value"]))
    if not {"active", "scheduled", "fraction"} <= figures.keys():
        raise CourseError(f"The server at {url} shows no figures of an engine.")
    return figures


def _row(text: str, sample: Any, kind: str) -> tuple[Any, ...]:
    # The parser gives every counter the ending that Prometheus recommends; Triton's own names have none.
    name = sample.name if sample.name in text else sample.name.removesuffix("_total")
    others = [value for label, value in sample.labels.items() if label not in ("model", "version")]
    return name, sample.labels.get("model", ""), ", ".join(others), sample.value, kind


@dataclass(frozen=True)
class Statistics:
    """Triton's counts of a model since it was loaded; `after - before` gives those of the time between.

    Attributes
    ----------
    inferences : int
        Items computed; a request with four items counts four.
    executions : int
        Batches computed.
    succeeded, failed : int
        Requests answered, and refused or gone wrong, a time-out in the queue among them.
    batches : Series of int
        Executions by batch size.
    """

    inferences: int
    executions: int
    succeeded: int
    failed: int
    batches: pd.Series

    def __sub__(self, before: Statistics) -> Statistics:
        numbers = {
            field.name: getattr(self, field.name) - getattr(before, field.name)
            for field in fields(self)
            if field.name != "batches"
        }
        batches = self.batches.sub(before.batches, fill_value=0).astype(int)
        return Statistics(**numbers, batches=batches[batches > 0])


def statistics(http_url: str, model: str) -> Statistics:
    """Fetch Triton's statistics of a model; they lag behind its last answer by a moment.

    Raises
    ------
    CourseError
        The server does not know the model, or does not answer.
    """
    try:
        [row] = get_json(http_url, f"/v2/models/{model}/stats")["model_stats"]
    except Refused as error:
        raise CourseError(f"There are no statistics of {model!r}: {error}.") from error
    kinds = row["inference_stats"]
    batches = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in row["batch_stats"]}
    return Statistics(
        row["inference_count"],
        row["execution_count"],
        kinds["success"]["count"],
        kinds["fail"]["count"],
        pd.Series(batches, name="executions", dtype=int).rename_axis("batch_size"),
    )


def iterations(path: str | Path, start: int = 0) -> pd.DataFrame:
    """Read the iteration log that an engine writes when `iteration_log_path` is set.

    Parameters
    ----------
    path : path
    start : int
        Read from this byte on: the size that the file had when what is wanted began.

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
    return read_log(path, "iteration", [field.name for field in fields(IterationStats)], start)


def read_log(path: str | Path, kind: str, columns: Sequence[str], start: int = 0) -> pd.DataFrame:
    """Read a model's log of JSON lines: one row a line, its values under `columns`.

    Parameters
    ----------
    kind : str
        "iteration" or "execution": the parameter `<kind>_log_path` of the model names the file.
    columns : sequence of str
        What every line must have.
    start : int
        As for `iterations`. A last line that is half written is left out.

    Raises
    ------
    CourseError
        There is no such file, or a line of it is not one of such a log.
    """
    try:
        with open(path, "rb") as file:
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
    except OSError as error:
        raise CourseError(
            f"The {kind} log {path} cannot be read ({error.strerror}). Set {kind}_log_path and send a request first."
        ) from None
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append([row[column] for column in columns])
        except (ValueError, TypeError, KeyError):
            number += Path(path).read_bytes()[:start].count(b"\n")
            raise CourseError(
                f"{path}, line {number} is not a line of an {kind} log: name the file that {kind}_log_path names."
            ) from None
    return pd.DataFrame(rows, columns=list(columns))


def shares(log: pd.DataFrame) -> pd.DataFrame:
    """Compute each request's share of each iteration of a log.

    Returns
    -------
    DataFrame
        One row a request and iteration: `iteration`, `request`, `context` and `generation` (tokens), `blocks` (of KV
        cache that it holds).
    """
    rows = [(row.iteration, *share) for row in log.itertuples() for share in row.requests]
    return pd.DataFrame(rows, columns=["iteration", "request", "context", "generation", "blocks"])


def slots(log: pd.DataFrame) -> pd.DataFrame:
    """Find which request sat in which slot, and when.

    A request takes the lowest free slot, keeps it until its last token, and gives it up while it is paused.

    Returns
    -------
    DataFrame
        One row a stay: `request`, `slot` (from 1), `first` and `last` iteration, `prompt_until` (the last iteration in
        which its prompt, or what it had to compute again, was computed).
    """
    table = shares(log)
    leaves = table.groupby("request")["iteration"].max().to_dict()
    staying: dict[int, dict[str, Any]] = {}
    stays = []
    for row in log.itertuples():
        for request in [*row.paused_ids, *(request for request in staying if leaves[request] < row.iteration)]:
            staying.pop(request, None)
        taken = {stay["slot"] for stay in staying.values()}
        for request, context, _, _ in row.requests:
            if request not in staying:
                slot = next(number for number in range(1, len(taken) + 2) if number not in taken)
                taken.add(slot)
                staying[request] = {
                    "request": request,
                    "slot": slot,
                    "first": row.iteration,
                    "prompt_until": row.iteration,
                }
                stays.append(staying[request])
            staying[request]["last"] = row.iteration
            if context:
                staying[request]["prompt_until"] = row.iteration
    return pd.DataFrame(stays, columns=STAY)
