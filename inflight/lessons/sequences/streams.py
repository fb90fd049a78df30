"""Several clients of a model that answers word by word, each on a connection of its own; any may leave early.

words = ask(server, "words", ["a b c", "one two three"], leave_after={2: 1})
words.groupby("stream")["word"].agg(" ".join)           # 1: a b c, 2: one
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import pandas as pd

from inflight.triton.client import connection
from inflight.triton.client.connection import Connection, Reply
from inflight.triton.serving.server import Server

TIMEOUT_S = 30  # longest wait for the next word of any stream


def ask(
    server: Server,
    model: str,
    texts: Sequence[str],
    leave_after: Mapping[int, int] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> pd.DataFrame:
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
        Nothing came for `timeout_s` although a request was under way, or the server went away.
    """
    leave_after, rows, counts = leave_after or {}, list[tuple[int, str, str]](), Counter[int]()
    arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    with ExitStack() as stack:
        streams = {number: Connection(server.grpc_url, arrived) for number in range(1, len(texts) + 1)}
        for number, stream in streams.items():
            stack.enter_context(stream)
            stream.connect()
            stream.open_stream(number)
        for stream, text in zip(streams.values(), texts, strict=True):
            stream.send_on_stream(model, {"text": connection.text(text)}, enable_empty_final_response=True)
        under_way = set(streams)
        while under_way:
            reply = next(iter(streams.values())).next_reply(timeout_s)  # all share one queue
            number = reply.number
            if number not in under_way:
                continue
            if isinstance(reply.error, connection.ServerGone):
                raise reply.error
            if reply.error is not None:
                rows.append((number, "", str(reply.error)))
            elif not reply.is_empty:
                rows.append((number, reply.result.as_numpy("word").item().decode("utf-8"), ""))
                counts[number] += 1
            if reply.error is not None or reply.is_final or counts[number] == leave_after.get(number):
                under_way.discard(number)
                if reply.error is None and reply.is_final:
                    streams[number].finish_stream()
                streams[number].close()
    return pd.DataFrame(rows, columns=["stream", "word", "message"])
