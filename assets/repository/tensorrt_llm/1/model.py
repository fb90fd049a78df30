"""Between Triton's requests and the engine; the scheduling is in inflight/engine/scheduler.py."""

import itertools
import secrets
import threading
from dataclasses import dataclass, field

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.engine.config import ExecutorConfig, Request, Response, SamplingConfig
from inflight.engine.executor import Executor
from inflight.errors import CourseError
from inflight.triton import python_model

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MAX_ID_LENGTH = 1024  # characters of a request's id, which is kept as long as the request runs
NO_TOKEN = (-1, 2**32 - 1)  # as end_id: answers end by their length alone; UINT32 has no -1
STDERR = 2
NUM_PRECEDING = 8  # tokens given before, for whoever turns the next ones into text

REQUIRED = ("input_ids", "input_lengths", "request_output_len")

# Triton's tensor name -> SamplingConfig's field
SAMPLING = {
    "temperature": "temperature",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_length": "min_length",
    "random_seed": "random_seed",
    "min_tokens": "min_length",  # as later releases call them
    "seed": "random_seed",
}


@dataclass
class Running:
    """A request that the engine has: what its client called it, where its responses go, and what cancels it.

    It has one prompt or, where the model is decoupled, several; the engine answers each for itself.
    """

    request_id: str
    sender: object
    cancellation_id: int
    num_unfinished: int  # prompts
    is_over: bool = False  # its last response has left
    lock: threading.Lock = field(default_factory=threading.Lock)  # held while a response leaves


class TritonPythonModel:
    """Inputs and outputs as in config.pbtxt, with a leading batch dimension: the prompts of a request, 1 in a response.

    `execute` only hands requests to the engine; responses leave from the engine's thread when their tokens are there.
    So short requests finish before long ones that came earlier, whether the model is decoupled or not.
    """

    def initialize(self, args):
        self.parameters = python_model.parameters(args)
        self.decoupled = python_model.is_decoupled(args)
        # identity_test.py of TensorRT-LLM 0.5 warms up with the ids of one prompt and the length of another.
        self.takes_ids_as_they_come = python_model.input_types(args)["request_output_len"] == "TYPE_UINT32"
        settings = {
            name: self.parameters[name] for name in ExecutorConfig.__dataclass_fields__ if name in self.parameters
        }
        # A scheduler of a learner's that hangs ends this process; its traceback goes into the server's log.
        self.executor = Executor.load(self.parameters["gpt_model_path"], ExecutorConfig(**settings), STDERR)
        pb_utils.Logger.log_info(f"The engine computes {self.executor.model.info.precision}.")
        self.metrics = python_model.EngineMetrics(args, self.executor)
        self.running = {}  # executor's id of a prompt -> Running
        self.lock = threading.Lock()
        jobs = {
            self._cancel_abandoned: self.parameters["cancellation_check_period_ms"],
            self.metrics.update: self.parameters["stats_check_period_ms"],
        }
        self.housekeeping = python_model.Housekeeping(jobs)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._start(request, sender)
            except Exception as error:
                sender.send(python_model.error_response(error), flags=FINAL)
        return None

    def finalize(self):
        self.housekeeping.close()
        self.executor.shutdown()

    def _start(self, request, sender):
        if python_model.scalar(request, "stop", False):
            self._stop(request)
            nothing = self._tensors(0, [], [], Response(0, [], True), _outputs(request))
            sender.send(pb_utils.InferenceResponse(nothing), flags=FINAL)
            return
        if request.is_cancelled():
            raise CourseError("The client went away before its request came to the engine.")
        prompts = self._read(request)
        request_id = request.request_id()
        if len(request_id) > MAX_ID_LENGTH:
            raise CourseError(f"The request's id has {len(request_id):,} characters: send at most {MAX_ID_LENGTH}.")
        # Nobody guesses the number: who has it has got a response of this request.
        running = Running(request_id, sender, secrets.randbits(63), len(prompts))
        with running.lock:  # no response leaves before the engine has all prompts
            try:
                for index, (wanted, excludes) in enumerate(prompts):
                    receive = self._receiver(running, index, wanted, excludes, _outputs(request))
                    number = self.executor.enqueue_request(wanted, receive)
                    with self.lock:
                        self.running[number] = running
            except Exception:
                self._give_up(running)
                raise

    def _receiver(self, running, index, wanted, excludes, outputs):
        """What takes the engine's responses to a prompt, and sends them."""
        prefix = [] if excludes or wanted.streaming else wanted.input_ids
        preceding, numbers = [], itertools.count()

        def tensors(response):
            given = self._tensors(index, prefix, preceding, response, outputs)
            # With every second response: to ask Triton whether the client is there takes a tenth of a millisecond.
            if "cancellation_id" in outputs and not response.is_final and next(numbers) % 2 == 0:
                given.append(pb_utils.Tensor("cancellation_id", np.array([[running.cancellation_id]], np.int64)))
            return given

        def on_response(response):
            with running.lock:
                if running.is_over:  # as another of its prompts has failed
                    return
                if response.is_final:
                    running.num_unfinished -= 1
                    with self.lock:
                        del self.running[response.request_id]
                if response.error:
                    message = python_model.error_response(CourseError(response.error))
                    self._give_up(running)
                else:
                    message = python_model.answer(tensors, response)
                    running.is_over = running.num_unfinished == 0
                preceding[:] = [*preceding, *response.token_ids][-NUM_PRECEDING:]
                running.sender.send(message, flags=FINAL if running.is_over else 0)

        return on_response

    def _give_up(self, running):
        """A request of which a prompt has failed is over: nobody would miss the answers to the others."""
        running.is_over = True
        with self.lock:
            numbers = [number for number, other in self.running.items() if other is running]
            for number in numbers:
                del self.running[number]
        for number in numbers:
            self.executor.cancel_request(number)

    def _read(self, request) -> list[tuple[Request, bool]]:
        """What each prompt of a request asks of the engine, and whether its answer comes without it."""
        python_model.refuse_foreign(request, "tensorrt_llm")
        ids, *_ = [python_model.required(request, name) for name in REQUIRED]
        if len(ids) > 1 and not self.decoupled:
            raise CourseError(
                f"Expected batch dimension to be 1 for each request, got {len(ids)}: several prompts get several "
                "answers, which needs decoupled mode. Set decoupled_mode to true, or send one prompt a request."
            )
        return [self._read_prompt(request, row, prompt) for row, prompt in enumerate(ids)]

    def _read_prompt(self, request, row: int, ids: np.ndarray) -> tuple[Request, bool]:
        def scalar(name, default=None):
            return python_model.scalar(request, name, default, row)

        length = scalar("input_lengths")
        if self.takes_ids_as_they_come:
            length = min(length, len(ids))
        if not 0 <= length <= len(ids):
            raise CourseError(f"input_lengths is {length}, but input_ids has {len(ids)} tokens.")
        if scalar("beam_width", 1) != 1:
            raise CourseError("beam_width must be 1: this engine decodes one beam.")
        given = {name: scalar(name) for name in SAMPLING}
        given = {SAMPLING[name]: value for name, value in given.items() if value is not None}
        end_id = scalar("end_id")
        wanted = Request(
            input_ids=ids[:length].tolist(),
            request_output_len=scalar("request_output_len"),
            end_id=None if end_id in NO_TOKEN else end_id,
            stop_words=_words(request, "stop_words_list", row),
            bad_words=_words(request, "bad_words_list", row),
            sampling=SamplingConfig(**given),
            streaming=python_model.wants_stream(request, "streaming", self.decoupled, row),
            return_log_probs=scalar("return_log_probs", False),
            allotted_time_ms=self._allotted_time_ms(request),
        )
        return wanted, scalar("exclude_input_in_output", self.parameters["exclude_input_in_output"])

    def _allotted_time_ms(self, request) -> float | None:
        """The shorter of the model's time for each request and this one's own timeout, which Triton has in µs."""
        limits = [limit for limit in (self.parameters["allotted_time_ms"], request.timeout() / 1000) if limit]
        return min(limits, default=None)

    def _tensors(self, index, prefix, preceding, response, outputs):
        ids = prefix + response.token_ids
        values = {
            "output_ids": lambda: np.array([[ids]], np.int32),
            "sequence_length": lambda: np.array([[len(ids)]], np.int32),
            "cum_log_probs": lambda: np.array([[response.cum_log_prob]], np.float32),
            "output_log_probs": lambda: np.array([[response.log_probs]], np.float32),
            "batch_index": lambda: np.array([[index]], np.int32),
            "sequence_index": lambda: np.zeros((1, 1), np.int32),
            "preceding_ids": lambda: np.array([[-1] * (NUM_PRECEDING - len(preceding)) + preceding], np.int32),
            "is_final": lambda: np.array([[response.is_final]]),
        }
        return [pb_utils.Tensor(name, value()) for name, value in values.items() if name in outputs]

    def _stop(self, request):
        request_id, cancellation_ids = request.request_id(), python_model.array(request, "cancellation_id")
        if cancellation_ids is not None:
            meant = set(cancellation_ids.reshape(-1).tolist())
            self._cancel(lambda running: running.cancellation_id in meant)
            return
        if not request_id:
            raise CourseError(
                "Trying to stop a request but request ID is not provided: send the id of the running request."
            )
        with self.lock:
            ids = [number for number, running in self.running.items() if running.request_id == request_id]
        for number in ids:
            self.executor.stop_request(number)

    def _cancel_abandoned(self):
        """End the requests of clients that have gone. Of those of an ensemble the senders learn nothing."""
        self._cancel(lambda running: running.sender.is_cancelled())

    def _cancel(self, is_meant):
        # Triton crashes when a sender is asked after its final response; none leaves while the lock is held.
        with self.lock:
            numbers = [number for number, running in self.running.items() if is_meant(running)]
        for number in numbers:
            self.executor.cancel_request(number)


def _outputs(request) -> set:
    return set(request.requested_output_names())


def _words(request, name, row) -> list[list[int]]:
    """Token sequences of a prompt from their [2, n] form: ids in a row; below, the end of each word, then -1."""
    packed = python_model.array(request, name)
    if packed is None:
        return []
    ids, ends = packed[row].reshape(2, -1).tolist()
    ends = [end for end in ends if end >= 0]
    words = [ids[start:end] for start, end in zip([0, *ends], ends)]
    if not all(words) or any(end > len(ids) for end in ends):
        raise CourseError(f"{name} is malformed: row 0 holds token ids, row 1 the rising end of each word, then -1.")
    return words
