"""One table of each model's settings: the keys and values of `parameters` in a config.pbtxt.

A row says what kind of value a setting has, its range, its default, and what it does. Assembling, the editor, the check
of a config.pbtxt, `--set` and the models themselves read the rows. A new setting is a new row: of the engine in
`ExecutorConfig`, of any other model here. A template need not name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from inflight.engine.settings import ExecutorConfig
from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.layout import (
    BASELINE,
    BATCH_COST,
    CONTRACTS,
    DEFAULT_CONTRACT,
    EMBEDDING,
    ENGINE,
    ENSEMBLE,
    LLMAPI,
    POSTPROCESSING,
    PREPROCESSING,
    VARIABLE,
)

_BOOLS = {"true": True, "1": True, "false": False, "0": False}
_NUMBERS = {"int": "a whole number", "ints": "whole numbers with commas between them, each", "float": "a number"}
# The first of them that is in an annotation counts.
_KINDS = {bool: "bool", int: "int", float: "float", Path: "path", str: "text"}


@dataclass(frozen=True)
class Parameter:
    """One value of a config: a key of a model's `parameters`, which Triton hands to the model as text, or a field.

    Attributes
    ----------
    kind : str
        "choice", "int", "ints" (with commas between them), "float", "bool", "text" or "path".
    default : value or None
        None means that the key may be left blank.
    help : str
        What it does, in a sentence.
    choices : tuple of str
        Allowed values of a "choice".
    low, high : number
        Least and greatest value of an "int", a "float", or each of "ints".
    made_by : str
        Command that makes what is at such a path.
    required : bool
        Whether it must not be blank.
    variable : str or None
        The variable of `assemble` that gives it its value: of its own name unless another is named; blank: none.
    """

    kind: str
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    made_by: str = ""
    required: bool = False
    variable: str | None = None

    def parse(self, text: str) -> Any:
        """Return the Python value of `text`; ValueError says what is allowed instead."""
        if text == "" and not self.required:
            return self.default
        try:
            return self._read(text)
        except (KeyError, ValueError):
            raise ValueError(self._allowed()) from None

    def _read(self, text: str) -> Any:
        if self.kind == "bool":
            return _BOOLS[text.lower()]
        if self.kind == "ints":
            return [self._in_range(int(part)) for part in text.strip("[]").split(",")]
        if self.kind in _NUMBERS:
            return self._in_range(int(text) if self.kind == "int" else float(text))
        if not text or (self.kind == "choice" and text not in self.choices):
            raise ValueError
        return text

    def _in_range(self, value: float) -> float:
        if not (self.low is None or value >= self.low) or not (self.high is None or value <= self.high):
            raise ValueError
        return value

    def _allowed(self) -> str:
        if self.kind == "choice":
            return " or ".join(filter(None, [", ".join(self.choices[:-1]), self.choices[-1]]))
        if self.kind == "path":
            return "a path" + (f"; `{self.made_by}` makes one" if self.made_by else "")
        words = [{"bool": "true or false", "text": "a text", **_NUMBERS}[self.kind]]
        words += [] if self.low is None else [f"of at least {self.low:g}"]
        words += [] if self.high is None else [f"{'and ' if len(words) > 1 else 'of '}at most {self.high:g}"]
        return " ".join(words)


# The table ------------------------------------------------------------------------------------------------------------


def of_config(config: type) -> dict[str, Parameter]:
    """Make a row for each setting of a config: its kind from the type, the rest from the setting's declaration."""
    hints = {name: (hint, *get_args(hint)) for name, hint in get_type_hints(config).items()}
    return {
        setting.name: Parameter(
            "choice"
            if setting.metadata["choices"]
            else next(kind for type_, kind in _KINDS.items() if type_ in hints[setting.name]),
            setting.default,
            **setting.metadata,
        )
        for setting in fields(config)
    }


def _checkpoint(variable: str = "checkpoint_dir", made_by: str = "") -> Parameter:
    help = "Hugging Face folder of the model, with its tokenizer."
    return Parameter("path", None, help, made_by=made_by, required=True, variable=variable)


def _dtype(variable: str, *choices: str) -> Parameter:
    help = "Precision of weights and arithmetic; auto: the faster one here."
    return Parameter("choice", "auto", help, ("auto", *choices), variable=variable)


_EXECUTOR = of_config(ExecutorConfig)
_TOKENIZER = {
    "tokenizer_dir": Parameter("path", None, "Folder with tokenizer.json.", made_by="inflight build", required=True),
    "tokenizer_type": Parameter(
        "choice", None, "Has no effect: tokenizer.json says what kind it is.", ("auto", "t5", "llama", "sp")
    ),
}
# TensorRT-LLM leaves the chat template to its clients; a learner's first question should be answered as in a chat.
_CHAT_TEMPLATE = {
    "apply_chat_template": Parameter("bool", True, "Put the text into the model's chat template as one user turn.")
}
# TensorRT-LLM's default is false; here an answer does not repeat its prompt unless asked to.
_EXCLUDE_INPUT = {"exclude_input_in_output": Parameter("bool", True, "Leave the prompt out of whole answers.")}
_MAKES_BASELINE = "inflight assemble --with-llama-python"
_ITERATION_LOG = {"iteration_log_path": _EXECUTOR["iteration_log_path"]}
_EXECUTION_LOG = {"execution_log_path": Parameter("path", None, "File for one JSON line per execution; blank: none.")}

# Model -> its settings.
PARAMETERS: dict[str, dict[str, Parameter]] = {
    ENGINE: {
        "gpt_model_path": Parameter(
            "path", None, "Engine folder.", made_by="inflight build", required=True, variable="engine_dir"
        ),
        **_EXECUTOR,
        # TensorRT-LLM does not load a model that leaves it open.
        "gpt_model_type": replace(_EXECUTOR["gpt_model_type"], required=True, variable="batching_strategy"),
        "files_sha256": Parameter(
            "text",
            None,
            "Digest of the Python files that it names, by which a load sees that one changed.",
            variable="",
        ),
        **_EXCLUDE_INPUT,
        # TensorRT-LLM's executor has it for each request. It is long, since it ends requests of clients that have gone.
        "allotted_time_ms": Parameter(
            "int", 300_000, "Most time that a request may take, its wait included; 0: no limit.", low=0
        ),
        "cancellation_check_period_ms": Parameter("int", 100, "How often to look for clients that are gone.", low=1),
        "stats_check_period_ms": Parameter("int", 100, "How often to refresh /metrics.", low=1),
        "FORCE_CPU_ONLY_INPUT_TENSORS": Parameter(
            "choice", "no", "Where input tensors are kept.", ("yes", "no"), variable=""
        ),
    },
    PREPROCESSING: {
        **_TOKENIZER,
        "add_special_tokens": Parameter("bool", True, "Let the tokenizer add its special tokens."),
        **_CHAT_TEMPLATE,
    },
    POSTPROCESSING: {
        **_TOKENIZER,
        "skip_special_tokens": Parameter("bool", True, "Leave special tokens out of the text."),
        "contract": Parameter("choice", DEFAULT_CONTRACT, "That of the engine's tensors.", CONTRACTS, variable=""),
    },
    ENSEMBLE: {},
    LLMAPI: {},  # its settings stand in a file of their own: `llmapi`
    BASELINE: {
        "checkpoint_dir": _checkpoint(made_by=_MAKES_BASELINE),
        "tokenizer_dir": replace(_checkpoint(made_by=_MAKES_BASELINE), help="Folder with tokenizer.json."),
        "dtype": _dtype("llama_dtype", "bfloat16", "float32"),
        **_CHAT_TEMPLATE,
        **_EXCLUDE_INPUT,
    },
    "simple-gpt2": {"checkpoint_dir": _checkpoint("gpt2_checkpoint_dir"), **_ITERATION_LOG},
    "iterative-gpt2": {
        "checkpoint_dir": _checkpoint("gpt2_checkpoint_dir"),
        "dtype": _dtype("gpt2_dtype", "bfloat16", "float16", "float32"),
        "kv_cache": Parameter(
            "choice", "on", "off: compute every history again.", ("on", "off"), variable="gpt2_kv_cache"
        ),
        "kv_cache_slots": Parameter(
            "int", 8, "Sequences that the KV cache holds.", low=1, variable="gpt2_kv_cache_slots"
        ),
        "when_full": Parameter(
            "choice",
            "wait",
            "What a request does when every row is taken.",
            ("wait", "refuse"),
            variable="gpt2_when_full",
        ),
        **_ITERATION_LOG,
    },
    BATCH_COST: {
        "fixed_ms": Parameter(
            "float", 20, "What a batch costs, whatever its size.", low=0, high=60_000, variable="batch_cost_fixed_ms"
        ),
        "item_ms": Parameter(
            "float", 2, "What each unit of work in it adds.", low=0, high=60_000, variable="batch_cost_item_ms"
        ),
        **_EXECUTION_LOG,
        "TRITON_BATCH_STRATEGY_PATH": Parameter(
            "path", None, "Library that decides which requests join a batch; blank: none.", variable=""
        ),
    },
    EMBEDDING: {"checkpoint_dir": _checkpoint(), "dtype": _dtype("embedding_dtype", "bfloat16", "float32")},
}


def variables(model: str) -> dict[str, str]:
    """Map each parameter of a model to the variable of `assemble` that sets it; those without one are left out."""
    rows = PARAMETERS.get(model, {})
    named = {name: name if row.variable is None else row.variable for name, row in rows.items()}
    return {name: variable for name, variable in named.items() if variable}


# Default values of `assemble`'s variables: Triton's own fields, then the settings (blank: none).
DEFAULTS: dict[str, Any] = {
    "triton_backend": "python",
    "triton_max_batch_size": 64,
    "decoupled_mode": False,
    "instance_kind": "KIND_CPU",  # of models that compute with PyTorch; `assemble` puts in that of the machine's tier
    "preprocessing_instance_count": 1,
    "postprocessing_instance_count": 1,
    "gpt2_max_batch_size": 8,
    "gpt2_max_sequence_idle_microseconds": 60_000_000,
    "batch_cost_max_batch_size": 8,
    "embedding_max_batch_size": 8,
} | {
    variable: "" if (default := PARAMETERS[model][name].default) is None else default
    for model in PARAMETERS
    for name, variable in variables(model).items()
}


# What is wrong with values --------------------------------------------------------------------------------------------


def typed_parameters(model: str, texts: dict[str, str]) -> dict[str, Any]:
    """Return every parameter of `model` as a Python value.

    Raises
    ------
    CourseError
        An unknown key or a wrong value; the message says which and what is allowed.
    """
    if problems := parameter_problems(f"model {model!r}", model, texts):
        raise problems[0]
    return {name: row.parse(texts.get(name, "")) for name, row in PARAMETERS[model].items()}


def parameter_problems(where: str, model: str, texts: Mapping[str, str], only_given: bool = False) -> list[CourseError]:
    """List what is wrong with the texts of a model's parameters; `only_given`: missing ones are not looked for."""
    known, problems = PARAMETERS[model], []

    def note(name: str, what: str, fix: str) -> None:
        problems.append(CourseError(what, fix, where=(where, f"parameters.{name}")))

    for name, text in texts.items():
        if name not in known:
            note(name, "This key is unknown.", did_you_mean(name, known))
        elif variable := VARIABLE.search(text):
            note(name, f"The variable {variable[0]} is not filled.", "Give it a value when assembling.")
    for name, row in known.items():
        text = texts.get(name, "")
        if (only_given and name not in texts) or VARIABLE.search(text):
            continue
        try:
            row.parse(text)
        except ValueError as allowed:
            note(name, f"It is {text!r}." if text else "It has no value.", f"It must be {allowed}.")
    return problems
