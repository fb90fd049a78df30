"""Pages of figures, read again and again, and what Prometheus would make of them.

with Watch(replicas) as watch:
    ...
failed = increase(watch.samples, ATTEMPTS, window_s=10, outcome="failure")
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from inflight.errors import CourseError
from inflight.lessons.replicas.service import Replicas
from inflight.triton import telemetry

EVERY_S = 0.25  # Prometheus reads every 15 s or so; a lesson has no time for that
RULES = Path(__file__).with_name("rules.yml")
LABELS = ("le", "worker", "outcome")
TTFT = "vllm:time_to_first_token_seconds_bucket"
ATTEMPTS = "vllm_router_cb_outcomes_total"


class Watch:
    """Reads the pages of the router and of each server every EVERY_S until the block ends; who is dead has none.

    Attributes
    ----------
    samples : DataFrame
        `at_s` (seconds since 1970), `source` ("router" or the server's address), `name`, the labels `le`, `worker` and
        `outcome` (blank where there are none), `value`.
    """

    def __init__(self, replicas: Replicas):
        self._pages = {"router": replicas.metrics_url} | {url: f"{url}/metrics" for url in replicas.servers}
        self._rows: list[tuple] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True, name="watch")

    @property
    def samples(self) -> pd.DataFrame:
        return pd.DataFrame(self._rows, columns=["at_s", "source", "name", *LABELS, "value"])

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        with ThreadPoolExecutor(len(self._pages)) as pool:
            is_last = False
            while not is_last:
                is_last = self._ended.wait(EVERY_S)
                texts, at_s = [*pool.map(_page, self._pages.values())], time.time()  # what they say was so by then
                self._rows += [
                    (at_s, source, one.name, *(one.labels.get(label, "") for label in LABELS), one.value)
                    for source, text in zip(self._pages, texts)
                    for family in text_string_to_metric_families(text)
                    for one in family.samples
                ]


def _page(url: str) -> str:
    try:
        return telemetry.page(url)
    except CourseError:
        return ""


def total(samples: pd.DataFrame, name: str, **labels: str) -> pd.Series:
    """Sum of a metric over all series with these labels, at each look: `sum(name{label="…"})`."""
    return _series(samples, name, labels).sum(axis=1)


def increase(samples: pd.DataFrame, name: str, window_s: float, **labels: str) -> pd.Series:
    """Return how much the router's counters grew in the window before each look, or since the first one.

    A counter that appears later began at zero.
    """
    looks = _series(samples, name, labels).ffill().fillna(0.0).sum(axis=1)
    then = looks.index.searchsorted(looks.index - window_s, side="right") - 1
    return looks - looks.to_numpy()[then.clip(0)]


def _series(samples: pd.DataFrame, name: str, labels: dict[str, str]) -> pd.DataFrame:
    """Looks × series: values, NaN where a page did not have it."""
    kept = samples[(samples[["name", *labels]] == [name, *labels.values()]).all(axis=1)]
    found = kept.pivot_table(index="at_s", columns=["source", *LABELS], values="value", aggfunc="sum")
    return found.reindex(samples["at_s"].unique())
