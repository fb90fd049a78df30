"""Ask a running server: text or tokens, whole or streamed, over gRPC or HTTP.

    client = Client("127.0.0.1:8001")                   # gRPC; "http://127.0.0.1:8000" for HTTP
    print(client.ask("Name the capital of France.").text)
    for piece in client.stream("Tell me a story.", max_tokens=100):
        print(piece, end="")

Every trouble of a request, from whichever library, arrives as one `CourseError`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import triton_to_np_dtype

from inflight.errors import CourseError
from inflight.triton import transport
from inflight.triton.repository.layout import BASELINE
from inflight.triton.transport import Connection, NoAnswer, Refused, Reply

ENGINE = "tensorrt_llm"
STOP_TIMEOUT_S = 5
STOP_AGAIN_S = 0.1

OPTIONS = {
    "temperature": np.float32,
    "repetition_penalty": np.float32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
    "min_length": np.int32,
    "random_seed": np.uint64,
    "end_id": np.int32,
    "num_return_sequences": np.int32,
    "return_log_probs": np.bool_,
    "exclude_input_in_output": np.bool_,
}
# Options of a text request: the ensemble's optional inputs and their types.
TEXT_OPTIONS = {
    **OPTIONS,
    "top_k": np.int32,
    "top_p": np.float32,
    "stop_words": np.object_,
    "bad_words": np.object_,
    "beam_width": np.int32,
}
# The same for a token request: the engine's optional inputs.
TOKEN_OPTIONS = {**OPTIONS, "runtime_top_k": np.int32, "runtime_top_p": np.float32}


@dataclass
class Answer:
    """What came back, and when.

    Attributes
    ----------
    pieces : list
        Text pieces (str) or token lists (list of int) in the order of their arrival; one when not streamed.
    times_s : list of float
        Seconds from sending the request to the arrival of each piece.
    """

    pieces: list = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece]

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

    Parameters
    ----------
    pieces : generator
    stop_after_s : float, optional
        End the request this many seconds after it was sent; what came until then stays in `answer`.
    """

    def __init__(self, pieces: Generator, stop_after_s: float | None = None):
        self._pieces = pieces
        self._stop_after_s = stop_after_s
        self.answer = Answer()

    def __iter__(self):
        started = time.perf_counter()
        try:
            for piece in self._pieces:
                elapsed = time.perf_counter() - started
                self.answer.pieces.append(piece)
                self.answer.times_s.append(elapsed)
                yield piece
                if self._stop_after_s is not None and time.perf_counter() - started >= self._stop_after_s:
                    return
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
        "host:port" for gRPC, "http://host:port" for HTTP.
    model : str
        The text model; `ask_tokens` and `stream_tokens` always go to `tensorrt_llm`.
    timeout_s : float
        Longest time to wait for the next piece of an answer.

    Raises
    ------
    CourseError
        The address has no port.
    """

    def __init__(self, url: str, model: str = "ensemble", timeout_s: float = 120):
        transport.check_address(url)
        self.url = url.rstrip("/")
        self.model = model
        self.timeout_s = timeout_s
        self._configs: dict[str, ModelConfig] = {}
        self._http = transport.is_http(self.url)
        self._connection = None if self._http else Connection(self.url)

    # Text -------------------------------------------------------------------------------------------------------------

    def ask(
        self,
        text: str,
        max_tokens: int = 64,
        stop_after_s: float | None = None,
        request_id: str | None = None,
        **options,
    ) -> Answer:
        """Ask for a whole answer.

        Parameters
        ----------
        text : str
        max_tokens : int
            Most tokens of the answer.
        stop_after_s : float, optional
            Have the engine end the answer this many seconds after the request was sent: it has the tokens so far.
        request_id : str, optional
            What the request is called in the server's log, and what a stop request names; by default a new name. Two
            requests with one name are stopped together.
        **options
            See `TEXT_OPTIONS`: temperature, top_k, stop_words, ...

        Raises
        ------
        CourseError
            The server refused the request, did not answer in time, or died; or `stop_after_s` for a model that no
            engine is behind.
        """
        inputs = {"text_input": text, "max_tokens": max_tokens, **options}
        request_id = request_id or uuid.uuid4().hex
        if stop_after_s is not None and self.model == BASELINE:
            raise CourseError(f"{BASELINE} cannot end a whole answer early: ask for it in pieces, or for fewer tokens.")
        if self._http:
            with _after(stop_after_s, lambda: self._stop_in_engine_http(request_id)):
                return self._ask_http(inputs, request_id)
        with _after(stop_after_s, lambda: self._stop_in_engine(request_id)):
            return self._ask_grpc(self.model, _arrays(inputs, TEXT_OPTIONS), _text, request_id)

    def stream(
        self,
        text: str,
        max_tokens: int = 64,
        stop_after_s: float | None = None,
        request_id: str | None = None,
        **options,
    ) -> Stream:
        """Ask for an answer in pieces, as they are made. The model must be decoupled. Parameters as `ask`."""
        inputs = {"text_input": text, "max_tokens": max_tokens, **options, "stream": True}
        request_id = request_id or uuid.uuid4().hex
        pieces = (
            self._stream_http(inputs, request_id)
            if self._http
            else self._stream_grpc(self.model, _arrays(inputs, TEXT_OPTIONS), _text, request_id)
        )
        return Stream(pieces, stop_after_s)

    # Tokens -----------------------------------------------------------------------------------------------------------

    def ask_tokens(
        self,
        input_ids: list[int],
        request_output_len: int,
        stop_after_s: float | None = None,
        request_id: str | None = None,
        **options,
    ) -> Answer:
        """Ask the engine itself for the whole answer to `input_ids`; options as in `TOKEN_OPTIONS`. gRPC only."""
        arrays = _token_inputs(input_ids, request_output_len, options)
        request_id = request_id or uuid.uuid4().hex
        with _after(stop_after_s, lambda: self._stop_in_engine(request_id)):
            return self._ask_grpc(ENGINE, arrays, _token_ids, request_id)

    def stream_tokens(
        self,
        input_ids: list[int],
        request_output_len: int,
        stop_after_s: float | None = None,
        request_id: str | None = None,
        **options,
    ) -> Stream:
        """Ask the engine itself for tokens as they are made. gRPC only.

        With `stop_after_s`, a second request with the same id and `stop` true ends the first: the engine's own way to
        stop early.
        """
        inputs = _token_inputs(input_ids, request_output_len, {**options, "streaming": True})
        request_id = request_id or uuid.uuid4().hex
        return Stream(self._stream_grpc(ENGINE, inputs, _token_ids, request_id, stop_after_s))

    # The server -------------------------------------------------------------------------------------------------------

    def is_live(self) -> bool:
        """Whether the server answers, whatever its models do."""
        return transport.is_ok(self.url, "/v2/health/live") if self._http else self._grpc.is_live()

    def is_ready(self) -> bool:
        """Whether the server answers, every model it was told to load is ready, and this client's is among them."""
        if self._http:
            paths = "/v2/health/ready", f"/v2/models/{self.model}/ready"
            return all(transport.is_ok(self.url, path) for path in paths)
        return self._grpc.is_ready() and self._grpc.is_model_ready(self.model)

    def metadata(self, model: str | None = None) -> dict:
        """A model's inputs and outputs, as the server tells them: name, datatype, shape."""
        model = model or self.model
        if self._http:
            return transport.get_json(self.url, f"/v2/models/{model}", self.timeout_s)
        return self._grpc.metadata(model, self.timeout_s)

    def is_decoupled(self, model: str | None = None) -> bool:
        """Whether a model may answer a request several times: over gRPC it answers on a stream only then."""
        return self.config(model).model_transaction_policy.decoupled

    def config(self, model: str | None = None) -> ModelConfig:
        """A model's config, as the server has it: what it takes, and how it answers."""
        return self._config(model or self.model)

    def _config(self, model: str, timeout_s: float | None = None) -> ModelConfig:
        if model not in self._configs:
            timeout_s = timeout_s or self.timeout_s
            if self._http:
                content = transport.get_json(self.url, f"/v2/models/{model}/config", timeout_s)
                self._configs[model] = from_json(content)
            else:
                self._configs[model] = self._grpc.config(model, timeout_s)
        return self._configs[model]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    # gRPC -------------------------------------------------------------------------------------------------------------

    @property
    def _grpc(self) -> Connection:
        if self._connection is None:
            raise CourseError(f"Tokens go over gRPC: make the client with the host:port of gRPC, not with {self.url}.")
        return self._connection

    def _stop_in_engine(self, request_id: str) -> None:
        """End the engine's part of an ensemble request that nobody waits for any more.

        Triton does not pass a cancellation on from an ensemble to its models, but it passes on the request's id.
        """
        with suppress(CourseError):  # a server or an engine that is gone has nothing left to stop
            stop = fit(_stop_arrays(), self._config(ENGINE, STOP_TIMEOUT_S))
            with Connection(self.url) as connection:
                connection.open_stream()
                connection.send_on_stream(ENGINE, stop, request_id)
                connection.next_reply(STOP_TIMEOUT_S)

    def _ask_grpc(self, model: str, arrays: dict[str, np.ndarray], read, request_id: str) -> Answer:
        started, connection = time.perf_counter(), self._grpc
        if self.is_decoupled(model):  # such a model answers only on a stream
            pieces = list(self._stream_grpc(model, arrays, read, request_id))
        else:
            arrays = fit(arrays, self._config(model))
            try:
                reply = connection.infer(
                    model, arrays, self.timeout_s, request_id=request_id, timeout=int(self.timeout_s * 1e6)
                )
                pieces = [read(reply)]
            except NoAnswer:  # nobody waits any longer: the time is up, or `close` was called meanwhile
                if model not in (ENGINE, BASELINE):
                    self._stop_in_engine(request_id)
                raise
        return Answer(pieces, [time.perf_counter() - started] * len(pieces))

    def _stream_grpc(
        self, model: str, arrays: dict[str, np.ndarray], read, request_id: str, stop_after_s: float | None = None
    ) -> Generator:
        """Yield pieces until the server says that the last has been sent."""
        url, is_over = self._grpc.url, False
        arrays = fit(arrays, self._config(model))
        num_unfinished = 1  # requests on this stream: the stop request gets a final response of its own
        stop_at = None if stop_after_s is None else time.perf_counter() + stop_after_s
        try:
            with Connection(url) as connection:
                connection.open_stream()
                connection.send_on_stream(model, arrays, request_id, enable_empty_final_response=True)
                while not is_over:
                    wait_s = self.timeout_s if stop_at is None else max(0.0, stop_at - time.perf_counter())
                    try:
                        reply = connection.next_reply(wait_s)
                    except NoAnswer:
                        if stop_at is None:
                            raise
                        stop_at = None
                        connection.send_on_stream(model, fit(_stop_arrays(), self._config(model)), request_id)
                        num_unfinished += 1
                        continue
                    if reply.error is not None:
                        is_over = True
                        raise reply.error
                    num_unfinished -= reply.is_final
                    is_over = num_unfinished == 0
                    if not reply.is_empty:
                        yield read(reply)
        finally:
            if not is_over and model not in (ENGINE, BASELINE):
                self._stop_in_engine(request_id)

    # HTTP -------------------------------------------------------------------------------------------------------------

    def _ask_http(self, inputs: dict, request_id: str) -> Answer:
        content = self._body(inputs, request_id)
        started, path = time.perf_counter(), f"/v2/models/{self.model}/generate"
        try:
            reply = transport.post_json(self.url, path, content, self.timeout_s)
        except NoAnswer:
            self._stop_in_engine_http(request_id)
            raise
        return Answer([self._text_of(reply)], [time.perf_counter() - started])

    def _text_of(self, reply: object) -> str:
        """The text in what HTTP brought; CourseError where there is none, as from another kind of server."""
        if isinstance(reply, dict) and isinstance(reply.get("text_output"), str):
            return reply["text_output"]
        raise CourseError(
            f"{self.model} at {self.url} answered without a text_output: name a model that answers with text."
        )

    def _stream_http(self, inputs: dict, request_id: str) -> Generator[str, None, None]:
        is_over, path = False, f"/v2/models/{self.model}/generate_stream"
        content = self._body(inputs, request_id)
        try:
            with closing(transport.post_stream(self.url, path, content, self.timeout_s)) as pieces:
                for piece in pieces:
                    yield self._text_of(piece)
            is_over = True
        except Refused:
            is_over = True
            raise
        finally:
            if not is_over:
                self._stop_in_engine_http(request_id)

    def _body(self, inputs: dict, request_id: str) -> dict:
        """Inputs of a text request as JSON's content; names and types are checked as they are for gRPC."""
        fitted = fit(_arrays(inputs, TEXT_OPTIONS), self._config(self.model))
        blanks = {name: "" for name in fitted if name not in inputs}
        return {**blanks, **inputs, "id": request_id}

    def _stop_in_engine_http(self, request_id: str) -> None:
        """As `_stop_in_engine`. A server that is gone has nothing left to stop."""
        stop = {name: array.item() for name, array in _stop_arrays().items()}
        path = f"/v2/models/{ENGINE}/generate_stream"
        with (
            suppress(CourseError),
            closing(transport.post_stream(self.url, path, {**stop, "id": request_id}, STOP_TIMEOUT_S)) as pieces,
        ):
            for _ in pieces:  # until the engine has ended it
                pass


# Tensors --------------------------------------------------------------------------------------------------------------


def _arrays(inputs: dict, options: dict) -> dict[str, np.ndarray]:
    """Inputs of a text request as arrays with a batch dimension: [1, n]."""
    types = {"text_input": np.object_, "max_tokens": np.int32, "stream": np.bool_, **options}
    return {name: _array(name, value, types) for name, value in inputs.items()}


def _token_inputs(input_ids: list[int], request_output_len: int, options: dict) -> dict[str, np.ndarray]:
    inputs = {
        "input_ids": input_ids,
        "input_lengths": len(input_ids),
        "request_output_len": request_output_len,
        **options,
    }
    types = {
        "input_ids": np.int32,
        "input_lengths": np.int32,
        "request_output_len": np.int32,
        "streaming": np.bool_,
        **TOKEN_OPTIONS,
    }
    return {name: _array(name, value, types) for name, value in inputs.items()}


def _array(name: str, value, types: dict) -> np.ndarray:
    if name not in types:
        raise CourseError(f"There is no option {name!r}. There are: {', '.join(types)}.")
    values = value if isinstance(value, (list, tuple)) else [value]
    try:
        if types[name] is np.object_:
            return np.array(
                [[item if isinstance(item, bytes) else item.encode("utf-8") for item in values]], np.object_
            )
        if issubclass(types[name], np.integer):
            _check_whole(values, np.iinfo(types[name]))
        return np.array([values], types[name])
    except (ValueError, OverflowError, AttributeError, TypeError) as error:
        raise CourseError(
            f"{name} is {value!r}, which cannot be sent as {np.dtype(types[name]).name} ({error})."
        ) from None


def _check_whole(values: Sequence, limits: np.iinfo) -> None:
    """Refuse what numpy would cut to fit."""
    if not all(isinstance(value, (int, np.integer)) and limits.min <= value <= limits.max for value in values):
        raise ValueError(f"it takes whole numbers from {limits.min} to {limits.max}")


@contextmanager
def _after(seconds: float | None, stop: Callable[[], None]) -> Iterator[None]:
    """Have `stop` called after so many seconds, and again until the block has ended; None: never.

    Again, because a request may still be on its way to the engine, which then knows nothing of it.
    """
    if seconds is None:
        yield
        return
    ended = threading.Event()

    def wait_and_stop() -> None:
        wait_s = seconds
        while not ended.wait(wait_s):
            stop()
            wait_s = STOP_AGAIN_S

    thread = threading.Thread(target=wait_and_stop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _stop_arrays() -> dict[str, np.ndarray]:
    """A stop request: what is required, with any content, and `stop`."""
    zero = np.zeros((1, 1), np.int32)
    return {"input_ids": zero, "input_lengths": zero, "request_output_len": zero, "stop": np.array([[True]])}


def _text(reply: Reply) -> str:
    return reply.tensor("text_output").reshape(-1)[0].decode("utf-8")


def _token_ids(reply: Reply) -> list[int]:
    return reply.tensor("output_ids").reshape(-1).tolist()


# What the model takes ------------------------------------------------------------------------------------------------
# Its contract may be an older one, or the model a plainer one: its config says so.

WORDS = ("bad_words", "stop_words")  # which TensorRT-LLM 0.5 requires


def from_json(content: dict) -> ModelConfig:
    """The config that a server tells over HTTP; of a newer server, without the fields that are unknown here."""
    return json_format.ParseDict(content, ModelConfig(), ignore_unknown_fields=True)


def fit(arrays: dict[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Arrays of a request, [1, n] each, as the model of `config` takes them.

    Whole numbers get the model's own type, words that it requires are blank where none are given, and the batch
    dimension goes where the model has none. What the model does not know is left as it is, for the server to refuse.
    """
    inputs = {tensor.name: tensor for tensor in config.input}
    blanks = {name: np.array([[b""]], np.object_) for name in WORDS if name in inputs and not inputs[name].optional}
    return {
        name: _fit(array, inputs[name], config.max_batch_size > 0) if name in inputs else array
        for name, array in {**blanks, **arrays}.items()
    }


def _fit(array: np.ndarray, tensor, is_batched: bool) -> np.ndarray:
    if np.issubdtype(array.dtype, np.integer):
        wanted = np.dtype(triton_to_np_dtype(DataType.Name(tensor.data_type).removeprefix("TYPE_")))
        if np.issubdtype(wanted, np.integer):
            array = array.astype(wanted)
    return array[0] if not is_batched and array.ndim == len(tensor.dims) + 1 else array
