"""Reach a running server over gRPC or HTTP, and any of its models by the names of their tensors.

    with Connection("127.0.0.1:8001") as connection:
        result = connection.infer("text-embedding", {"text_input": text("a black hole")}, timeout_s=60)
        result.as_numpy("embedding")

tritonclient speaks gRPC, httpx HTTP. Whatever they raise becomes a CourseError of one of three kinds: `ServerGone`,
`NoAnswer` (in time), or `Refused` with Triton's reason.
"""

from __future__ import annotations

import contextlib
import queue
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight.errors import CONFIG_REFUSED, NOT_READY, QUEUE_FULL, TIMED_OUT, CourseError
from inflight.triton import address, records

SHORT_TIMEOUT_S = 10  # of what Triton answers at once: health, metadata, statistics
# Why a model cannot be loaded, with its traceback: more than the 8,192 bytes that gRPC lets through.
MOST_REASON_BYTES = 1 << 20

# Triton writes it in front of its reasons; the message of a failed connection has none.
_PREFIX = re.compile(r"^(\[request id: [^\]]*\] |in ensemble '[^']*', )+")
_CODE = re.compile(r" #([a-z_]+)$")  # behind the reason of a model, where `request.ERROR_CODE` asks for it
# Triton's own reasons have no code: by their words.
_CODES_OF_TRITON = {
    QUEUE_FULL: "Exceeds maximum queue size",
    TIMED_OUT: "Request timeout expired",
    NOT_READY: "unknown model|is not ready|no available versions|Stub process|is stopping",
    CONFIG_REFUSED: "failed to poll",
}
# What Triton says itself under the status UNAVAILABLE, which is else that of a server that cannot be reached.
_TRITONS_OWN = re.compile(
    r"\[request id: |in ensemble |Request for unknown |Exceeds maximum queue size|Request timeout|"
    r"This protocol is restricted|explicit model load "
)


# What may go wrong ----------------------------------------------------------------------------------------------------


class ServerGone(CourseError):
    """Nobody answers at the address, or the connection broke."""


class NoAnswer(CourseError):
    """Nothing came within the time, or the client stopped waiting."""


class Refused(CourseError):
    """The server answered that it will not or cannot do it; the message is Triton's reason, without its prefixes.

    `code` is that of a model of ours, which was asked for it, or says why Triton itself refused; blank where neither
    is known.
    """

    code = ""


@contextlib.contextmanager
def errors(url: str, timeout_s: float = SHORT_TIMEOUT_S) -> Iterator[None]:
    """Raise what tritonclient, gRPC or httpx raise in the block as a CourseError; see `course_error`."""
    try:
        yield
    except (InferenceServerException, grpc.RpcError, httpx.RequestError, httpx.InvalidURL) as error:
        raise course_error(error, url, timeout_s) from error
    except ValueError as error:
        if "closed" not in str(error):  # what gRPC says of a channel that this process has closed
            raise
        raise NoAnswer(f"The connection to {url} was closed before the answer was there.") from error


def course_error(error: Exception, url: str, timeout_s: float = SHORT_TIMEOUT_S) -> CourseError:
    """Turn an exception of tritonclient, gRPC or httpx into ServerGone, NoAnswer (in `timeout_s`), or Refused."""
    status, message = "", ""
    if isinstance(error, InferenceServerException):
        status, message = error.status() or "", error.message() or ""
    if isinstance(error, (httpx.TimeoutException, queue.Empty)) or "DEADLINE_EXCEEDED" in status:
        waited = f"No answer from {url} within {timeout_s:g} s."
        return NoAnswer(f"{waited} Wait longer with timeout_s, or look at the server's log.")
    if "CANCELLED" in status:
        return NoAnswer(f"The request to {url} was ended before its answer was there.")
    if message and ("UNAVAILABLE" not in status or _TRITONS_OWN.match(message)):
        reason = _PREFIX.sub("", message).strip()
        if code := _CODE.search(reason):
            return Refused(reason[: code.start()], code=code[1])
        return Refused(
            reason, code=next((code for code, words in _CODES_OF_TRITON.items() if re.search(words, reason)), "")
        )
    return _gone(url)


def _gone(url: str) -> ServerGone:
    """Make the error for an address where nobody answers; it says how the server there died, if it was this user's."""
    what = f"The server at {url} does not answer, or went away in the middle of a request."
    again = "in a notebook by the cell that did, in a terminal by `inflight serve`"
    if death := records.death(url):
        return ServerGone(f"{death} {what} Start it again, {again}.")
    return ServerGone(f"{what} Start it, {again}, and check the port.")


# gRPC -----------------------------------------------------------------------------------------------------------------


def text(*rows: str) -> NDArray[Any]:
    """Return texts as the array of a BYTES tensor, [rows, 1]."""
    return np.array([[row.encode("utf-8")] for row in rows], np.object_)


def tensors(arrays: dict[str, NDArray[Any]]) -> list[triton.InferInput]:
    """Arrays by name as inputs of a request; the datatype is that of the array, BYTES for objects."""
    return [
        triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


class Reply(NamedTuple):
    """The reply to a request that was sent without waiting: tensors, or the reason why there are none.

    Attributes
    ----------
    number : int
        The number that the sender gave to the request, or to the stream.
    arrived_s : float
        When it arrived, in seconds of `time.perf_counter`.
    result : tritonclient.grpc.InferResult
        None when there is an error.
    error : ServerGone, NoAnswer, Refused or None
    """

    number: int
    arrived_s: float
    result: Any
    error: CourseError | None

    @property
    def is_final(self) -> bool:
        """Whether Triton marked it as the request's last; the request must have asked for that mark."""
        return bool(self.result.get_response().parameters["triton_final_response"].bool_param)

    @property
    def is_empty(self) -> bool:
        """Whether it has no tensors: a final response may be only the mark."""
        return not self.result.get_response().outputs


class Connection:
    """A gRPC connection to one server, over which any number of threads may send.

    Parameters
    ----------
    url : str
        "host:port".
    arrived : SimpleQueue, optional
        Where the replies to `send` and `send_on_stream` are put; several connections may share one.

    Attributes
    ----------
    triton : tritonclient.grpc.InferenceServerClient
        For all else that a server does; what it raises, `errors` turns into sentences.
    """

    def __init__(self, url: str, arrived: queue.SimpleQueue[Reply] | None = None):
        if address.is_http(url):
            raise CourseError(f"{url} is an address for HTTP, and here gRPC is needed: write host:port of its gRPC.")
        address.parsed(url)
        self.url = url
        self.arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue() if arrived is None else arrived
        options = [  # the first two are tritonclient's own
            ("grpc.max_send_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
            ("grpc.max_receive_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
            ("grpc.max_metadata_size", MOST_REASON_BYTES),
        ]
        self.triton = triton.InferenceServerClient(url, channel_args=options)
        self._has_stream = False

    def infer(
        self, model: str, arrays: dict[str, NDArray[Any]], timeout_s: float, **options: Any
    ) -> triton.InferResult:
        """Send a request and wait for its result; `options` as tritonclient's: request_id, parameters, priority, ...

        Raises
        ------
        CourseError
            ServerGone, NoAnswer within `timeout_s`, or Refused.
        """
        with errors(self.url, timeout_s):
            return self.triton.infer(model, tensors(arrays), client_timeout=timeout_s, **options)

    def send(self, number: int, model: str, arrays: dict[str, NDArray[Any]], **options: Any) -> None:
        """Send a request; its reply, with `number`, is put into `arrived`. Options as for `infer`."""
        with errors(self.url):
            self.triton.async_infer(model, tensors(arrays), partial(self._arrive, number), **options)

    def open_stream(self, number: int = 0) -> None:
        """Open the connection's stream: requests on it reach the server in their order. Its replies have `number`."""
        with errors(self.url):
            self.triton.start_stream(partial(self._arrive, number))
        self._has_stream = True

    def send_on_stream(self, model: str, arrays: dict[str, NDArray[Any]], request_id: str = "", **options: Any) -> None:
        """Send a request on the stream; options as tritonclient's: enable_empty_final_response, sequence_id, ..."""
        # A stream that is broken refuses; by then its callback has got the error that broke it, which says more.
        with contextlib.suppress(InferenceServerException):
            self.triton.async_stream_infer(model, tensors(arrays), request_id=request_id, **options)

    def next_reply(self, timeout_s: float) -> Reply:
        """Wait for the next reply; its `error` is not raised. NoAnswer when none arrives within `timeout_s`."""
        try:
            return self.arrived.get(timeout=timeout_s)
        except queue.Empty as error:
            raise course_error(error, self.url, timeout_s) from None

    def _arrive(self, number: int, result: triton.InferResult | None, error: InferenceServerException | None) -> None:
        arrived_s = time.perf_counter()
        trouble = None if error is None else course_error(error, self.url)
        # The error of a request on a stream has no status; one that has a status has ended the stream.
        if self._has_stream and error is not None and error.status() and isinstance(trouble, Refused):
            trouble = _gone(self.url)
        self.arrived.put(Reply(number, arrived_s, result, trouble))

    def connect(self) -> None:
        """Make the connection now, so that it is no part of the first request. Raises ServerGone."""
        with errors(self.url):
            self.triton.is_server_live(client_timeout=SHORT_TIMEOUT_S)

    def finish_stream(self) -> None:
        """Close the stream, all of whose requests have had their last response: nothing is left to be cancelled.

        This Triton keeps the place of a sequence whose client cancels between the last response and the request's end.
        """
        self.triton.stop_stream()
        self._has_stream = False

    def end_stream(self) -> None:
        """End the stream, if one is open, with all that is under way on it."""
        self.triton.stop_stream(cancel_requests=True)
        self._has_stream = False

    def close(self) -> None:
        """End the stream, and the connection."""
        self.end_stream()
        self.triton.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# HTTP -----------------------------------------------------------------------------------------------------------------


def http_client(url: str, timeout_s: float = SHORT_TIMEOUT_S) -> httpx.Client:
    """Make a client of httpx for the server at "http://host:port"."""
    return httpx.Client(
        base_url=url,
        timeout=timeout_s,
        limits=httpx.Limits(max_keepalive_connections=0),  # Triton ends only after the connections that are open
        verify=False,  # no address is one of HTTPS, and to load its certificates takes longer than the call
    )


def get_json(url: str, path: str, timeout_s: float = SHORT_TIMEOUT_S) -> Any:
    """Return the JSON of an endpoint, as in `get_json(server.http_url, "/v2/models/stats")`.

    Raises
    ------
    CourseError
        ServerGone, NoAnswer within `timeout_s`, or Refused, with the reason.
    """
    with errors(url, timeout_s), http_client(url, timeout_s) as http:
        response = http.get(path)
        return _content(response)


def _content(response: httpx.Response) -> Any:
    """Return the JSON of an answer; raise `Refused` with the reason where it says no."""
    try:
        content = response.json()
    except ValueError:
        content = None
    if isinstance(content, dict) and isinstance(content.get("error"), str):
        raise Refused(_PREFIX.sub("", content["error"]).strip())
    if content is None or response.is_error:  # Triton gives a reason with each of these
        raise Refused(
            f"What answers at {response.url} is not Triton's HTTP: status {response.status_code} and "
            f"{response.text[:200]!r}. "
            "By default HTTP has port 8000, gRPC 8001 and the metrics 8002."
        )
    return content


def is_ok(url: str, path: str, timeout_s: float = SHORT_TIMEOUT_S) -> bool:
    """Say whether a health endpoint answers yes."""
    try:
        with http_client(url, timeout_s) as http:
            return http.get(path).status_code == 200
    except (httpx.RequestError, httpx.InvalidURL):
        return False
