"""Streams to an address through OpenAI's own client, and what became of each.

rows = send(requests, lambda request: stream(replicas.url, request), users=4)
rows = traced(rows, replicas)                       # with the server that answered, and what it had to compute
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
import pandas as pd

from inflight.lessons.replicas.service import Replicas
from inflight.triton import telemetry

TIMEOUT_S = 300


@dataclass(frozen=True)
class Request:
    """One stream: the number of the desk whose system prompt its `prompt`, in token ids, begins with."""

    desk: int
    prompt: list[int]
    max_tokens: int = 3


def stream(url: str, request: Request, began: Callable[[], Any] = lambda: None) -> dict:
    """Send a request with the openai package as it is, its retries included, and read the stream to its end.

    `began` is called at the first text. Returns `desk`; `id`, the server's; `error`, the exception's name, blank where
    the stream came to its end.
    """
    row = {"desk": request.desk, "id": "", "error": ""}
    try:
        for chunk in _client(url).completions.create(
            model="tensorrt_llm",
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            if not row["id"]:
                row["id"] = chunk.id
                began()
    except openai.OpenAIError as error:
        row["error"] = type(error).__name__
    return row


@functools.cache
def _client(url: str) -> openai.OpenAI:
    """One for all requests: to make one takes longer than a short answer."""
    return openai.OpenAI(base_url=url, api_key="none", timeout=TIMEOUT_S)


def send(requests: list[Request], ask: Callable[[Request], dict], users: int) -> pd.DataFrame:
    """Send requests as a closed loop of so many users, in their order; a row of what `ask` returns for each."""
    with ThreadPoolExecutor(users) as pool:
        return pd.DataFrame(pool.map(ask, requests))


def traced(rows: pd.DataFrame, replicas: Replicas) -> pd.DataFrame:
    """Rows of `send` with what the servers' iteration logs say.

    Returns
    -------
    DataFrame
        In addition `server`, the number of who answered, and `computed`, the prompt tokens that it computed.
    """
    found = [
        (name, number, share[1])
        for number in range(len(replicas.servers))
        for row in telemetry.iterations(replicas.log(number)).itertuples()
        for name, share in zip(row.client_ids, row.requests)
    ]
    logged = pd.DataFrame(found, columns=["id", "server", "computed"])
    logged = logged.groupby("id", as_index=False).agg({"server": "first", "computed": "sum"})
    return rows.merge(logged, on="id", how="left")
