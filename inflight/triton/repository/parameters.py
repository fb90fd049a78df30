"""What may stand in a config.pbtxt's `parameters`, model by model."""

from __future__ import annotations

import difflib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from inflight.engine.config import ExecutorConfig
from inflight.errors import CourseError
from inflight.triton.repository.layout import BASELINE, BATCH_COST, EMBEDDING, LLMAPI, RUNNING_SUM, VARIABLE
from inflight.triton.repository.parameter import Parameter, Problem


def _of_settings(config: type) -> dict[str, Parameter]:
    """A parameter for each setting of a config: its kind from the type, the rest from where the setting is declared."""
    types = get_type_hints(config)
    return {
        setting.name: Parameter(
            _kind(types[setting.name], setting.metadata["choices"]), setting.default, **setting.metadata
        )
        for setting in fields(config)
    }


def _kind(annotation: Any, choices: tuple[str, ...]) -> str:
    if choices:
        return "choice"
    kinds = {bool: "bool", int: "int", float: "float", Path: "path"}
    return next(kinds[part] for part in (annotation, *get_args(annotation)) if part in kinds)


_EXECUTOR = _of_settings(ExecutorConfig)
_TOKENIZER = {
    "tokenizer_dir": Parameter("path", None, "Folder with tokenizer.json.", required=True),
    "tokenizer_type": Parameter(
        "choice", None, "Has no effect: tokenizer.json says what kind it is.", ("auto", "t5", "llama", "sp")
    ),
}
# TensorRT-LLM leaves the chat template to its clients; a learner's first question should be answered as in a chat.
_CHAT_TEMPLATE = {
    "apply_chat_template": Parameter("bool", True, "Put the text into the model's chat template as one user turn.")
}
# TensorRT-LLM's default is false; here an answer does not repeat its prompt unless asked to.
_EXCLUDE_INPUT = Parameter("bool", True, "Leave the prompt out of whole answers.")
_MAKES_BASELINE = "inflight assemble --with-llama-python"
_GPT2_CHECKPOINT = {
    "checkpoint_dir": Parameter(
        "folder", None, "Hugging Face folder of a GPT-2, with its tokenizer.", holds="*.safetensors", required=True
    )
}
_ITERATION_LOG = {"iteration_log_path": _EXECUTOR["iteration_log_path"]}
_EXECUTION_LOG = {"execution_log_path": Parameter("path", None, "File for one JSON line per execution; blank: none.")}

# Model -> its parameters. All there is to say of the engine's settings stands in `ExecutorConfig`, of the others here.
# The templates' values, the editor and the check of a config.pbtxt are made from it.
PARAMETERS: dict[str, dict[str, Parameter]] = {
    "tensorrt_llm": {
        "gpt_model_path": Parameter("path", None, "Engine folder.", required=True),
        **_EXECUTOR,
        "scheduler_sha256": Parameter("text", None, "Digest of that file, by which a load sees that it has changed."),
        # TensorRT-LLM does not load a model that leaves it open.
        "gpt_model_type": replace(_EXECUTOR["gpt_model_type"], required=True),
        "exclude_input_in_output": _EXCLUDE_INPUT,
        # TensorRT-LLM's executor has it for each request. Long, for it is against those who have gone, not who wait.
        "allotted_time_ms": Parameter(
            "int", 300_000, "Most time that a request may take, its wait included; 0: no limit.", low=0
        ),
        "cancellation_check_period_ms": Parameter("int", 100, "How often to look for clients that are gone.", low=1),
        "stats_check_period_ms": Parameter("int", 100, "How often to refresh /metrics.", low=1),
        "FORCE_CPU_ONLY_INPUT_TENSORS": Parameter("choice", "no", "Where input tensors are kept.", ("yes", "no")),
    },
    "preprocessing": {
        **_TOKENIZER,
        "add_special_tokens": Parameter("bool", True, "Let the tokenizer add its special tokens."),
        **_CHAT_TEMPLATE,
    },
    "postprocessing": {
        **_TOKENIZER,
        "skip_special_tokens": Parameter("bool", True, "Leave special tokens out of the text."),
    },
    "ensemble": {},
    LLMAPI: {},  # its settings stand in a file of their own: `llmapi`
    BASELINE: {
        "checkpoint_dir": Parameter(
            "folder",
            None,
            "Hugging Face folder of the model.",
            holds="*.safetensors",
            made_by=_MAKES_BASELINE,
            required=True,
        ),
        "tokenizer_dir": Parameter(
            "folder",
            None,
            "Folder with tokenizer.json.",
            holds="tokenizer.json",
            made_by=_MAKES_BASELINE,
            required=True,
        ),
        "dtype": Parameter(
            "choice",
            "auto",
            "Precision of weights and arithmetic; auto: the faster one here.",
            ("auto", "bfloat16", "float32"),
        ),
        **_CHAT_TEMPLATE,
        "exclude_input_in_output": _EXCLUDE_INPUT,
    },
    "simple-gpt2": {**_GPT2_CHECKPOINT, **_ITERATION_LOG},
    "iterative-gpt2": {
        **_GPT2_CHECKPOINT,
        "dtype": Parameter(
            "choice",
            "auto",
            "Precision of weights, cache and arithmetic; auto: the faster one here.",
            ("auto", "bfloat16", "float16", "float32"),
        ),
        "kv_cache": Parameter(
            "choice",
            "on",
            "off: compute every history again; tutorial: the same, in float32, with generate.",
            ("on", "off", "tutorial"),
        ),
        "kv_cache_slots": Parameter("int", 8, "Sequences that the KV cache holds.", low=1),
        "when_full": Parameter("choice", "wait", "What a request does when every slot is taken.", ("wait", "refuse")),
        **_ITERATION_LOG,
    },
    BATCH_COST: {
        "fixed_ms": Parameter("float", 20, "What a batch costs, whatever its size.", low=0, high=60_000),
        "item_ms": Parameter("float", 2, "What each unit of work in it adds.", low=0, high=60_000),
        **_EXECUTION_LOG,
        "TRITON_BATCH_STRATEGY_PATH": Parameter(
            "path", None, "Library that decides which requests join a batch; blank: none."
        ),
        "max_volume": Parameter("int", None, "Most work in a batch, for such a library.", low=1),
    },
    RUNNING_SUM: _EXECUTION_LOG,
    EMBEDDING: {
        "checkpoint_dir": Parameter(
            "folder",
            None,
            "Hugging Face folder of the model, with its tokenizer.",
            holds="*.safetensors",
            required=True,
        ),
        "dtype": Parameter(
            "choice",
            "auto",
            "Precision of weights and arithmetic; auto: the faster one here.",
            ("auto", "bfloat16", "float32"),
        ),
    },
}


def typed_parameters(model: str, texts: dict[str, str]) -> dict[str, Any]:
    """Every parameter of `model` as a Python value.

    Raises
    ------
    CourseError
        An unknown key or a wrong value; the message says which and what is allowed.
    """
    problems = parameter_problems(model, texts)
    if problems:
        raise CourseError(f"model {model!r}: {problems[0].field}: {problems[0].message} {problems[0].fix}")
    return {name: spec.parse(texts.get(name, "")) for name, spec in PARAMETERS[model].items()}


def parameter_problems(model: str, texts: dict[str, str], only_given: bool = False) -> list[Problem]:
    known, problems = PARAMETERS[model], []
    for name, text in texts.items():
        field, variable = f"parameters.{name}", VARIABLE.search(text)
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"The model has: {', '.join(known)}."
            problems.append(Problem(model, field, "This key is unknown.", fix))
        elif variable:
            fix = "Give it a value when assembling."
            problems.append(Problem(model, field, f"The variable {variable[0]} is not filled.", fix))
    for name, spec in known.items():
        text = texts.get(name, "")
        if (only_given and name not in texts) or VARIABLE.search(text):
            continue
        try:
            spec.parse(text)
        except ValueError as allowed:
            what = f"It is {text!r}." if text else "It has no value."
            problems.append(Problem(model, f"parameters.{name}", what, f"It must be {allowed}."))
    return problems
