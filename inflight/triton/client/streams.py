"""Several requests to one model at once, each on a connection of its own; any client may leave early.

    requests = [{"text": text("a b c")}, {"text": text("one two")}]
    for reply in follow("127.0.0.1:8001", "words", requests, leave_after={2: 1}):
        ...

Leave the loop early, or close the generator, and every request ends at once.
"""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from inflight.triton.client.connection import Connection, Reply, ServerGone, course_error

LOOK_EVERY_S = 0.02  # the longest that it keeps quiet, and that a request goes out after it is due


def follow(
    url: str,
    model: str,
    requests: Sequence[dict[str, NDArray[Any]]],
    is_due: Callable[[int, Counter[int], float], bool] = lambda number, counts, elapsed_s: True,
    leave_after: Mapping[int, int] | None = None,
    timeout_s: float = 120,
    **options: Any,
) -> Generator[Reply | None, None, None]:
    """Send requests in their order, and follow all answers.

    Parameters
    ----------
    url : str
        "host:port" for gRPC.
    requests : sequence of dict of str to array
        The inputs of each, which are numbered from 1.
    is_due : callable, optional
        `is_due(number, counts, elapsed_s)`: whether to send a request, by how many responses with tensors each has had,
        and by the seconds since the connections were there. By default all are sent at once.
    leave_after : dict of int to int, optional
        By number: after so many responses its client closes the connection, which cancels the request.
    timeout_s : float
        Longest time to wait for the next reply to any.
    **options
        As tritonclient's, for every request: parameters, ...

    Yields
    ------
    Reply or None
        In the order of arrival, whose seconds count from when the connections were there; a refusal is one with an
        `error`. None where nothing has come for `LOOK_EVERY_S`.

    Raises
    ------
    CourseError
        ServerGone, or NoAnswer within `timeout_s`.
    """
    leave_after, counts = leave_after or {}, Counter[int]()
    arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    with ExitStack() as stack:
        streams = {n: stack.enter_context(Connection(url, arrived)) for n in range(1, len(requests) + 1)}
        for number, stream in streams.items():
            stream.connect()
            stream.open_stream(number)
        waiting, under_way = deque(zip(streams, requests)), set(streams)
        started = heard = time.perf_counter()
        while under_way:
            now = time.perf_counter()
            while waiting and is_due(waiting[0][0], counts, now - started):
                number, inputs = waiting.popleft()
                streams[number].send_on_stream(model, inputs, enable_empty_final_response=True, **options)
                heard = now
            try:
                reply = arrived.get(timeout=LOOK_EVERY_S)
            except queue.Empty as nothing:
                if now - heard > timeout_s:
                    raise course_error(nothing, url, timeout_s) from None
                yield None
                continue
            number, heard = reply.number, reply.arrived_s
            if number not in under_way:  # it came while its client left
                continue
            if isinstance(reply.error, ServerGone):
                raise reply.error
            counts[number] += reply.error is None and not reply.is_empty
            if reply.error is not None or reply.is_final or counts[number] == leave_after.get(number):
                under_way.discard(number)
                if reply.error is None and reply.is_final:
                    streams[number].finish_stream()
                streams[number].close()
            yield reply._replace(arrived_s=reply.arrived_s - started)
