"""What the pages of a service say, looked at now and then, as Prometheus does.

looks = [look(replicas, page)]
...
looks.append(look(replicas, page))
counters(looks, "vllm:request_success_total")       # a row a look, a column a counter
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from inflight.errors import CourseError
from inflight.lessons.replicas.service import Replicas
from inflight.triton import telemetry

RULES = Path(__file__).with_name("rules.yml")


def look(replicas: Replicas, page: CollectorRegistry) -> pd.Series:
    """What the pages of the client (`page`), the router and each server say now; a server that is dead has none.

    Returns
    -------
    Series
        Values by `source` ("client", "router" or the server's number), `name` and `labels`, as `end="broken"`.
    """
    urls = {"router": replicas.metrics_url, **{str(n): f"{url}/metrics" for n, url in enumerate(replicas.servers)}}
    texts = {"client": generate_latest(page).decode(), **{source: _text(url) for source, url in urls.items()}}
    found = {
        (source, one.name, ",".join(f'{name}="{value}"' for name, value in one.labels.items())): one.value
        for source, text in texts.items()
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    return pd.Series(found).rename_axis(["source", "name", "labels"])


def _text(url: str) -> str:
    try:
        return telemetry.page(url)
    except CourseError:
        return ""


def counters(looks: list[pd.Series], name: str, label: str = "") -> pd.DataFrame:
    """All counters of this name that have this label: a row a look, a column a counter.

    A counter that has not been there yet is zero; one whose page cannot be read says what it said last.
    """
    found = pd.DataFrame(looks).reset_index(drop=True)
    kept = [column for column in found if column[1] == name and label in column[2]]
    return found[kept].ffill().fillna(0.0)
