"""Ask a running server for text, whole or streamed.

    client = Client("127.0.0.1:8001")                   # gRPC's port; or "http://127.0.0.1:8000", where it is found
    print(client.ask("Name the capital of France.").text)
    for piece in client.stream("Tell me a story.", max_tokens=100):
        print(piece, end="")

What goes wrong is one of the three errors of `inflight.triton.client.connection`.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton import address, records
from inflight.triton.client.connection import SHORT_TIMEOUT_S, Connection, Refused, ServerGone, errors
from inflight.triton.repository.layout import ENGINE, ENSEMBLE
from inflight.triton.repository.request import arrays_for, is_llmapi

GIVE_UP_S = 1  # after its client has stopped waiting, the server ends a whole answer


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

    def __init__(self, pieces: Generator[str, None, None], request_id: str):
        self._pieces = pieces
        self.answer = Answer(request_id=request_id)

    def __iter__(self) -> Iterator[str]:
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

    def __init__(self, url: str, model: str = ENSEMBLE, timeout_s: float = 120):
        self._given = url.rstrip("/")
        self.url = address.grpc_of(self._given)
        self.model = model
        self.timeout_s = timeout_s
        self._config: ModelConfig | None = None
        self._connection = Connection(self.url)
        self._idle = deque([self._connection])  # with no stream at the moment

    def ask(self, text: str, max_tokens: int = 64, **options: Any) -> Answer:
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

    def stream(self, text: str, max_tokens: int = 64, **options: Any) -> Stream:
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
            if self.model == ENSEMBLE:
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
        return bool(self.config().model_transaction_policy.decoupled)

    def close(self) -> None:
        for connection in {self._connection, *self._idle}:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pieces(self, inputs: dict[str, Any], name: str, **options: Any) -> Generator[str, None, None]:
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
    return str(result.as_numpy("text_output").reshape(-1)[0], "utf-8")
