"""The one way to a running Triton: its gRPC calls and streams, its HTTP endpoints, and whatever goes wrong with them.

    with Connection("127.0.0.1:8001") as connection:
        reply = connection.infer("text-embedding", {"text_input": text("a black hole")}, timeout_s=60)
        reply.tensor("embedding")
    get_json("http://127.0.0.1:8000", "/v2/models/stats")["model_stats"]

tritonclient speaks gRPC, httpx HTTP. Whatever they raise becomes a CourseError of one of three kinds: `ServerGone`,
`NoAnswer` (in time), or `Refused` with Triton's reason. HTTP calls carry the key of a server of this user (`keys`).
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import ssl
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight.errors import CourseError
from inflight.triton import keys, records

START_AGAIN = "in a notebook by the cell that did, in a terminal by `inflight serve`"
SHORT_TIMEOUT_S = 10  # of what Triton answers at once: health, metadata, statistics
UNIX = "unix:"  # in front of the path of a socket, in place of an address

# In front of Triton's reasons; a connection that failed has no such thing to say.
_PREFIX = re.compile(r"(\[request id: [^\]]*\] |in ensemble '[^']*', )+")
# What Triton says itself under the status UNAVAILABLE, which is else that of a server that cannot be reached.
_TRITONS_OWN = re.compile(
    r"\[request id: |in ensemble |Request for unknown |Exceeds maximum queue size|Request timeout|"
    r"This protocol is restricted"
)
_RESTRICTED = re.compile(r"This (API|protocol) is restricted, expecting header ")


# What may go wrong ----------------------------------------------------------------------------------------------------


class ServerGone(CourseError):
    """Nobody answers at the address, or the connection broke."""


class NoAnswer(CourseError):
    """Nothing came within the time, or the client stopped waiting."""


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
    """What an exception of tritonclient, gRPC or httpx means: ServerGone, NoAnswer (in `timeout_s`), or Refused."""
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
    """Nobody answers at an address: how the server there died, if one of this user's has."""
    if death := records.death(url):
        return ServerGone(f"{death} The server at {url} does not answer any more. Start it again, {START_AGAIN}.")
    return ServerGone(
        f"The server at {url} does not answer, or went away in the middle of a request. Start it, {START_AGAIN}, and "
        "check the port."
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
            "user, on the same machine, and with the address that it said at its start"
        )
    prefix = _PREFIX.match(message)
    return message[prefix.end() if prefix else 0 :].strip()


def sentence(reason: str) -> str:
    """Triton's reason without the traceback that Python models add: the sentence of a CourseError if there is one."""
    for line in reason.splitlines():
        if told := re.search(r"(?:CourseError|SchedulerError): (.*)", line):
            return told[1].strip()
    return " ".join(reason.partition("\n\nAt:")[0].split())


# Addresses ------------------------------------------------------------------------------------------------------------


def is_http(url: str) -> bool:
    """Whether an address is one of HTTP, "http://…" or "unix:/…", and not of gRPC, "host:port" or "unix:///…"."""
    return url.startswith(("http://", "https://")) or (url.startswith(UNIX) and not url.startswith(f"{UNIX}//"))


def is_local(url: str) -> bool:
    """Whether the address is on this machine, which no proxy is ever asked for."""
    host = url.rpartition("://")[2].partition("/")[0].rpartition(":")[0]
    return url.startswith(UNIX) or host in ("127.0.0.1", "localhost", "[::1]")


def check_address(url: str) -> None:
    """Refuse what is neither "host:port" nor "http://host:port", with a CourseError."""
    scheme, _, rest = url.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not url.startswith(UNIX) and not (scheme in ("", "http", "https") and host and port.isdecimal()):
        raise CourseError(
            f"{url!r} is no address of a server. Write host:port for gRPC, such as 127.0.0.1:8001, or http://host:port "
            "for HTTP, such as http://127.0.0.1:8000."
        )


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
        return self.result.get_response().parameters["triton_final_response"].bool_param

    @property
    def is_empty(self) -> bool:
        """Whether it has no tensors: a final response may be nothing but that."""
        return not self.result.get_response().outputs

    def tensor(self, name: str) -> np.ndarray:
        """The array of an output that the reply has."""
        return self.result.as_numpy(name)


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
        if is_http(url):
            raise CourseError(f"{url} is an address for HTTP, and here gRPC is needed: write host:port of its gRPC.")
        check_address(url)
        self.url = url
        self.arrived: queue.SimpleQueue[Reply] = queue.SimpleQueue() if arrived is None else arrived
        options = [  # tritonclient's own, and for this machine no proxy, which would get what is sent
            ("grpc.max_send_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
            ("grpc.max_receive_message_length", triton.MAX_GRPC_MESSAGE_SIZE),
            ("grpc.enable_http_proxy", int(not is_local(url))),
        ]
        self._client = triton.InferenceServerClient(url, channel_args=options)
        self._has_stream = False

    def infer(self, model: str, arrays: dict[str, np.ndarray], timeout_s: float, **options) -> Reply:
        """Send a request and wait for its reply; `options` as tritonclient's: request_id, parameters, priority, ...

        Raises
        ------
        CourseError
            ServerGone, NoAnswer within `timeout_s`, or Refused.
        """
        arrived: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        with errors(self.url, timeout_s):
            call = self._client.async_infer(
                model,
                tensors(arrays),
                lambda result, error: arrived.put((result, error)),
                client_timeout=timeout_s,
                **options,
            )
            try:
                result, error = arrived.get()
            except BaseException:  # an interrupt: nobody waits any longer
                call.cancel()
                raise
            if error is not None:
                raise error
        return Reply(0, time.perf_counter(), result, None)

    def send(self, number: int, model: str, arrays: dict[str, np.ndarray], **options) -> None:
        """Send a request; its reply, with `number`, is put into `arrived`. Options as for `infer`."""
        with errors(self.url):
            self._client.async_infer(model, tensors(arrays), partial(self._arrive, number), **options)

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

    def connect(self) -> None:
        """Make the connection now, so that it is no part of the first request. Raises ServerGone."""
        with errors(self.url):
            self._client.is_server_live(client_timeout=SHORT_TIMEOUT_S)

    def is_live(self) -> bool:
        """Whether the server answers."""
        return self._says(self._client.is_server_live)

    def is_ready(self) -> bool:
        """Whether the server answers and every model it was told to load is ready."""
        return self._says(self._client.is_server_ready)

    def is_model_ready(self, model: str) -> bool:
        """Whether the server answers, and takes requests for a model."""
        return self._says(partial(self._client.is_model_ready, model))

    def _says(self, ask: Callable[..., bool]) -> bool:
        with contextlib.suppress(CourseError), errors(self.url):
            return ask(client_timeout=SHORT_TIMEOUT_S)
        return False

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


# HTTP -----------------------------------------------------------------------------------------------------------------


def get_json(url: str, path: str, timeout_s: float | None = None) -> Any:
    """What an endpoint tells, as in `get_json(server.http_url, "/v2/models/stats")`. Raises a CourseError."""
    with _exchange("GET", url, path, None, timeout_s) as response:
        content = _content(response)
        if content is None:  # as the port of the metrics answers, whatever it is asked
            raise _unexpected("", response)
        return content


def post_json(url: str, path: str, body: dict, timeout_s: float) -> Any:
    """What an endpoint answers to `body`; None when it answers nothing. Raises a CourseError."""
    with _exchange("POST", url, path, body, timeout_s) as response:
        return _content(response)


def post_stream(url: str, path: str, body: dict, timeout_s: float) -> Generator[dict, None, None]:
    """What an endpoint answers to `body` piece by piece, as server-sent events. As `post_json`; may be closed early."""
    with _exchange("POST", url, path, body, timeout_s) as response:
        if response.status_code != 200:
            _content(response)
        for line in response.iter_lines():
            if line.startswith("data:"):
                yield _parsed(line, response)


def get_text(url: str) -> str:
    """A page, such as /metrics; of a private server the path of its socket, "unix:/…". Raises a CourseError."""
    with _exchange("GET", url, "/metrics" if url.startswith(UNIX) else "", None, None) as response:
        return response.read().decode("utf-8", "replace")


def is_ok(url: str, path: str, timeout_s: float | None = None) -> bool:
    """Whether an endpoint of health answers, and answers yes."""
    with contextlib.suppress(ServerGone, NoAnswer), _exchange("GET", url, path, None, timeout_s) as response:
        return response.status_code == 200
    return False


def http_client(url: str, timeout_s: float = SHORT_TIMEOUT_S) -> httpx.Client:
    """A client of httpx for "http://host:port", or for the socket at "unix:/…"."""
    path = url.removeprefix(UNIX) if url.startswith(UNIX) else None
    return httpx.Client(
        base_url="http://localhost" if path else url,
        transport=httpx.HTTPTransport(uds=path) if path else None,
        timeout=timeout_s,
        verify=_tls(),
        trust_env=not is_local(url),  # a proxy would get what is sent
        follow_redirects=False,  # another address would
    )


@contextlib.contextmanager
def _exchange(method: str, url: str, path: str, body: dict | None, timeout_s: float | None) -> Iterator[httpx.Response]:
    try:
        content = None if body is None else json.dumps(body, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise CourseError(f"The request cannot be written as JSON ({error}): give finite numbers and text.") from None
    address = f"http://localhost{path}" if url.startswith(UNIX) else url + path
    limit_s = SHORT_TIMEOUT_S if timeout_s is None else timeout_s
    with (
        errors(url, timeout_s),
        http_client(url, limit_s) as client,
        client.stream(method, address, content=content, headers=keys.headers(url)) as response,
    ):
        yield response


@cache
def _tls() -> ssl.SSLContext:
    """Made once: httpx makes one for every call otherwise, which takes longer than the call."""
    return httpx.create_ssl_context()


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
    """What Triton never answers over HTTP: the port may be its gRPC's, its metrics', or another program's."""
    return Refused(
        f"What answers at {response.url} is not Triton's HTTP: status {response.status_code} and {found[:200]!r}. By "
        "default HTTP has port 8000, gRPC 8001 and the metrics 8002."
    )
