"""The templates' variables: which parameter each fills, and its value where none is given."""

from __future__ import annotations

from typing import Any

from inflight.triton.repository.layout import BASELINE, BATCH_COST, EMBEDDING
from inflight.triton.repository.parameter import Parameter
from inflight.triton.repository.parameters import PARAMETERS

# (model, parameter) -> the variable that fills it, where it does not have the parameter's name; None: none fills it.
_OTHER_NAMES: dict[tuple[str, str], str | None] = {
    ("tensorrt_llm", "gpt_model_path"): "engine_dir",
    ("tensorrt_llm", "gpt_model_type"): "batching_strategy",
    ("tensorrt_llm", "FORCE_CPU_ONLY_INPUT_TENSORS"): None,
    ("tensorrt_llm", "scheduler_sha256"): None,  # of the file at scheduler_path, put in at each load
    (BASELINE, "tokenizer_dir"): "checkpoint_dir",
    (BASELINE, "dtype"): "llama_dtype",
    ("simple-gpt2", "checkpoint_dir"): "gpt2_checkpoint_dir",
    ("iterative-gpt2", "checkpoint_dir"): "gpt2_checkpoint_dir",
    ("iterative-gpt2", "dtype"): "gpt2_dtype",
    ("iterative-gpt2", "kv_cache"): "gpt2_kv_cache",
    ("iterative-gpt2", "kv_cache_slots"): "gpt2_kv_cache_slots",
    ("iterative-gpt2", "when_full"): "gpt2_when_full",
    (BATCH_COST, "fixed_ms"): "batch_cost_fixed_ms",
    (BATCH_COST, "item_ms"): "batch_cost_item_ms",
    (BATCH_COST, "TRITON_BATCH_STRATEGY_PATH"): None,
    (BATCH_COST, "max_volume"): None,
    (EMBEDDING, "dtype"): "embedding_dtype",
}

# Values of fields that are Triton's own.
_FIELDS = {
    "triton_backend": "python",
    "triton_max_batch_size": 64,
    "decoupled_mode": False,
    "instance_kind": "KIND_CPU",  # of models that compute with PyTorch; `assemble` puts in that of the machine's tier
    "preprocessing_instance_count": 1,
    "postprocessing_instance_count": 1,
    "gpt2_max_batch_size": 8,
    "gpt2_max_sequence_idle_microseconds": 60_000_000,
    "batch_cost_max_batch_size": 8,
    "running_sum_max_batch_size": 4,
    "running_sum_max_sequence_idle_microseconds": 5_000_000,
    "embedding_max_batch_size": 8,
}


def variable(model: str, parameter: str) -> str | None:
    """Name of the variable that fills a parameter of a model's template; None when none does."""
    return _OTHER_NAMES.get((model, parameter), parameter)


def _value(parameter: Parameter) -> Any:
    """What the templates put where no value is given: the default; blank without one; None where that cannot work.

    A required folder stays blank too: the check says what it must hold and which command makes it.
    """
    if parameter.default is not None:
        return parameter.default
    return None if parameter.required and parameter.kind != "folder" else ""


# Values for the templates' variables. None must be given: it depends on the machine.
DEFAULTS: dict[str, Any] = {
    name: _value(parameter)
    for model, parameters in PARAMETERS.items()
    for key, parameter in parameters.items()
    if (name := variable(model, key)) is not None
} | _FIELDS
