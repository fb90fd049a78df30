"""Pages of figures, read again and again, and what Prometheus would make of them.

    with Watch(replicas) as watch:
        ...
    burning = burn_rate(watch.samples, window_s=10)

`QUERIES` are those of assets/replicas/dashboard.json: PromQL, and the same arithmetic on the samples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pandas as pd
from prometheus_client.parser import text_string_to_metric_families

from inflight.lessons.replicas.service import Replicas
from inflight.triton.client import http_client

EVERY_S = 0.25  # Prometheus reads every 15 s or so; a lesson has no time for that
SLO, BURNS = 0.99, 14.4  # of attempts; a burn rate that is worth waking somebody
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
                is_last, at_s = self._ended.wait(EVERY_S), time.time()
                for source, text in zip(self._pages, pool.map(_page, self._pages.values())):
                    for one in [one for family in text_string_to_metric_families(text) for one in family.samples]:
                        labels = [one.labels.get(label, "") for label in LABELS]
                        self._rows.append((at_s, source, one.name, *labels, one.value))


def _page(url: str) -> str:
    try:
        with http_client(url) as http:
            return http.get(url, timeout=5).text
    except httpx.HTTPError:
        return ""


def total(samples: pd.DataFrame, name: str, **labels: str) -> pd.Series:
    """Sum of a metric over all series with these labels, at each look: `sum(name{label="…"})`."""
    kept = samples[(samples[["name", *labels]] == [name, *labels.values()]).all(axis=1)]
    return kept.groupby("at_s")["value"].sum().reindex(samples["at_s"].unique(), fill_value=0.0)


def increase(counter: pd.Series, window_s: float) -> pd.Series:
    """By how much a counter grew in the window before each look, or since the first one."""
    then = counter.index.searchsorted(counter.index - window_s, side="right") - 1
    return counter - counter.to_numpy()[then.clip(0)]


def burn_rate(samples: pd.DataFrame, window_s: float) -> pd.Series:
    """How many times as fast as the objective allows attempts failed in the window before each look."""
    failed, tried = (increase(total(samples, ATTEMPTS, **one), window_s) for one in ({"outcome": "failure"}, {}))
    return (failed / tried.where(tried > 0)).fillna(0.0) / (1 - SLO)


QUERIES: dict[str, tuple[str, Callable[[pd.DataFrame, float], pd.Series]]] = {
    "burn rate of the error budget": ("router:error_budget:burn_rate5m", burn_rate),
    "requests under way": ("sum(vllm:num_requests_running)", lambda read, _: total(read, "vllm:num_requests_running")),
    "servers that the router takes for healthy": (
        "sum(vllm_router_worker_health)",
        lambda read, _: total(read, "vllm_router_worker_health"),
    ),
}
