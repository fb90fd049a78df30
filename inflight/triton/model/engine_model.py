"""Base class of `tensorrt_llm` and `llmapi`: hands requests to the engine, sends its responses, ends requests early.

    class TritonPythonModel(EngineModel):
        place = "tensorrt_llm"                      # a column of the table in `request`: the names of its tensors

        def initialize(self, args):
            self.start(args, Executor.load(...), ...)

        def prompts(self, request, running):        # the engine's request, and what makes a message of a response
            asked = self.asked(request)
            ...
            return [(engine_request(asked), message)]

Imported by `model.py` files, which run in a process that Triton starts; `triton_python_backend_utils` exists only
there.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from inflight.engine.messages import Request, Response
from inflight.errors import CourseError
from inflight.triton.model import python_model
from inflight.triton.repository.layout import ENGINE, OLDEST_CONTRACT
from inflight.triton.repository.request import FIELDS, Input

if TYPE_CHECKING:
    from inflight.engine.executor import Executor

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MAX_ID_LENGTH = 1024  # characters of a request's id, which is kept as long as the request runs


@dataclass(eq=False)
class Running:
    """A request that the engine has, of one prompt or, where the model is decoupled, of several.

    `request_id` is the client's name for it, in Triton's log and the engine's; other requests may have the same.
    `stop_id` is a second, random id, known only to a client that has received a response of this request.
    `numbers` are the engine's ids of its prompts that are still being answered.
    """

    request_id: str
    sender: Any
    wants_code: bool = False  # of an error
    stop_id: str = field(default_factory=lambda: secrets.token_hex(16))
    numbers: set[int] = field(default_factory=set)
    is_over: bool = False  # its last response has left
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while a response leaves


class EngineModel:
    """A Triton model whose requests the engine answers.

    `execute` only hands requests to the engine; responses leave from the engine's thread when their tokens are there.
    So short requests finish before long ones that came earlier, whether the model is decoupled or not.
    """

    place: ClassVar[str]
    decoupled_setting: ClassVar[str] = "decoupled_mode"  # what makes it decoupled

    def prompts(self, request: Any, running: Running) -> list[tuple[Request, Callable[[Response], Any]]]:
        """Return the engine's request for each prompt, with a function that makes Triton's message of a response.

        For a response that is not the last, the function may return None: nothing is sent then.
        """
        raise NotImplementedError

    def stopped(self, request: Any) -> Any:
        """Make the response to a request that has ended another."""
        raise NotImplementedError

    def end(self, number: int) -> None:
        """Have the engine end a prompt, for a request with `stop`."""
        self.executor.stop_request(number)

    def start(
        self,
        args: dict[str, Any],
        executor: Executor,
        decoupled: bool,
        allotted_time_ms: float,
        cancellation_check_period_ms: int,
        stats_check_period_ms: int,
    ) -> None:
        """Begin to take requests. `allotted_time_ms` is how long one may take, its wait included; 0: no limit."""
        self.executor, self.decoupled, self.allotted_time_ms = executor, decoupled, allotted_time_ms
        self._inputs: list[tuple[Input, str]] = [  # with what each asks for
            (own, known.asks)
            for known in FIELDS
            if known.asks not in ("", "stop") and (own := known.tensor(self.place))
        ]
        pb_utils.Logger.log_info(f"The engine computes {executor.model.info.precision}.")
        self.running: set[Running] = set()
        self.lock = threading.Lock()  # of what runs: no final response leaves while it is held
        metrics = EngineMetrics(args, executor)
        jobs = [(self._cancel_abandoned, cancellation_check_period_ms), (metrics.update, stats_check_period_ms)]
        self.closing = threading.Event()
        self.threads = [threading.Thread(target=self._repeat, args=job, daemon=True) for job in jobs]
        for thread in self.threads:
            thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                if python_model.scalar(request, "stop", False):
                    self._stop(request.request_id())
                    sender.send(self.stopped(request), flags=FINAL)
                else:
                    self._take(request, sender)
            except Exception as error:
                told = python_model.error_response(error, python_model.wants_code(request))
                sender.send(told, flags=FINAL)

    def finalize(self) -> None:
        self.closing.set()
        for thread in self.threads:
            thread.join()
        self.executor.shutdown()

    def _repeat(self, job: Callable[[], None], period_ms: int) -> None:
        while not self.closing.wait(period_ms / 1000):
            job()

    # A request --------------------------------------------------------------------------------------------------------

    def asked(self, request: Any, row: int = 0) -> dict[str, Any]:
        """Return what prompt `row` of a request asks for, by `Field.asks`; fields that it leaves out are missing.

        Raises
        ------
        CourseError
            It leaves out what it must have, a tensor is malformed, or it wants a stream and the model is not decoupled.
        """
        python_model.wants_stream(request, "streaming", self.decoupled, row, self.decoupled_setting)
        asked: dict[str, Any] = {}
        for (name, (kind, dims, is_optional)), asks in self._inputs:
            values = (python_model.array if is_optional else python_model.required)(request, name)
            if values is None:
                continue
            if kind == "STRING":
                texts = python_model.texts(request, name, name)
                asked[asks] = texts[row] if dims == (1,) else texts
            elif dims == (1,):
                asked[asks] = values.reshape(-1)[row].item()
            else:
                asked[asks] = _words(name, values[row]) if dims == (2, -1) else values[row].tolist()
        return asked

    def _take(self, request: Any, sender: Any) -> None:
        if request.is_cancelled():
            raise CourseError("The client went away before its request came to the engine.")
        python_model.refuse_foreign(request, self.place)
        running = Running(request.request_id(), sender, python_model.wants_code(request))
        if len(running.request_id) > MAX_ID_LENGTH:
            length = len(running.request_id)
            raise CourseError(f"The request's id has {length:,} characters: send at most {MAX_ID_LENGTH}.")
        # The shorter of the model's time for each request and this one's own timeout, which Triton has in µs.
        limits = [limit for limit in (self.allotted_time_ms, request.timeout() / 1000) if limit]
        allotted_time_ms = min(limits, default=None)
        prompts = self.prompts(request, running)
        with running.lock:  # no response leaves before the engine has all prompts
            try:
                for prompt, message in prompts:
                    wanted = dataclasses.replace(
                        prompt, request_id=running.request_id, allotted_time_ms=allotted_time_ms
                    )
                    receive = self._receiver(running, message)
                    number = self.executor.enqueue_request(wanted, receive)
                    with self.lock:
                        running.numbers.add(number)
                        self.running.add(running)
            except Exception:
                self._give_up(running)
                raise

    def _receiver(self, running: Running, message: Callable[[Response], Any]) -> Callable[[Response], None]:
        """Make the function that receives the engine's responses to a prompt and sends them on."""

        def receive(response: Response) -> None:
            with running.lock:
                if running.is_over:  # as another of its prompts has failed
                    return
                if response.is_final:
                    with self.lock:
                        running.numbers.discard(response.request_id)
                        if not running.numbers:
                            self.running.discard(running)
                            running.is_over = True
                try:
                    if response.error:
                        raise CourseError(response.error, code=response.error_code)
                    told = message(response)
                except Exception as error:  # only this request fails
                    self._give_up(running)
                    told = python_model.error_response(error, running.wants_code)
                if told is not None:
                    running.sender.send(told, flags=FINAL if running.is_over else 0)

        return receive

    # Its end ----------------------------------------------------------------------------------------------------------

    def _give_up(self, running: Running) -> None:
        """End a request after one of its prompts has failed, and cancel the others."""
        running.is_over = True
        with self.lock:
            self.running.discard(running)
        for number in running.numbers:
            self.executor.cancel_request(number)

    def _stop(self, request_id: str) -> None:
        """End the requests that have this client's name, or the one that has this `stop_id`."""
        if not request_id:
            raise CourseError(
                "Trying to stop a request but request ID is not provided: send the id of the running request."
            )
        for number in self._numbers(lambda running: request_id in (running.request_id, running.stop_id)):
            self.end(number)

    def _cancel_abandoned(self) -> None:
        """End the requests of clients that have gone. An ensemble's requests do not show whether theirs have."""
        for number in self._numbers(lambda running: running.sender.is_cancelled()):
            self.executor.cancel_request(number)

    def _numbers(self, is_meant: Callable[[Running], bool]) -> list[int]:
        # Triton crashes when a sender is asked after its final response; none leaves while the lock is held.
        with self.lock:
            return [number for running in self.running if is_meant(running) for number in running.numbers]


def _words(name: str, packed: NDArray[Any]) -> list[list[int]]:
    """Read token sequences from their [2, n] form: ids in one row; below, the end of each word, then -1."""
    ids, ends = packed.reshape(2, -1).tolist()
    ends = [end for end in ends if end >= 0]
    words = [ids[start:end] for start, end in zip([0, *ends], ends)]
    if not all(words) or any(end > len(ids) for end in ends):
        raise CourseError(f"{name} is malformed: row 0 holds token ids, row 1 the rising end of each word, then -1.")
    return words


def stop(stop_id: str, contract: str) -> None:
    """Tell the engine's model, inside Triton, that nobody waits for an answer any more; one that has ended stays so.

    Besides `stop` and the id, the request has what each of the engine's must have, with any content.
    """
    zero = np.zeros((1, 1), np.int32)
    length = zero.astype(np.uint32 if contract == OLDEST_CONTRACT else np.int32)
    inputs = {"input_ids": zero, "input_lengths": zero, "request_output_len": length, "stop": np.array([[True]])}
    request = pb_utils.InferenceRequest(
        request_id=stop_id,
        model_name=ENGINE,
        inputs=[pb_utils.Tensor(name, array) for name, array in inputs.items()],
        requested_output_names=["sequence_length"],
    )
    for response in request.exec(decoupled=True):
        if response.has_error():  # the engine is about to be loaded anew, and its requests end with it
            pb_utils.Logger.log_warn(f"A request could not be stopped: {response.error().message()}")


class EngineMetrics:
    """The engine's state at Triton's /metrics, under the names and labels of the TensorRT-LLM backend.

    `update` writes the latest iteration's figures; it is called every `stats_check_period_ms`, so what lasts less may
    not be seen.
    """

    FAMILIES: ClassVar[dict[str, tuple[str, str]]] = {
        "nv_trt_llm_request_metrics": ("TRT LLM request metrics", "request_type"),
        "nv_trt_llm_kv_cache_block_metrics": ("TRT LLM KV cache block metrics", "kv_cache_block_type"),
        "nv_trt_llm_inflight_batcher_metrics": (
            "TRT LLM inflight_batcher-specific metrics",
            "inflight_batcher_specific_metric",
        ),
        "nv_trt_llm_v1_metrics": ("TRT LLM v1-specific metrics", "v1_specific_metric"),
        "nv_trt_llm_general_metrics": ("General TRT LLM metrics", "general_type"),
    }

    def __init__(self, args: dict[str, Any], executor: Executor):
        self._executor = executor
        other_batching = "inflight_batcher" if executor.config.gpt_model_type == "V1" else "v1"
        self._not_shown = f"nv_trt_llm_{other_batching}_metrics"
        self._gauges = python_model.Gauges(args, self.FAMILIES)

    def update(self) -> None:
        for name, values in self._figures().items():
            if name != self._not_shown:
                self._gauges.show(name, values)

    def _figures(self) -> dict[str, dict[str, float]]:
        now, sums = self._executor.snapshot(), self._executor.statistics
        moved = self._executor.moving.counts if self._executor.moving else {}
        block_bytes = self._executor.model.block_bytes
        return {
            "nv_trt_llm_request_metrics": {
                "active": now.active,
                "max": self._executor.build_config.max_batch_size,
                "scheduled": now.scheduled,
                "context": sum(row[1] > 0 for row in now.requests),
                "waiting": now.waiting,
            },
            "nv_trt_llm_kv_cache_block_metrics": {
                "max": now.kv_blocks_max,
                "free": now.kv_blocks_free,
                "used": now.kv_blocks_used,
                "reused": now.kv_blocks_reused,
                "tokens_per": now.tokens_per_block,
                "fraction": now.kv_blocks_used / now.kv_blocks_max,
                **{way: count.blocks for way, count in moved.items()},
                **{f"{way}_bytes": count.blocks * block_bytes for way, count in moved.items()},
                **{f"{way}_seconds": count.seconds for way, count in moved.items()},
            },
            "nv_trt_llm_inflight_batcher_metrics": {
                "total_context_tokens": now.context_tokens,
                "paused_requests": now.paused,
                "micro_batch_id": 0,
                "generation_requests": sum(row[2] > 0 for row in now.requests),
            },
            "nv_trt_llm_v1_metrics": {
                "total_context_tokens": now.context_tokens,
                "total_generation_tokens": now.generation_tokens,
                "empty_generation_slots": now.empty_slots,
            },
            "nv_trt_llm_general_metrics": {
                "timestamp": int(now.timestamp * 1e6),
                "iteration_counter": now.iteration,
                **({"drafted": sums.num_drafted, "accepted": sums.num_accepted} if self._executor.drafting else {}),
            },
        }
