"""`model.yaml` of TensorRT-LLM's Triton model `llmapi`: arguments of `LLM()`, and what Triton is told of the model.

Its keys are those of TensorRT-LLM's `LlmArgs`, and of `triton_config` in its `triton_backend/all_models/llmapi` (both
read as of August 2026). This engine obeys some. For a few others it takes only the value that describes what it does
anyway; it refuses all else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, PositiveInt, ValidationError, model_validator
from pydantic_core import ErrorDetails

from inflight import files
from inflight.engine.scheduler import POLICIES
from inflight.engine.settings import BuildConfig, ExecutorConfig
from inflight.errors import CourseError, did_you_mean

# Policy -> the engine's setting that makes it.
_POLICIES: dict[str, dict[str, Any]] = {
    **{policy.upper(): {"batch_scheduler_policy": policy} for policy in POLICIES},
    "STATIC_BATCH": {"gpt_model_type": "V1"},
}
_ONE_DEVICE = "the engine computes on one device"


class _Keys(BaseModel, extra="forbid"):
    """Keys of the file; a blank one counts as absent. A field's description says why other values are refused."""

    @model_validator(mode="before")
    @classmethod
    def _without_blanks(cls, given: Any) -> Any:
        return {key: one for key, one in given.items() if one is not None} if isinstance(given, dict) else given


class _KvCacheConfig(_Keys):
    max_tokens: PositiveInt | None = None
    free_gpu_memory_fraction: float = Field(default=ExecutorConfig.kv_cache_free_gpu_mem_fraction, ge=0, le=1)
    enable_block_reuse: bool = False


class _SchedulerConfig(_Keys):
    capacity_scheduler_policy: Literal[tuple(_POLICIES)] = "GUARANTEED_NO_EVICT"  # type: ignore[valid-type]


class _TritonConfig(_Keys):
    max_batch_size: Literal[0] = Field(
        default=0, description="a request has one prompt, and the engine batches requests"
    )
    multimodal: Literal[False] = Field(default=False, description="this engine's models read text alone")
    decoupled: bool = False
    cancellation_check_period_ms: PositiveInt = 100


class Settings(_Keys):
    """The settings of a `model.yaml`, by its own keys. A missing limit is the one that the engine was built with."""

    model: str = Field(min_length=1)
    max_batch_size: PositiveInt | None = None
    max_num_tokens: PositiveInt | None = None
    kv_cache_config: _KvCacheConfig = _KvCacheConfig()
    scheduler_config: _SchedulerConfig = _SchedulerConfig()
    enable_chunked_prefill: bool = False
    speculative_config: dict[Any, Any] | None = None
    triton_config: _TritonConfig = _TritonConfig()
    # TensorRT-LLM's only one: it asks for no engine of TensorRT.
    backend: Literal["pytorch"] = Field(default="pytorch", description="this is the engine of the course")
    tensor_parallel_size: Literal[1] = Field(default=1, description=_ONE_DEVICE)
    pipeline_parallel_size: Literal[1] = Field(default=1, description=_ONE_DEVICE)

    @property
    def limits(self) -> dict[str, int]:
        """Return the options of `BuildConfig` that replace those that the engine was built with."""
        limits = {"max_batch_size": self.max_batch_size, "max_num_tokens": self.max_num_tokens}
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def executor(self) -> ExecutorConfig:
        return ExecutorConfig(
            **_POLICIES[self.scheduler_config.capacity_scheduler_policy],
            max_tokens_in_paged_kv_cache=self.kv_cache_config.max_tokens,
            kv_cache_free_gpu_mem_fraction=self.kv_cache_config.free_gpu_memory_fraction,
            enable_kv_cache_reuse=self.kv_cache_config.enable_block_reuse,
            enable_chunked_context=self.enable_chunked_prefill,
            speculative_config=self.speculative_config,
        )


def read(path: Path) -> Settings:
    """Read a `model.yaml`.

    Raises
    ------
    CourseError
        It is no YAML; a key that this engine does not have, or a value that a key does not take.
    """
    try:
        content = yaml.safe_load(files.read_text(path, "settings", "Assemble the repository again."))
        settings = Settings.model_validate(content)
    except yaml.YAMLError as error:
        raise CourseError(f"{error}.".replace("\n", " "), where=[str(path), "syntax"]) from None
    except ValidationError as error:
        field, what, fix = _reason(error.errors()[0])
        raise CourseError(what, fix, where=[str(path), field]) from None
    try:
        settings.executor  # noqa: B018
    except CourseError as error:  # it checks speculative_config
        raise CourseError(error.what, error.fix, where=[str(path), "speculative_config"]) from None
    return settings


def _reason(wrong: ErrorDetails) -> tuple[str, str, str]:
    """Return the key that pydantic finds wrong, what is wrong with it, and what to do."""
    place = ".".join(map(str, wrong["loc"])) or "syntax"
    if wrong["type"] == "model_type":
        return place, "It has no keys.", "Write `key: value`, a line each."
    *groups, key = wrong["loc"]
    known: Any = Settings
    for group in groups:
        known = known.model_fields[str(group)].annotation
    if key in known.model_fields:
        why = known.model_fields[key].description
        given = "It has no value" if wrong["type"] == "missing" else f"It is {wrong['input']!r}"
        return place, f"{given}.", f"{wrong['msg']}{f', as {why}' if why else ''}."
    if key in BuildConfig.__dataclass_fields__ or key == "quant_config":
        return place, "It is decided when the engine is built.", "Leave it out, and see `inflight build --help`."
    return place, "This engine has no such setting.", did_you_mean(str(key), known.model_fields, "It has", 0.8)
