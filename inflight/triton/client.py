"""Ask a running server for text, whole or streamed, and any of its models by the names of tensors.

    client = Client("127.0.0.1:8001")                   # gRPC's port; or "http://127.0.0.1:8000", where it is found
    print(client.ask("Name the capital of France.").text)
    for piece in client.stream("Tell me a story.", max_tokens=100):
        print(piece, end="")

    with Connection("127.0.0.1:8001") as connection:    # any model, by its tensors' names
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
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import grpc
import httpx
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from inflight.errors import CourseError
from inflight.triton import address, records
from inflight.triton.request import ENGINE, arrays_for, is_llmapi
from inflight.triton.request import ENSEMBLE as TEXT_MODEL

SHORT_TIMEOUT_S = 10  # of what Triton answers at once: health, metadata, statistics
GIVE_UP_S = 1  # after its client has stopped waiting, the server ends a whole answer
# Why a model cannot be loaded, with its traceback: more than the 8,192 bytes that gRPC lets through.
MOST_REASON_BYTES = 1 << 20

# In front of Triton's reasons; a connection that failed has no such thing to say.
_PREFIX = re.compile(r"^(\[request id: [^\]]*\] |in ensemble '[^']*', )+")
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
    """The server answered that it will not or cannot do it; the message is Triton's reason, without its prefixes."""


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
        return Refused(_PREFIX.sub("", message).strip())
    return _gone(url)


def _gone(url: str) -> ServerGone:
    """Make the error for an address where nobody answers; it says how the server there died, if it was this user's."""
    what = f"The server at {url} does not answer, or went away in the middle of a request."
    again = "in a notebook by the cell that did, in a terminal by `inflight serve`"
    if death := records.death(url):
        return ServerGone(f"{death} {what} Start it again, {again}.")
    return ServerGone(f"{what} Start it, {again}, and check the port.")


# gRPC -----------------------------------------------------------------------------------------------------------------


def text(*rows: str) -> np.ndarray:
    """Return texts as the array of a BYTES tensor, [rows, 1]."""
    return np.array([[row.encode("utf-8")] for row in rows], np.object_)


def tensors(arrays: dict[str, np.ndarray]) -> list[triton.InferInput]:
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
        return self.result.get_response().parameters["triton_final_response"].bool_param

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

    def infer(self, model: str, arrays: dict[str, np.ndarray], timeout_s: float, **options) -> triton.InferResult:
        """Send a request and wait for its result; `options` as tritonclient's: request_id, parameters, priority, ...

        Raises
        ------
        CourseError
            ServerGone, NoAnswer within `timeout_s`, or Refused.
        """
        with errors(self.url, timeout_s):
            return self.triton.infer(model, tensors(arrays), client_timeout=timeout_s, **options)

    def send(self, number: int, model: str, arrays: dict[str, np.ndarray], **options) -> None:
        """Send a request; its reply, with `number`, is put into `arrived`. Options as for `infer`."""
        with errors(self.url):
            self.triton.async_infer(model, tensors(arrays), partial(self._arrive, number), **options)

    def open_stream(self, number: int = 0) -> None:
        """Open the connection's stream: requests on it reach the server in their order. Its replies have `number`."""
        with errors(self.url):
            self.triton.start_stream(partial(self._arrive, number))
        self._has_stream = True

    def send_on_stream(self, model: str, arrays: dict[str, np.ndarray], request_id: str = "", **options) -> None:
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

    def __exit__(self, *_) -> None:
        self.close()


# HTTP -----------------------------------------------------------------------------------------------------------------


def http_client(url: str, timeout_s: float = SHORT_TIMEOUT_S) -> httpx.Client:
    """Make a client of httpx for the server at "http://host:port"."""
    return httpx.Client(
        base_url=url,
        timeout=timeout_s,
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


# Answers --------------------------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """An answer's text, and when each piece of it arrived.

    Attributes
    ----------
    pieces : list of str
        In the order of their arrival; one when not streamed.
    times_s : list of float
        Seconds from sending the request to the arrival of each piece.
    request_id : str
        The request's name in the server's log and in the engine's iteration log.
    """

    pieces: list[str] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    request_id: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def time_to_first_s(self) -> float:
        """TTFT when streamed; when not, the same as `latency_s`."""
        return self.times_s[0]

    @property
    def latency_s(self) -> float:
        """End-to-end latency: until the last piece was there."""
        return self.times_s[-1]

    @property
    def inter_token_s(self) -> list[float]:
        """ITL: seconds between neighbouring pieces; blank when not streamed."""
        return [after - before for before, after in zip(self.times_s, self.times_s[1:])]


class Stream:
    """Pieces of an answer as they arrive: iterate over it; leave the loop early, or `cancel()`, to end the request.

    Attributes
    ----------
    answer : Answer
        What has come so far.
    """

    def __init__(self, pieces: Generator, request_id: str):
        self._pieces = pieces
        self.answer = Answer(request_id=request_id)

    def __iter__(self):
        started = time.perf_counter()
        try:
            for piece in self._pieces:
                elapsed = time.perf_counter() - started
                self.answer.pieces.append(piece)
                self.answer.times_s.append(elapsed)
                yield piece
        finally:
            self.cancel()

    def cancel(self) -> None:
        """End the request if it still runs; the server frees its slot. May be called twice."""
        self._pieces.close()

    def read(self) -> Answer:
        """Take all pieces and return the answer."""
        for _ in self:
            pass
        return self.answer


class Client:
    """A client for one server. May be used from several threads.

    Parameters
    ----------
    url : str
        "host:port" of gRPC, or "http://host:port", to which `address.grpc_of` finds it.
    model : str
        The text model. Where there is no ensemble and `tensorrt_llm` takes text itself, as TensorRT-LLM's model of
        today does, that one is asked, by its own names of the inputs.
    timeout_s : float
        Longest time to wait for a whole answer, or for the next piece of one. The server gives a whole answer up then.

    Raises
    ------
    CourseError
        It is no address.
    """

    def __init__(self, url: str, model: str = TEXT_MODEL, timeout_s: float = 120):
        self._given = url.rstrip("/")
        self.url = address.grpc_of(self._given)
        self.model = model
        self.timeout_s = timeout_s
        self._config: ModelConfig | None = None
        self._connection = Connection(self.url)
        self._idle = deque([self._connection])  # with no stream at the moment

    def ask(self, text: str, max_tokens: int = 64, **options) -> Answer:
        """Ask for a whole answer.

        Parameters
        ----------
        text : str
        max_tokens : int
            Most tokens of the answer.
        **options
            The model's other inputs by name: temperature, top_k, stop_words, ...

        Raises
        ------
        CourseError
            The server refused the request, did not answer in time, or died; the model has no such input.
        """
        inputs = {"text_input": text, "max_tokens": max_tokens, **options}
        name = _new_name()
        allowed_us = int((self.timeout_s + GIVE_UP_S) * 1e6)  # then nobody waits any more, and the server gives it up
        if self.is_decoupled():  # such a model answers only on a stream
            return Stream(self._pieces(inputs, name, timeout=allowed_us), name).read()
        config, how = self.config(), {"request_id": name, "timeout": allowed_us}
        arrays, started = arrays_for(config, inputs), time.perf_counter()
        result = self._connection.infer(config.name, arrays, self.timeout_s, **how)
        return Answer([_text(result)], [time.perf_counter() - started], name)

    def stream(self, text: str, max_tokens: int = 64, **options) -> Stream:
        """Ask for an answer in pieces, as they are made. The model must be decoupled. Parameters as `ask`."""
        inputs = {"text_input": text, "max_tokens": max_tokens, **options, "stream": True}
        name = _new_name()
        return Stream(self._new(self._pieces(inputs, name)), name)

    def is_live(self) -> bool:
        """Say whether the server answers, whatever its models do."""
        return self._says(lambda triton, **how: triton.is_server_live(**how))

    def is_ready(self) -> bool:
        """Say whether the server answers and every model it was told to load is ready, this client's among them."""
        if not self._says(lambda triton, **how: triton.is_server_ready(**how)):
            return False
        with contextlib.suppress(CourseError):
            name = self.config().name
            return self._says(lambda triton, **how: triton.is_model_ready(name, **how))
        return False

    def _says(self, ask: Callable[..., bool]) -> bool:
        with contextlib.suppress(CourseError), errors(self.url):
            return ask(self._connection.triton, client_timeout=SHORT_TIMEOUT_S)
        return False

    def config(self) -> ModelConfig:
        """Return the model's config, as the server has it: what it takes, and how it answers. It is fetched once."""
        if self._config is None:
            self._config = self._told_config()
        return self._config

    def _told_config(self) -> ModelConfig:
        def told(model: str) -> ModelConfig:
            with errors(self.url):
                return self._connection.triton.get_model_config(model, client_timeout=SHORT_TIMEOUT_S).config

        try:
            return told(self.model)
        except Refused:
            if self.model == TEXT_MODEL:
                with contextlib.suppress(Refused):
                    if is_llmapi(found := told(ENGINE)):
                        return found
            raise
        except ServerGone as error:
            if self.url == self._given or records.at(self._given):
                raise
            raise ServerGone(
                f"Nobody answers over gRPC at {self.url}, where that of {self._given} is looked for: start the server, "
                "or name its gRPC address as host:port."
            ) from error

    def is_decoupled(self) -> bool:
        """Say whether the model may answer a request several times."""
        return self.config().model_transaction_policy.decoupled

    def close(self) -> None:
        for connection in {self._connection, *self._idle}:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _pieces(self, inputs: dict, name: str, **options) -> Generator[str, None, None]:
        """Yield pieces until the server says that it has sent the last; to end the stream ends the request."""
        config, is_over = self.config(), False
        arrays = arrays_for(config, inputs)
        try:  # tritonclient has one stream a connection: whoever asks while others are answered gets another
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self.url)
        try:
            connection.arrived = queue.SimpleQueue()
            connection.open_stream()
            how = {"enable_empty_final_response": True, **options}
            connection.send_on_stream(config.name, arrays, name, **how)
            while not is_over:
                reply = connection.next_reply(self.timeout_s)
                if reply.error is not None:
                    raise reply.error
                is_over = reply.is_final
                if not reply.is_empty:
                    yield _text(reply.result)
        finally:
            connection.end_stream()
            self._idle.append(connection)

    def _new(self, pieces: Generator[str, None, None]) -> Generator[str, None, None]:
        """Yield what is new in each piece: TensorRT-LLM's model of today repeats all that came before in each."""
        said = 0
        with contextlib.closing(pieces):
            for piece in pieces:
                yield piece[said:]
                said = len(piece) if is_llmapi(self.config()) else 0


def _new_name() -> str:
    """Make a random id: it names the request in the log, and nobody else can guess it to stop the request."""
    return uuid.uuid4().hex


def _text(result: triton.InferResult) -> str:
    return result.as_numpy("text_output").reshape(-1)[0].decode("utf-8")
