"""Several clients of a model that answers word by word, each on a connection of its own; any may leave early.

words = ask(server, "words", ["a b c", "one two three"], leave_after={2: 1})
words.groupby("stream")["word"].agg(" ".join)           # 1: a b c, 2: one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from inflight.triton.client import connection
from inflight.triton.client.streams import follow
from inflight.triton.serving.server import Server

TIMEOUT_S = 30  # longest wait for the next word of any stream


def ask(server: Server, model: str, texts: Sequence[str], leave_after: Mapping[int, int] | None = None) -> pd.DataFrame:
    """Send each text on its own stream, one right after the other, and collect what comes back.

    Parameters
    ----------
    model : str
        Takes one text, `text`, and answers with `word`: one response a word, or one in all.
    leave_after : dict of int to int, optional
        By stream (from 1): after so many words its client closes the connection, which cancels the request.

    Returns
    -------
    DataFrame
        One row a response, in the order of arrival: `stream` (from 1), `word`, and `message`, Triton's reason where the
        request ended with an error.

    Raises
    ------
    CourseError
        Nothing came for `TIMEOUT_S` although a request was under way, or the server went away.
    """
    requests, rows = [{"text": connection.text(each)} for each in texts], list[tuple[int, str, str]]()
    for reply in filter(None, follow(server.grpc_url, model, requests, leave_after=leave_after, timeout_s=TIMEOUT_S)):
        if reply.error is not None:
            rows.append((reply.number, "", str(reply.error)))
        elif not reply.is_empty:
            rows.append((reply.number, reply.result.as_numpy("word").item().decode("utf-8"), ""))
    return pd.DataFrame(rows, columns=["stream", "word", "message"])
