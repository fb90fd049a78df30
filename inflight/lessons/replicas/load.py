"""Streams to an address that a policy chooses, through OpenAI's own client, and what became of each.

rows = send(requests, lambda request: replicas.url, users=4)
rows = traced(rows, replicas)                       # with the server that answered, and what it had to compute
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pandas as pd

from inflight import files
from inflight.lessons.replicas.service import Replicas

TIMEOUT_S = 300
ROW = ["request", "prefix", "sent_s", "first_s", "last_s", "pieces", "id", "error"]


@dataclass(frozen=True)
class Request:
    """One stream: `prefix` numbers its system prompt, `system`."""

    prefix: int
    system: str
    question: str
    max_tokens: int = 8


def stream(url: str, request: Request, began: Callable[[], Any] = lambda: None) -> dict:
    """Send a request with the openai package as it is, its retries included, and read the stream to its end.

    Returns
    -------
    dict
        `prefix`; `sent_s`, `first_s`, `last_s` (seconds since 1970; no first one is NaN); `pieces` of text; `id`, as
        the server calls it; `error`, the exception's name, blank where the stream came to its end.
    """
    row = {"prefix": request.prefix, "sent_s": time.time(), "first_s": float("nan"), "pieces": 0, "id": "", "error": ""}
    messages: Any = [{"role": "system", "content": request.system}, {"role": "user", "content": request.question}]
    with openai.OpenAI(base_url=url, api_key="none", timeout=TIMEOUT_S) as client:
        try:
            for chunk in client.chat.completions.create(
                model="tensorrt_llm",
                messages=messages,
                max_tokens=request.max_tokens,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                row["id"] = chunk.id
                if chunk.choices and chunk.choices[0].delta.content:
                    row["pieces"] += 1
                    if row["pieces"] == 1:
                        row["first_s"] = time.time()
                        began()
        except openai.OpenAIError as error:
            row["error"] = type(error).__name__
    return row | {"last_s": time.time()}


def send(requests: list[Request], address: Callable[[Request], Any], users: int) -> pd.DataFrame:
    """Send requests as a closed loop of so many users: one row a request, as `stream` says.

    Parameters
    ----------
    address : callable
        Gives the base URL of a request; or a context manager that gives it, and whose end is the request's.
    """

    def one(request: Request) -> dict:
        where = address(request)
        if isinstance(where, str):
            return stream(where, request)
        with where as url:
            return stream(url, request)

    with ThreadPoolExecutor(users) as pool:
        return table(pool.map(one, requests))


def table(rows: Any) -> pd.DataFrame:
    """Rows of `stream` as a table, numbered in their order."""
    return pd.DataFrame(list(rows)).rename_axis("request").reset_index()[ROW]


def sizes(replicas: Replicas) -> list[int]:
    """How long each server's iteration log is, for `traced`."""
    return [files.size(replicas.log(number)) for number in range(len(replicas.servers))]


def traced(rows: pd.DataFrame, replicas: Replicas, since: list[int]) -> pd.DataFrame:
    """Rows of `send` with what the servers' iteration logs say: who answered, and how many prompt tokens it computed.

    Parameters
    ----------
    since : list of int
        `sizes` before the load.

    Returns
    -------
    DataFrame
        In addition `server` (its number), `computed` (context tokens) and `ttft_s`.
    """
    found = []
    for number, start in enumerate(since):
        log = replicas.iterations(number, start)
        for row in log.itertuples():
            found += [(name, number, share[1]) for name, share in zip(row.client_ids, row.requests)]
    logged = pd.DataFrame(found, columns=["id", "server", "computed"])
    logged = logged.groupby("id", as_index=False).agg(server=("server", "first"), computed=("computed", "sum"))
    return rows.merge(logged, on="id", how="left").assign(ttft_s=rows["first_s"] - rows["sent_s"])


def blocks_reused(replicas: Replicas, since: list[int]) -> int:
    """Blocks of KV cache that the servers found again since then; each log counts from its server's start."""
    logs = [(replicas.iterations(number), start) for number, start in enumerate(since)]
    ends = [log["kv_blocks_reused"].max() if len(log) else 0 for log, _ in logs]
    new = [len(replicas.iterations(number, start)) for number, (_, start) in enumerate(logs)]
    begins = [log["kv_blocks_reused"].iloc[: len(log) - count].max() for (log, _), count in zip(logs, new)]
    return int(sum(ends) - sum(begin for begin in begins if begin == begin))
