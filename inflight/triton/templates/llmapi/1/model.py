"""Between Triton's requests and the engine, as TensorRT-LLM's model of today is: text in, text out, one model."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from inflight.checkpoint.tokenizer import load_tokenizer
from inflight.engine import folder
from inflight.engine.executor import Executor
from inflight.engine.limits import check_memory
from inflight.engine.model import load
from inflight.triton.model import python_model
from inflight.triton.model.detokenizer import Detokenizer
from inflight.triton.model.engine_model import EngineModel
from inflight.triton.repository import llmapi
from inflight.triton.repository.request import engine_request

MAX_TOKENS = 32  # where the request does not say, as in TensorRT-LLM's SamplingParams
STATS_CHECK_PERIOD_MS = 100
REASONS = {"end_id": "stop", "length": "length"}  # the engine's -> TensorRT-LLM's


def _settings():
    return llmapi.read(Path(pb_utils.get_model_dir()) / "model.yaml")


class TritonPythonModel(EngineModel):
    """Tensors as in config.pbtxt, without a batch dimension: a request has one prompt, and the engine batches requests.

    Each piece of a streamed answer is the whole text until then, and a whole answer begins with its prompt unless
    sampling_param_exclude_input_from_output is true: so it is in TensorRT-LLM.
    """

    place = "llmapi"
    decoupled_setting = "triton_config.decoupled"

    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": _settings().triton_config.decoupled})
        return config

    def initialize(self, args):
        settings = _settings()
        self.tokenizer = load_tokenizer(settings.model)
        info = folder.read(settings.model)
        info = dataclasses.replace(info, build_config=dataclasses.replace(info.build_config, **settings.limits))
        check_memory(info)
        told = settings.triton_config
        periods = told.cancellation_check_period_ms, STATS_CHECK_PERIOD_MS
        self.start(args, Executor(load(info), settings.executor), told.decoupled, 0, *periods)

    def prompts(self, request, running):
        prompt = python_model.prompt(request)
        asked = {"request_output_len": MAX_TOKENS, **self.asked(request)}
        streams, stops = asked.get("streaming", False), [stop for stop in asked.pop("stop_words", []) if stop]
        repeats = not (asked.pop("exclude_input_in_output", False) or streams)
        outputs = {"text_output"} | {name for name in ("finish_reason", "stop_reason") if asked.pop(name, False)}
        if asked.get("return_log_probs"):
            outputs.add("cumulative_logprob")
        asked["input_ids"], asked["end_id"] = self.tokenizer.encode(prompt), self.tokenizer.end_id
        asked["streaming"] = streams or bool(stops)  # to see a stop string when it comes
        # As TensorRT-LLM's SamplingParams: greedy if none of three is there, or one that says so; else over all tokens.
        if asked.get("sampling.top_p") == 0:
            asked["sampling.top_k"] = 1
        elif "sampling.temperature" in asked or "sampling.top_k" in asked:
            asked.setdefault("sampling.top_p", 1.0)
        text = Detokenizer(self.tokenizer, stops)
        return [(engine_request(asked), Answer(self.executor, text, prompt if repeats else "", streams, outputs))]

    def end(self, number):
        self.executor.cancel_request(number)

    def stopped(self, request):
        return _cancelled()


@dataclass
class Answer:
    """The answer to a request; makes a message for Triton of each of the engine's responses to it, or None."""

    executor: Executor
    text: Detokenizer
    said: str
    streams: bool
    outputs: set[str]

    def __call__(self, response):
        if self.text.stopped_by is None:
            self.said += self.text.add(response.token_ids, response.is_final)
            if self.text.stopped_by is not None:
                self.executor.stop_request(response.request_id)
        if response.finish_reason == "cancelled":
            return _cancelled()
        if not response.is_final and (self.text.stopped_by is not None or not self.streams):
            return None
        stopped_by = self.text.stopped_by
        values = {
            "text_output": self.said,
            "finish_reason": str("stop" if stopped_by else REASONS.get(response.finish_reason)),
            "stop_reason": str(stopped_by),
            "cumulative_logprob": response.cum_log_prob,
        }
        return pb_utils.InferenceResponse(
            [_tensor(name, value) for name, value in values.items() if name in self.outputs]
        )


def _tensor(name, value):
    return pb_utils.Tensor(
        name, np.array([value], np.float32) if isinstance(value, float) else np.array([value.encode()], object)
    )


def _cancelled():
    error = pb_utils.TritonError("The request was cancelled.", pb_utils.TritonError.CANCELLED)
    return pb_utils.InferenceResponse(error=error)
