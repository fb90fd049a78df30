"""Three contracts, each a set of tensors with types and shapes; `apply_contract` gives a config one of them.

    assemble("repo", engine_dir, contract="0.5")        # for clients of the first workshops
    assemble("repo", engine_dir, contract="llmapi")     # for those of TensorRT-LLM's model of today

The templates have the tensors that the models of a pipeline pass to each other. Those that a client may send are in the
table of `inflight.triton.repository.request`, and the tensors of answers that differ between contracts are below.
`apply_contract` makes the served config from all three, and a client makes its request from the served config.

A field that only TensorRT-LLM supports is accepted while its value asks for nothing, since the backend's own clients
always send some. Any other value is refused with the reason, instead of with Triton's "unexpected inference input".
Outputs that only TensorRT-LLM has are never given: a client may name them, and is told then that there are none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inflight.errors import CourseError
from inflight.triton.repository.layout import (
    BASELINE,
    CONTRACTS,
    DEFAULT_CONTRACT,
    ENGINE,
    ENSEMBLE,
    LLMAPI,
    OLDEST_CONTRACT,
    POSTPROCESSING,
    PREPROCESSING,
)
from inflight.triton.repository.request import FIELDS, FLOAT, FLOATS, INT, INTS, LOGITS, TEXTS, UINT, UINTS, Tensor

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

# Outputs that are never given.
NEVER_GIVEN = {
    "context_logits": LOGITS,
    "generation_logits": Tensor("FP32", (-1, -1, -1)),
    "kv_cache_alloc_new_blocks": INT,
    "kv_cache_reused_blocks": INT,
    "kv_cache_alloc_total_blocks": INT,
    "arrival_time_ns": Tensor("INT64", (1,)),
    "first_scheduled_time_ns": Tensor("INT64", (1,)),
    "first_token_time_ns": Tensor("INT64", (1,)),
    "last_token_time_ns": Tensor("INT64", (1,)),
    "acceptance_rate": FLOAT,
    "total_accepted_draft_tokens": INT,
    "total_draft_tokens": INT,
}
# Outputs of TensorRT-LLM's model of today.
LLMAPI_OUTPUTS = {
    "text_output": TEXTS,
    "finish_reason": TEXTS,
    "stop_reason": TEXTS,
    "cumulative_logprob": FLOATS,
    "kv_cache_reused_block": INTS,
    "kv_cache_missed_block": INTS,
    "kv_cache_alloc_new_blocks": INTS,
    "kv_cache_alloc_total_blocks": INTS,
    "kv_cache_hit_rate": FLOATS,
    **{name: tensor for name, tensor in NEVER_GIVEN.items() if name.endswith(("_ns", "_rate", "_tokens"))},
}
# Tensors that the models of a pipeline give each other and clients, where 0.5 differs from the templates.
OLDEST_FORMS = {
    (ENSEMBLE, "output", "text_output"): Tensor("STRING", (-1, -1)),
    (PREPROCESSING, "output", "REQUEST_OUTPUT_LEN"): UINTS,
    (PREPROCESSING, "output", "OUT_END_ID"): UINT,
    (PREPROCESSING, "output", "OUT_PAD_ID"): UINT,
    (POSTPROCESSING, "input", "SEQUENCE_LENGTH"): INTS.or_none,
    (POSTPROCESSING, "output", "OUTPUT"): Tensor("STRING", (-1, -1)),
}


def contract_values(contract: str) -> dict[str, Any]:
    """Return the values of the templates' variables that a contract asks for, unless others are given.

    Raises
    ------
    CourseError
        There is no such contract.
    """
    if contract not in CONTRACTS:
        raise CourseError(
            f"There is no contract {contract!r}. There are {OLDEST_CONTRACT}, for clients of TensorRT-LLM 0.5 and 0.6, "
            f"{DEFAULT_CONTRACT}, for those of 0.9 to 0.19, and {LLMAPI}, for those of its model of today."
        )
    return {"exclude_input_in_output": False} if contract == OLDEST_CONTRACT else {}


def apply_contract(config: ModelConfig, contract: str) -> None:
    """Give the config of a template the tensors of a contract, in place."""
    steps = {step.model_name: step for step in config.ensemble_scheduling.step}
    for field in FIELDS:
        if found := field.tensor(config.name, contract):
            _put(config, "input", *found)
            for step in (PREPROCESSING, ENGINE):  # what preprocessing takes, the engine gets from preprocessing
                if step in steps and (own := field.tensor(step, contract)):
                    steps[step].input_map[own[0]] = field.name
                    break
    if config.name == LLMAPI:
        for name, tensor in LLMAPI_OUTPUTS.items():
            _put(config, "output", name, tensor)
    if config.name in (ENSEMBLE, ENGINE) and contract == DEFAULT_CONTRACT:
        for name, tensor in NEVER_GIVEN.items():
            _put(config, "output", name, tensor)
            if steps:
                steps[ENGINE].output_map[name] = name
    if contract == OLDEST_CONTRACT:
        for (model, kind, name), tensor in OLDEST_FORMS.items():
            if model == config.name:
                _put(config, kind, name, tensor)
        if config.name == BASELINE:
            config.max_batch_size = 0
        if config.name == POSTPROCESSING:  # which tells the engine to stop
            config.parameters["contract"].string_value = contract


def _put(config: ModelConfig, kind: str, name: str, form: Tensor) -> None:
    """Add a tensor to a config, or change the form of the one that is there."""
    tensors = config.input if kind == "input" else config.output
    tensor: Any = next((one for one in tensors if one.name == name), None) or tensors.add(name=name)
    tensor.ClearField("dims")
    tensor.MergeFrom(type(tensor)(data_type=f"TYPE_{form.type}", dims=form.dims))
    if kind == "input":
        tensor.optional = form.is_optional
        if config.name == ENGINE and form.dims == (1,):  # as TensorRT-LLM has it
            tensor.reshape.SetInParent()
        elif config.name == ENGINE and -1 in form.dims:
            tensor.allow_ragged_batch = True
