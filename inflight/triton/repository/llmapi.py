"""`model.yaml` of TensorRT-LLM's Triton model `llmapi`: arguments of `LLM()`, and what Triton is told of the model.

Its keys are those of TensorRT-LLM's `LlmArgs`, and of `triton_config` in its `triton_backend/all_models/llmapi` (both
read as of August 2026). This engine obeys some. Of the others a value is taken that asks for what the engine does
anyway; any other is refused with the reason, as is a key that is none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from inflight import files
from inflight.engine.config import BuildConfig, ExecutorConfig, SpeculativeConfig
from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.parameters import PARAMETERS, Parameter, Problem, of_config
from inflight.triton.repository.pbtxt import as_text

_ENGINE = PARAMETERS["tensorrt_llm"]
# Policy -> the engine's two settings that make it.
_POLICIES = {
    "GUARANTEED_NO_EVICT": {"batch_scheduler_policy": "guaranteed_no_evict"},
    "MAX_UTILIZATION": {"batch_scheduler_policy": "max_utilization"},
    "STATIC_BATCH": {"gpt_model_type": "V1"},
}
_POLICY = "scheduler_config.capacity_scheduler_policy"
_DECOUPLED, _PERIOD = "triton_config.decoupled", "triton_config.cancellation_check_period_ms"
# Key -> the setting of `ExecutorConfig` that it is.
_EXECUTOR = {
    "kv_cache_config.max_tokens": "max_tokens_in_paged_kv_cache",
    "kv_cache_config.free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "kv_cache_config.enable_block_reuse": "enable_kv_cache_reuse",
    "enable_chunked_prefill": "enable_chunked_context",
}
# Keys of one that is a setting by itself.
_SPECULATIVE = {
    f"speculative_config.{name}": replace(row, default=None) for name, row in of_config(SpeculativeConfig).items()
}
_LIMITS = ("max_batch_size", "max_num_tokens")
# Key -> what its value may be. A limit that is left out is as the engine was built.
OBEYED = {
    "model": _ENGINE["gpt_model_path"],
    **{name: replace(row, default=None) for name, row in of_config(BuildConfig).items() if name in _LIMITS},
    **{key: _ENGINE[name] for key, name in _EXECUTOR.items()},
    _POLICY: Parameter("choice", "GUARANTEED_NO_EVICT", "What happens when KV blocks are short.", tuple(_POLICIES)),
    _DECOUPLED: Parameter("bool", False, "Whether a request may get several responses, which streaming needs."),
    _PERIOD: _ENGINE["cancellation_check_period_ms"],
    **_SPECULATIVE,
}
_ONE_DEVICE = "the engine computes on one device. Leave it out, or set it to 1."
_AT_THE_BUILD = "it is decided when the engine is built. Leave it out, and see `inflight build --help`."
# Key -> the one value that asks for what the engine does anyway, None where there is none; why no other is taken.
_NOT_OBEYED: dict[str, tuple[Any, str]] = {
    # TensorRT-LLM's only backend: it asks for no engine of TensorRT.
    "backend": ("pytorch", "this is the engine of the course, and none of TensorRT-LLM's. Leave it out."),
    "tensor_parallel_size": (1, _ONE_DEVICE),
    "pipeline_parallel_size": (1, _ONE_DEVICE),
    "triton_config.max_batch_size": (
        0, "a request has one prompt here, and the engine batches requests. Set it to 0."
    ),
    "triton_config.multimodal": (False, "this engine's models read text alone. Leave it out."),
    "lora_config": (
        None, "this engine has no LoRA. Merge the adapter into the checkpoint, and build an engine of that."
    ),
    **dict.fromkeys(
        ("dtype", "quant_config", "max_seq_len", "max_input_len", "max_beam_width", "kv_cache_config.dtype",
         "kv_cache_config.tokens_per_block"), (None, _AT_THE_BUILD)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What a `model.yaml` says.

    Attributes
    ----------
    engine_dir : str
    limits : dict of int
        Options of `BuildConfig` in place of those that the engine was built with.
    executor : ExecutorConfig
    decoupled : bool
    cancellation_check_period_ms : int
    """

    engine_dir: str
    limits: dict[str, int]
    executor: ExecutorConfig
    decoupled: bool
    cancellation_check_period_ms: int


def read(path: Path) -> Settings:
    """Read a `model.yaml`.

    Raises
    ------
    CourseError
        It is no YAML; a key that this engine does not have, or a value that a key does not take.
    """
    values, problems = _parsed(path)
    if problems:
        raise CourseError(str(problems[0]))
    settings = {name: values[key] for key, name in _EXECUTOR.items()} | _POLICIES[values[_POLICY]]
    drafts = {key.partition(".")[2]: values[key] for key in _SPECULATIVE if values[key] is not None}
    settings["speculative_config"] = drafts or None
    limits = {name: values[name] for name in _LIMITS if values[name] is not None}
    return Settings(values["model"], limits, ExecutorConfig(**settings), values[_DECOUPLED], values[_PERIOD])


def problems(path: Path) -> list[Problem]:
    """Everything that is wrong in a `model.yaml`."""
    return _parsed(path)[1]


def _parsed(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    """The value of each key that is obeyed, and what is wrong."""
    try:
        content = yaml.safe_load(files.read_text(path, "settings", "Assemble the repository again."))
    except yaml.YAMLError as error:
        return {}, [Problem(str(path), "syntax", f"{error}.".replace("\n", " "), "Correct this line.")]
    if not isinstance(content, dict):
        return {}, [Problem(str(path), "syntax", "It has no keys.", "Write `key: value`, a line each.")]
    given, values, found = _flat(content), {}, []
    for key, value in given.items():
        if key not in OBEYED and (key not in _NOT_OBEYED or value != _NOT_OBEYED[key][0]):
            found.append(Problem(str(path), key, f"It is {value!r}, but", _reason(key)))
    for key, spec in OBEYED.items():
        text = as_text(given.get(key, ""))
        try:
            values[key] = spec.parse(text)
        except ValueError as allowed:
            found.append(
                Problem(str(path), key, f"It is {text!r}." if text else "It has no value.", f"It must be {allowed}.")
            )
    return values, found


def _reason(key: str) -> str:
    for known in (key, key.partition(".")[0]):
        if known in _NOT_OBEYED:
            return _NOT_OBEYED[known][1]
    return f"this engine has no such setting. {did_you_mean(key, OBEYED, 'It obeys', cutoff=0.8)}"


def _flat(content: dict) -> dict[str, Any]:
    """Keys of keys with a dot between them; without those that are left blank."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        inner = value.items() if isinstance(value, dict) and value else [(None, value)]
        flat |= {f"{key}.{name}" if name else str(key): one for name, one in inner}
    return {key: value for key, value in flat.items() if value is not None}
