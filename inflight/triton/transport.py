"""The one way to a running Triton: its gRPC calls and streams, its HTTP endpoints, and whatever goes wrong with them.

    with Connection("127.0.0.1:8001") as connection:
        reply = connection.infer("text-embedding", {"text_input": text("a black hole")}, timeout_s=60)
        reply.tensor("embedding")
    get_json("http://127.0.0.1:8000", "/v2/models/stats")["model_stats"]

Whatever the libraries raise becomes a CourseError of one of three kinds: `ServerGone`, `NoAnswer` (in time), or
`Refused` with Triton's reason. Every gRPC call goes through a `Connection` and every HTTP call through `_exchange`,
which send the server's key along if it is this user's own (see `keys`).
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import InferenceServerClientPlugin
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight.errors import CourseError
from inflight.triton import doors, keys
from inflight.triton.lookout import Lookout

SHORT_TIMEOUT_S = 10  # of what Triton answers at once: health, metadata, statistics

# In front of Triton's reasons; a connection that failed has no such thing to say.
_PREFIX = re.compile(r"(\[request id: [^\]]*\] |in ensemble '[^']*', )+")
# What Triton says itself under the status UNAVAILABLE, which is else that of a server that cannot be reached.
_TRITONS_OWN = re.compile(
    r"\[request id: |in ensemble |Request for unknown |Exceeds maximum queue size|Request timeout|"
    r"This protocol is restricted"
)
_RESTRICTED = re.compile(r"This (API|protocol) is restricted, expecting header ")
UNIX = "unix:"  # in front of the path of a socket, in place of an address


# What may go wrong ----------------------------------------------------------------------------------------------------


class ServerGone(CourseError):
    """Nobody answers at the address, or the connection broke."""


class NoAnswer(CourseError):
    """Nothing came within the time, or the client stopped waiting."""


class ModelGone(ServerGone):
    """The server answers, but the model does not run any more."""

    def __init__(self, url: str, model: str):
        super().__init__(
            f"The model {model!r} at {url} went away in the middle of a request: its process ended, or it was "
            "unloaded. Ask again when it is ready; the server's log says what happened."
        )


class Refused(CourseError):
    """The server answered that it will not or cannot do it; the message is Triton's reason, without its prefixes."""


@contextlib.contextmanager
def errors(url: str, timeout_s: float | None = None) -> Iterator[None]:
    """Whatever tritonclient, gRPC or httpx raise in the block, as a CourseError; see `course_error`."""
    try:
        yield
    except (InferenceServerException, grpc.RpcError, httpx.RequestError, httpx.InvalidURL) as error:
        raise course_error(error, url, timeout_s) from error
    except ValueError as error:
        if "closed" not in str(error):  # what gRPC says of a channel that this process has closed
            raise
        raise NoAnswer(f"The connection to {url} was closed before the answer was there.") from error


def course_error(error: Exception, url: str, timeout_s: float | None = None) -> CourseError:
    """What an exception of tritonclient, gRPC or httpx means.

    Parameters
    ----------
    url : str
        The server that was called.
    timeout_s : float, optional
        The time limit, if the caller chose one.

    Returns
    -------
    ServerGone, NoAnswer or Refused
    """
    status = error.status() or "" if isinstance(error, InferenceServerException) else ""
    if isinstance(error, httpx.TimeoutException) or "DEADLINE_EXCEEDED" in status:
        return _late(url, timeout_s)
    if "CANCELLED" in status:
        return NoAnswer(f"The request to {url} was ended before its answer was there.")
    if isinstance(error, InferenceServerException):
        message = error.message() or ""
        if "UNAVAILABLE" not in status or _TRITONS_OWN.match(message):
            return Refused(_reason(message))
    return _gone(url)


def _gone(url: str) -> ServerGone:
    return ServerGone(
        doors.mistaken(url)
        or f"The server at {url} does not answer, or went away in the middle of a request. Start it, in a notebook by "
        "the cell that did, in a terminal by `inflight serve`, and check the port."
    )


def _late(url: str, timeout_s: float | None) -> NoAnswer:
    if timeout_s is None:
        return NoAnswer(f"No answer from {url} within {SHORT_TIMEOUT_S} s. Look at the server's log.")
    return NoAnswer(
        f"No answer from {url} within {timeout_s:g} s. Wait longer with timeout_s, or look at the server's log."
    )


def _reason(message: str) -> str:
    if _RESTRICTED.match(message):
        return (
            "The server does this only for the user who started it, and the request had no key of theirs. Ask as that "
            f"user, on the same machine, and with the address {keys.HOST}"
        )
    prefix = _PREFIX.match(message)
    return message[prefix.end() if prefix else 0 :].strip()


# gRPC -----------------------------------------------------------------------------------------------------------------


def text(*rows: str) -> np.ndarray:
    """Texts as the array of a BYTES tensor, [rows, 1]."""
    return np.array([[row.encode("utf-8")] for row in rows], np.object_)


def tensors(arrays: dict[str, np.ndarray]) -> list[triton.InferInput]:
    """Arrays by name as inputs of a request; the datatype is that of the array, BYTES for objects."""
    return [
        triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in arrays.items()
    ]


class Reply(NamedTuple):
    """What came back for a request: tensors, or the reason why there are none.

    Attributes
    ----------
    number : int
        The number that the sender gave to the request, or to the stream.
    arrived_s : float
        When it arrived, in seconds of `time.perf_counter`.
    result : InferResult
        None when there is an error.
    error : ServerGone, NoAnswer, Refused or None
    """

    number: int
    arrived_s: float
    result: Any
    error: CourseError | None

    @property
    def is_final(self) -> bool:
        """Whether Triton says that nothing more comes for the request; asked for when it is sent."""
        return self._result.get_response().parameters["triton_final_response"].bool_param

    @property
    def is_empty(self) -> bool:
        """Whether it has no tensors: a final response may be nothing but that."""
        return not self._result.get_response().outputs

    def tensor(self, name: str) -> np.ndarray:
        """The array of an output that the reply has."""
        return self._result.as_numpy(name)

    @property
    def _result(self) -> triton.InferResult:
        assert self.result is not None, self.error  # whoever asks has looked for an error
        return self.result


class Connection:
    """A gRPC connection to one server. `infer`, `send` and what is read of models may be called from several threads.

    Parameters
    ----------
    url : str
        "host:port".
    arrived : SimpleQueue, optional
        Where the replies to `send` and `send_on_stream` are put; several connections may share one.
    """

    def __init__(self, url: str, arrived: queue.SimpleQueue[Reply] | None = None):
        if "://" in url:
            raise CourseError(f"{url} is an address for HTTP, and here gRPC is needed: write host:port of its gRPC.")
        if not url.startswith(UNIX):
            doors.check(url)
        self.url = url
        self.arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue() if arrived is None else arrived
        self._client = triton.InferenceServerClient(url, channel_args=_channel_args(url))
        self._client.register_plugin(KeySender(url))
        self._has_stream = False

    # One request, one reply -------------------------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        arrays: dict[str, np.ndarray],
        timeout_s: float,
        is_gone: Callable[[], bool] | None = None,
        **options,
    ) -> Reply:
        """Send a request and wait for its reply; `options` as tritonclient's: request_id, parameters, priority, ...

        Parameters
        ----------
        is_gone : callable, optional
            Asked from time to time whether the model is gone, so that nobody waits for it in vain.

        Raises
        ------
        CourseError
            ServerGone, NoAnswer within `timeout_s`, or Refused.
        """
        if is_gone is None:
            with errors(self.url, timeout_s):
                result = self._client.infer(model, tensors(arrays), client_timeout=timeout_s, **options)
            return Reply(0, time.perf_counter(), result, None)
        return self._infer_unless_gone(model, arrays, timeout_s, is_gone, options)

    def _infer_unless_gone(self, model: str, arrays: dict, timeout_s: float, is_gone, options: dict) -> Reply:
        arrived: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        with errors(self.url, timeout_s):
            call = self._client.async_infer(
                model,
                tensors(arrays),
                lambda result, error: arrived.put((result, error)),
                client_timeout=timeout_s,
                **options,
            )
            with Lookout(is_gone, lambda: arrived.put((None, ModelGone(self.url, model)))):
                try:
                    result, error = arrived.get()
                except BaseException:  # an interrupt: nobody waits any longer
                    call.cancel()
                    raise
            if isinstance(error, ModelGone):
                call.cancel()
            if error is not None:
                raise error
        return Reply(0, time.perf_counter(), result, None)

    def send(self, number: int, model: str, arrays: dict[str, np.ndarray], **options) -> None:
        """Send a request; its reply, with `number`, is put into `arrived`. Options as for `infer`."""
        with errors(self.url):
            self._client.async_infer(model, tensors(arrays), partial(self._arrive, number), **options)

    # Requests on a stream ---------------------------------------------------------------------------------------------

    def open_stream(self, number: int = 0) -> None:
        """Open the connection's stream: requests on it reach the server in their order. Its replies have `number`."""
        with errors(self.url):
            self._client.start_stream(partial(self._arrive, number))
        self._has_stream = True

    def send_on_stream(self, model: str, arrays: dict[str, np.ndarray], request_id: str = "", **options) -> None:
        """Send a request on the stream; options as tritonclient's: enable_empty_final_response, sequence_id, ..."""
        # A stream that is broken refuses; by then its callback has got the error that broke it, which says more.
        with contextlib.suppress(InferenceServerException):
            self._client.async_stream_infer(model, tensors(arrays), request_id=request_id, **options)

    def next_reply(self, timeout_s: float) -> Reply:
        """The next that arrives; its `error` is not raised. NoAnswer when nothing does within `timeout_s`."""
        try:
            return self.arrived.get(timeout=timeout_s)
        except queue.Empty:
            raise _late(self.url, timeout_s) from None

    def _arrive(self, number: int, result: triton.InferResult | None, error: InferenceServerException | None) -> None:
        arrived_s = time.perf_counter()
        trouble = None if error is None else course_error(error, self.url)
        # The error of a request on a stream has no status; one that has a status has ended the stream.
        if self._has_stream and error is not None and error.status() and isinstance(trouble, Refused):
            trouble = _gone(self.url)
        self.arrived.put(Reply(number, arrived_s, result, trouble))

    # The server -------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """Make the connection now, so that it is no part of the first request. Raises ServerGone."""
        with errors(self.url):
            self._client.is_server_live(client_timeout=SHORT_TIMEOUT_S)

    def is_live(self) -> bool:
        """Whether the server answers."""
        with contextlib.suppress(CourseError), errors(self.url):
            return self._client.is_server_live(client_timeout=SHORT_TIMEOUT_S)
        return False

    def is_ready(self) -> bool:
        """Whether the server answers and every model it was told to load is ready."""
        with contextlib.suppress(CourseError), errors(self.url):
            return self._client.is_server_ready(client_timeout=SHORT_TIMEOUT_S)
        return False

    def is_model_ready(self, model: str) -> bool:
        """Whether the server answers, and takes requests for a model."""
        with contextlib.suppress(CourseError), errors(self.url):
            return self._client.is_model_ready(model, client_timeout=SHORT_TIMEOUT_S)
        return False

    def is_model_gone(self, model: str) -> bool:
        """Whether the server runs on without the model. One that is stopping answers what it has taken in."""
        if self.is_model_ready(model):
            return False
        with contextlib.suppress(CourseError), errors(self.url):
            return self._client.is_server_live(client_timeout=SHORT_TIMEOUT_S)
        return False

    def lookout(self, model: str, is_gone: Callable[[], bool], number: int = 0) -> Lookout:
        """For the time of a request on the stream: if its model is gone, `next_reply` has the error."""

        def tell() -> None:
            self.arrived.put(Reply(number, time.perf_counter(), None, ModelGone(self.url, model)))

        return Lookout(is_gone, tell)

    def metadata(self, model: str, timeout_s: float) -> dict:
        """A model's inputs and outputs, as the server tells them."""
        with errors(self.url, timeout_s):
            return self._client.get_model_metadata(model, as_json=True, client_timeout=timeout_s)

    def config(self, model: str, timeout_s: float) -> ModelConfig:
        """A model's config, as the server has it."""
        with errors(self.url, timeout_s):
            return self._client.get_model_config(model, client_timeout=timeout_s).config

    def close(self) -> None:
        """End the stream with all that is under way on it, and the connection."""
        if self._has_stream:
            self._client.stop_stream(cancel_requests=True)
            self._has_stream = False
        self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class KeySender(InferenceServerClientPlugin):
    """For a client of tritonclient: `client.register_plugin(KeySender(url))` has it send the key of the server."""

    def __init__(self, url: str):
        self._url = url

    def __call__(self, request) -> None:
        request.headers = {**request.headers, **keys.headers(self._url)}


def _channel_args(url: str) -> list[tuple[str, int]]:
    """Those of tritonclient, and for this machine no proxy, which would get what is sent."""
    return [
        ("grpc.max_send_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
        ("grpc.max_receive_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
        ("grpc.enable_http_proxy", int(not keys.is_local(url))),
    ]


# HTTP -----------------------------------------------------------------------------------------------------------------


def get_json(url: str, path: str, timeout_s: float | None = None) -> Any:
    """What an endpoint tells, as in `get_json(server.http_url, "/v2/models/stats")`.

    Parameters
    ----------
    url : str
        "http://host:port".
    path : str
        Of the endpoint, from "/" on.
    timeout_s : float, optional
        Longest time to wait; by default SHORT_TIMEOUT_S.

    Raises
    ------
    CourseError
        ServerGone, NoAnswer, or Refused.
    """
    with _exchange("GET", url, path, None, timeout_s) as response:
        content = _content(response)
        if content is None:  # as the port of the metrics answers, whatever it is asked
            raise _unexpected("", response)
        return content


def post_json(
    url: str, path: str, body: dict, timeout_s: float, model: str = "", is_gone: Callable[[], bool] | None = None
) -> Any:
    """What an endpoint answers to `body`; None when it answers nothing. Parameters and errors as of `get_json`.

    With `is_gone`, which is asked from time to time, nobody waits in vain for a `model` that is gone.
    """
    with _unless_gone(url, model, is_gone) as wire, _exchange("POST", url, path, body, timeout_s, wire) as response:
        return _content(response)


def post_stream(
    url: str, path: str, body: dict, timeout_s: float, model: str = "", is_gone: Callable[[], bool] | None = None
) -> Generator[dict, None, None]:
    """What an endpoint answers to `body` piece by piece, as server-sent events. As `post_json`; may be closed early."""
    with _unless_gone(url, model, is_gone) as wire, _exchange("POST", url, path, body, timeout_s, wire) as response:
        if response.status_code != 200:
            _content(response)
        for line in response.iter_lines():
            wire.has_come()
            if line.startswith("data:"):
                yield _parsed(line, response)


class Wire:
    """The socket of one HTTP request, which another thread may cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self.has_come: Callable[[], None] = lambda: None  # called with each line
        self._socket: socket.socket | None = None

    def trace(self, event: str, info: dict) -> None:
        """Called by httpx as the request goes on."""
        if event.startswith("connection.connect_") and event.endswith(".complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.is_cut:
                self.cut()

    def cut(self) -> None:
        """Have whoever reads from the socket find it closed, now or as soon as it is there."""
        self.is_cut = True
        if self._socket is not None:
            with contextlib.suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _unless_gone(url: str, model: str, is_gone: Callable[[], bool] | None) -> Iterator[Wire]:
    """For the time of a request: if its model is gone, cut its wire. Raises ModelGone then."""
    wire = Wire()
    if is_gone is None:
        yield wire
        return
    try:
        with Lookout(is_gone, wire.cut) as lookout:
            wire.has_come = lookout.has_come
            yield wire
    except ServerGone:
        if wire.is_cut:
            raise ModelGone(url, model) from None
        raise


def get_text(url: str) -> str:
    """A page, such as /metrics. Errors as of `get_json`."""
    with _exchange("GET", url, "", None, None) as response:
        return response.read().decode("utf-8", "replace")


def is_model_gone(url: str, model: str) -> bool:
    """Whether a server runs on without a model. One that is stopping answers what it has taken in."""
    return not is_ok(url, f"/v2/models/{model}/ready") and is_ok(url, "/v2/health/live")


def is_ok(url: str, path: str, timeout_s: float | None = None) -> bool:
    """Whether an endpoint of health, which is open to everybody, answers, and answers yes."""
    with (
        contextlib.suppress(ServerGone, NoAnswer),
        _exchange("GET", url, path, None, timeout_s, is_open=True) as response,
    ):
        return response.status_code == 200
    return False


@contextlib.contextmanager
def _exchange(
    method: str,
    url: str,
    path: str,
    body: dict | None,
    timeout_s: float | None,
    wire: Wire | None = None,
    is_open: bool = False,
) -> Iterator[httpx.Response]:
    extensions = {} if wire is None else {"trace": wire.trace}
    headers = {} if is_open else keys.headers(url)
    limit_s = SHORT_TIMEOUT_S if timeout_s is None else timeout_s
    content = None if body is None else _json(body)
    socket_path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
    address = f"http://{keys.HOST}/metrics" if socket_path else url + path
    with (
        errors(url, timeout_s),
        httpx.Client(
            transport=httpx.HTTPTransport(uds=socket_path) if socket_path else None,
            timeout=limit_s,
            verify=_tls(),
            trust_env=not keys.is_local(address),  # a proxy would get what is sent
            follow_redirects=False,  # another address would
        ) as client,
        client.stream(method, address, content=content, headers=headers, extensions=extensions) as response,
    ):
        yield response


@cache
def _tls() -> ssl.SSLContext:
    """Made once: httpx makes one for every call otherwise, which takes longer than the call."""
    return httpx.create_ssl_context()


def _json(body: dict) -> str:
    try:
        return json.dumps(body, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise CourseError(f"The request cannot be written as JSON ({error}): give finite numbers and text.") from None


def _content(response: httpx.Response) -> Any:
    """The JSON of a whole answer; None of an empty one that says yes."""
    found = response.read().decode("utf-8", "replace")
    return None if response.status_code == 200 and not found else _parsed(found, response)


def _parsed(found: str, response: httpx.Response) -> Any:
    found = found.removeprefix("data:").strip()
    try:
        content = json.loads(found)
    except json.JSONDecodeError:
        raise _unexpected(found, response) from None
    if isinstance(content, dict) and isinstance(content.get("error"), str):
        raise Refused(_reason(content["error"]))
    if response.status_code >= 400:  # Triton gives a reason with each of these
        raise _unexpected(found, response)
    return content


def _unexpected(found: str, response: httpx.Response) -> CourseError:
    """What Triton never answers: who else it is that answers, if that can be told."""
    url = response.url
    mistake = doors.mistaken(f"{url.scheme}://{url.netloc.decode()}") if url.port else None
    if mistake:
        return ServerGone(mistake)
    return Refused(f"The server answered with status {response.status_code} and {found[:200]!r}.")
