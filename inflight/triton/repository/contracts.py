"""Which tensors clients find, of which types and shapes: TensorRT-LLM's contract, as it is and as it was.

    assemble("repo", engine_dir, contract="0.5")        # for clients of the first workshops
    pd.DataFrame(contract_differences())                # what changed, when, and what it breaks

The templates have the contract of 0.9 to 0.19, in which only additions were made; `FOREIGN` adds what they brought and
this engine has no use for. `DIFFERENCES` is what changed since 0.5: both the table that is shown, and the changes by
which the older contract is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.errors import CourseError
from inflight.triton.repository.foreign import FOREIGN, FOREIGN_OUTPUTS
from inflight.triton.repository.layout import BASELINE, CONTRACTS, NEWEST_CONTRACT, OLDEST_CONTRACT


@dataclass(frozen=True)
class Difference:
    """What changed between two releases of TensorRT-LLM's backend.

    Attributes
    ----------
    since : str
        The first release, or container, that is known to have it as it is today.
    tensors : tuple of str
        Inputs and outputs, of whichever models have them.
    before, after : str
        How it was, and is.
    breaks : str
        What a client of the other side meets.
    older : dict
        Fields of these tensors in the contract of 0.5; without `tensors`, fields of the model. Blank: there a client
        of either side is served.
    models : tuple of str
        Only in these; blank: in all.
    values : dict
        Values of the templates' variables that 0.5 had no choice of.
    """

    since: str
    tensors: tuple[str, ...]
    before: str
    after: str
    breaks: str
    older: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def undo(self, config: ModelConfig) -> None:
        """Give a config's tensors the fields that they had before."""
        if self.models and config.name not in self.models:
            return
        tensors = [tensor for tensor in (*config.input, *config.output) if tensor.name in self.tensors]
        for message in tensors if self.tensors else [config]:
            for name, value in self.older.items():
                message.ClearField(name)
                if name == "dims":
                    message.dims.extend(value)
                else:
                    setattr(message, name, value)


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "0.6.1",
        ("bad_words", "stop_words", "BAD_WORDS_DICT", "STOP_WORDS_DICT"),
        "required, and without effect: nothing led from preprocessing to the engine",
        "optional, and obeyed",
        'A client that leaves them out is refused; one of 0.5 sends a blank ("") and is served by both.',
        older={"optional": False},
        models=("ensemble", "preprocessing"),
    ),
    Difference(
        "0.6.1",
        ("sequence_length", "SEQUENCE_LENGTH"),
        "not there: postprocessing took all of TOKENS_BATCH",
        "how many of a beam's tokens are its answer; required",
        "A client that asks postprocessing itself, with TOKENS_BATCH alone, is refused.",
        older={"optional": True},
        models=("postprocessing",),
    ),
    Difference(
        "0.7",
        (
            *("max_tokens", "end_id", "pad_id", "top_k", "beam_width", "min_length"),
            *("REQUEST_OUTPUT_LEN", "END_ID", "PAD_ID", "OUT_END_ID", "OUT_PAD_ID"),
            *("request_output_len", "runtime_top_k"),
        ),
        "UINT32",
        "INT32",
        "Every request of a client of the other side is refused: its data-type is another than expected.",
        older={"data_type": DataType.TYPE_UINT32},
    ),
    Difference(
        "0.9",
        ("text_input", "max_tokens", "QUERY", "REQUEST_OUTPUT_LEN"),
        "dims [-1]: any number of values",
        "dims [1]",
        "A client that sends several values in a row is refused; one value fits both.",
        older={"dims": [-1]},
    ),
    Difference(
        "0.9",
        ("text_output", "OUTPUT"),
        "dims [-1, -1]",
        "dims [-1]",
        "Nothing: either way an array of one dimension comes, and text_output[0] is the text.",
        older={"dims": [-1, -1]},
        models=("ensemble", "postprocessing"),
    ),
    Difference(
        "0.9",
        ("exclude_input_in_output",),
        "not there: a whole answer repeats its prompt",
        "a parameter; from 0.14 an input of the engine, later of the ensemble",
        "A client that takes the prompt's length off the answer's counts too few tokens, or too many.",
        values={"exclude_input_in_output": False},
    ),
    Difference(
        "0.12",
        ("batch_index",),
        "not there",
        "the number of the prompt in its request",
        "The text clients of 0.12 and 0.13 read it from every response.",
    ),
    Difference(
        "0.14",
        ("num_return_sequences", "sequence_index"),
        "not there",
        "how many answers to give, and which of them this is",
        "Clients of 0.14 ask for one with every request; where the input is unknown they are refused.",
    ),
    Difference(
        "0.16",
        ("return_kv_cache_reuse_stats", "return_perf_metrics"),
        "not there",
        "figures of one request; the first name until 0.18, the second from 0.19",
        "A client that asks for them is refused here, with the reason.",
    ),
    Difference(
        "25.05",
        ("min_length", "random_seed"),
        "min_length, random_seed",
        "min_tokens, seed, with the container of that month",
        "There, a client of the other side is refused for an unknown input; here both names are known.",
    ),
    Difference(
        "here",
        (),
        "llama-python of the first workshops has no batch dimension: text_input [1]",
        "it has one, as the ensemble has: text_input [1, 1]",
        "Every request of a client of the other side is refused for its shape.",
        older={"max_batch_size": 0},
        models=(BASELINE,),
    ),
)


def contract_differences() -> list[dict[str, str]]:
    """What changed in TensorRT-LLM's contract, one row a change: when, which tensors, what was, what is, what breaks.

    `serve` says which option has the tensors as they were; blank: clients of both sides are served.
    """
    option = f"--contract {OLDEST_CONTRACT}"
    return [
        {
            "since": row.since,
            "tensors": ", ".join(row.tensors) or ", ".join(row.models),
            "before": row.before,
            "after": row.after,
            "what it breaks": row.breaks,
            "as before with": option if row.older or row.values else "",
        }
        for row in DIFFERENCES
    ]


def contract_values(contract: str) -> dict[str, Any]:
    """Values of the templates' variables that a contract asks for, unless others are given.

    Raises
    ------
    CourseError
        There is no such contract.
    """
    if contract not in CONTRACTS:
        raise CourseError(
            f"There is no contract {contract!r}. There are {OLDEST_CONTRACT}, for clients of TensorRT-LLM 0.5 and 0.6, "
            f"and {NEWEST_CONTRACT}, for those of 0.9 to 0.19."
        )
    if contract == NEWEST_CONTRACT:
        return {}
    return {name: value for row in DIFFERENCES for name, value in row.values.items()}


def apply_contract(config: ModelConfig, contract: str) -> None:
    """Give the config of a template, which is changed, the tensors of a contract."""
    is_old = contract == OLDEST_CONTRACT
    inputs = [tensor for tensor in FOREIGN if tensor.is_old or not is_old]
    outputs = () if is_old else FOREIGN_OUTPUTS
    if config.name == "ensemble":
        steps = {step.model_name: step for step in config.ensemble_scheduling.step}
        for tensor in inputs:
            if tensor.ensemble:
                steps[tensor.model].input_map[tensor.name] = tensor.ensemble
                _add(config.input, tensor.ensemble, tensor.data_type, tensor.dims, optional=True)
        for name, data_type, dims in outputs:
            steps["tensorrt_llm"].output_map[name] = name
            _add(config.output, name, data_type, dims)
    for tensor in inputs:
        if tensor.model == config.name:
            _add(config.input, tensor.name, tensor.data_type, tensor.dims, optional=True)
    for name, data_type, dims in outputs if config.name == "tensorrt_llm" else ():
        _add(config.output, name, data_type, dims)
    if is_old:
        for row in DIFFERENCES:
            row.undo(config)


def _add(tensors, name: str, data_type: str, dims: tuple[int, ...], **options) -> None:
    tensors.add(name=name, data_type=DataType.Value(f"TYPE_{data_type}"), dims=dims, **options)
