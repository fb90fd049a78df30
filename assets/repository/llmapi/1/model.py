"""Between Triton's requests and the engine, as TensorRT-LLM's model of today is: text in, text out, one model."""

import dataclasses
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine import folder
from inflight.engine.config import Request, SamplingConfig
from inflight.engine.executor import Executor, check_memory
from inflight.engine.model import load
from inflight.errors import CourseError
from inflight.triton import python_model
from inflight.triton.repository import llmapi
from inflight.triton.text import Detokenizer

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MAX_TOKENS = 32  # where the request does not say, as in TensorRT-LLM's SamplingParams
STATS_CHECK_PERIOD_MS = 100
SAMPLING = {  # sampling_param_... -> SamplingConfig's field
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "random_seed",
}
REASONS = {"end_id": "stop", "length": "length"}  # the engine's -> TensorRT-LLM's


def _settings():
    return llmapi.read(Path(pb_utils.get_model_dir()) / "model.yaml")


class TritonPythonModel:
    """Tensors as in config.pbtxt, without a batch dimension: a request has one prompt, and the engine batches requests.

    Each piece of a streamed answer is the whole text until then, and a whole answer begins with its prompt unless
    sampling_param_exclude_input_from_output is true: so it is in TensorRT-LLM.
    """

    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": _settings().decoupled})
        return config

    def initialize(self, args):
        settings = _settings()
        self.decoupled = settings.decoupled
        self.tokenizer = load_tokenizer(settings.engine_dir)
        info = folder.read(settings.engine_dir)
        info = dataclasses.replace(info, build_config=dataclasses.replace(info.build_config, **settings.limits))
        check_memory(info)
        self.executor = Executor(load(info), settings.executor)
        pb_utils.Logger.log_info(f"The engine computes {info.precision}.")
        metrics = python_model.EngineMetrics(args, self.executor)
        self.running = {}  # executor's id -> the request's id, and where its responses go
        self.lock = threading.Lock()
        periods = {self._cancel_abandoned: settings.cancellation_check_period_ms, metrics.update: STATS_CHECK_PERIOD_MS}
        self.housekeeping = python_model.Housekeeping(periods)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                if python_model.scalar(request, "stop", False):
                    self._stop(request.request_id())
                    sender.send(_cancelled(), flags=FINAL)
                else:
                    self._start(request, sender)
            except Exception as error:
                sender.send(python_model.error_response(error), flags=FINAL)
        return None

    def finalize(self):
        self.housekeeping.close()
        self.executor.shutdown()

    def _start(self, request, sender):
        python_model.refuse_foreign(request, "llmapi")
        prompt = python_model.prompt(request)
        streams = python_model.wants_stream(request, "streaming", self.decoupled, setting="triton_config.decoupled")
        stops = python_model.texts(request, "sampling_param_stop", "sampling_param_stop")
        stops = [stop for stop in stops if stop]
        told = {
            name for name in ("finish_reason", "stop_reason", "cumulative_logprob")
            if python_model.scalar(request, f"return_{name}", False)
        }  # fmt: skip
        repeats = not (streams or python_model.scalar(request, "sampling_param_exclude_input_from_output", False))
        text, said = Detokenizer(self.tokenizer, stops), [prompt] if repeats else []

        def on_response(response):
            if text.stopped_by is None:
                said.append(text.add(response.token_ids, response.is_final))
                if text.stopped_by is not None:
                    self.executor.stop_request(response.request_id)
            if response.is_final:
                with self.lock:
                    del self.running[response.request_id]
            if response.error:
                sender.send(python_model.error_response(CourseError(response.error)), flags=FINAL)
            elif response.finish_reason == "cancelled":
                sender.send(_cancelled(), flags=FINAL)
            elif response.is_final or (streams and text.stopped_by is None):
                reason = "stop" if text.stopped_by else REASONS.get(response.finish_reason)
                values = {
                    "text_output": "".join(said),
                    "finish_reason": str(reason),
                    "stop_reason": str(text.stopped_by),
                    "cumulative_logprob": response.cum_log_prob,
                }
                message = pb_utils.InferenceResponse(
                    [_tensor(name, value) for name, value in values.items() if name in {"text_output", *told}]
                )
                sender.send(message, flags=FINAL if response.is_final else 0)

        wanted = Request(
            input_ids=self.tokenizer.encode(prompt),
            request_output_len=python_model.scalar(request, "sampling_param_max_tokens", MAX_TOKENS),
            end_id=self.tokenizer.end_id,
            sampling=_sampling(request),
            streaming=streams or bool(stops),
            return_log_probs="cumulative_logprob" in told,
            allotted_time_ms=request.timeout() / 1000 or None,
        )
        with self.lock:  # no final response leaves before its request is known
            number = self.executor.enqueue_request(wanted, on_response)
            self.running[number] = request.request_id(), sender

    def _stop(self, request_id):
        if not request_id:
            raise CourseError(
                "Trying to stop a request but request ID is not provided: send the id of the running request."
            )
        self._cancel(lambda other, sender: other == request_id)

    def _cancel_abandoned(self):
        self._cancel(lambda other, sender: sender.is_cancelled())

    def _cancel(self, is_meant):
        # Triton crashes when a sender is asked after its final response; none leaves while the lock is held.
        with self.lock:
            numbers = [number for number, running in self.running.items() if is_meant(*running)]
        for number in numbers:
            self.executor.cancel_request(number)


def _sampling(request) -> SamplingConfig:
    """As TensorRT-LLM's SamplingParams: greedy if none of three is there, or one that says so; else over all tokens."""
    given = {field: python_model.scalar(request, f"sampling_param_{name}") for name, field in SAMPLING.items()}
    given = {field: value for field, value in given.items() if value is not None}
    if given.get("top_p") == 0:
        given["top_k"] = 1
    elif "temperature" in given or "top_k" in given:
        given.setdefault("top_p", 1.0)
    return SamplingConfig(**given)


def _tensor(name, value):
    return pb_utils.Tensor(
        name, np.array([value], np.float32) if isinstance(value, float) else np.array([value.encode()], object)
    )


def _cancelled():
    error = pb_utils.TritonError("The request was cancelled.", pb_utils.TritonError.CANCELLED)
    return pb_utils.InferenceResponse(error=error)
