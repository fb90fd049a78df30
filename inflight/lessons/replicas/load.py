"""Streams to an address that a policy chooses, through OpenAI's own client, and what became of each.

rows = send(requests, lambda request: replicas.url, users=4)
rows = traced(rows, replicas)                       # with the server that answered, and what it had to compute
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import openai
import pandas as pd

from inflight.lessons.replicas.service import Replicas
from inflight.triton import telemetry

TIMEOUT_S = 300


@dataclass(frozen=True)
class Request:
    """One stream: `prefix` numbers its system prompt, `system`; `prompt` is the whole of it in token ids."""

    prefix: int
    system: str
    prompt: list[int]
    max_tokens: int = 8


def stream(url: str, request: Request, began: Callable[[], Any] = lambda: None) -> dict:
    """Send a request with the openai package as it is, its retries included, and read the stream to its end.

    Returns `prefix`; `sent_s`, `first_s`, `last_s` (seconds since 1970; no first text is NaN); `id`, the server's;
    `error`, the exception's name, blank where the stream came to its end.
    """
    row: dict[str, Any] = {"prefix": request.prefix, "sent_s": time.time(), "first_s": math.nan, "id": "", "error": ""}
    with openai.OpenAI(base_url=url, api_key="none", timeout=TIMEOUT_S) as client:
        try:
            for chunk in client.completions.create(
                model="tensorrt_llm",
                prompt=request.prompt,
                max_tokens=request.max_tokens,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            ):
                row["id"] = chunk.id
                if math.isnan(row["first_s"]) and chunk.choices and chunk.choices[0].text:
                    row["first_s"] = time.time()
                    began()
        except openai.OpenAIError as error:
            row["error"] = type(error).__name__
    return row | {"last_s": time.time()}


def send(
    requests: list[Request], address: Callable[[Request], AbstractContextManager[str]], users: int
) -> pd.DataFrame:
    """Send requests as a closed loop of so many users: one row a request; `address` gives its URL while it lasts."""

    def one(request: Request) -> dict:
        with address(request) as url:
            return stream(url, request)

    with ThreadPoolExecutor(users) as pool:
        return pd.DataFrame(pool.map(one, requests))


def traced(rows: pd.DataFrame, replicas: Replicas) -> pd.DataFrame:
    """Rows of `send` with what the servers' iteration logs say.

    Returns
    -------
    DataFrame
        In addition `server` (the number of who answered), `computed` (prompt tokens that it computed) and `ttft_s`.
    """
    found = [
        (name, number, share[1])
        for number in range(len(replicas.servers))
        for row in telemetry.iterations(replicas.log(number)).itertuples()
        for name, share in zip(row.client_ids, row.requests)
    ]
    logged = pd.DataFrame(found, columns=["id", "server", "computed"])
    logged = logged.groupby("id", as_index=False).agg({"server": "first", "computed": "sum"})
    return rows.merge(logged, on="id", how="left").assign(ttft_s=rows["first_s"] - rows["sent_s"])
