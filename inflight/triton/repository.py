"""Templates and values in, a Triton model repository out.

    repo = assemble("repo", engine_dir="engine", decoupled_mode=True)
    for problem in check(repo):
        print(problem)

A model repository is a folder with one folder a model: `config.pbtxt` says what flows in and out and how the model is run,
`1/model.py` is the model's version 1. A `config.pbtxt` is a protobuf message (`ModelConfig`) in text form; here it is read,
changed and written as that message. The templates in `assets/repository/` keep TensorRT-LLM's `${name}` variables.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_encoding, text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight import files
from inflight.engine.config import BATCHING_TYPES, POLICIES
from inflight.errors import CourseError
from inflight.paths import ASSETS
from inflight.triton import batch_library, batchers
from inflight.triton.parameter import Parameter, Problem

TEMPLATES = ASSETS / "repository"
CONFIG = "config.pbtxt"
PIPELINE = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble")
BASELINE = "llama-python"  # the same checkpoint without an engine, beside the others when asked for
GPT2 = ("simple-gpt2", "iterative-gpt2")  # batch after batch, and a batch that changes at every token
BATCH_COST = "batch-cost"  # sleeps instead of computing, so that nothing but the batcher is seen
RUNNING_SUM = "running-sum"  # remembers what came before in a sequence
EMBEDDING = "text-embedding"  # the checkpoint as a model that gains from batches

# Parameters: what may stand in a config.pbtxt's `parameters` ----------------------------------------------------------


_TOKENIZER = {"tokenizer_dir": Parameter("path", None, "Folder with tokenizer.json.", required=True)}
_CHAT_TEMPLATE = {
    "apply_chat_template": Parameter("bool", False, "Put the text into the model's chat template as one user turn.")
}
_MAKES_BASELINE = "inflight assemble --with-llama-python"
_GPT2_CHECKPOINT = {
    "checkpoint_dir": Parameter(
        "folder", None, "Hugging Face folder of a GPT-2, with its tokenizer.", holds="*.safetensors", required=True
    )
}
_ITERATION_LOG = {"iteration_log_path": Parameter("path", None, "File for one JSON line an iteration; blank: none.")}
_EXECUTION_LOG = {"execution_log_path": Parameter("path", None, "File for one JSON line an execution; blank: none.")}
PARAMETERS: dict[str, dict[str, Parameter]] = {
    "tensorrt_llm": {
        "gpt_model_path": Parameter("path", None, "Engine folder.", required=True),
        "gpt_model_type": Parameter(
            "choice", None, "V1: static batching; the others: in-flight batching.", (*BATCHING_TYPES,), required=True
        ),
        "batch_scheduler_policy": Parameter(
            "choice",
            "guaranteed_no_evict",
            "What happens when KV blocks are short.",
            (*POLICIES, "guaranteed_completion"),
        ),
        "max_tokens_in_paged_kv_cache": Parameter(
            "int", None, "Most tokens in the KV cache; blank: no such limit.", low=1
        ),
        "kv_cache_free_gpu_mem_fraction": Parameter(
            "float", 0.9, "Most of the free memory that the KV cache takes.", low=0, high=1
        ),
        "enable_kv_cache_reuse": Parameter("bool", False, "Keep the KV blocks of prompts for later ones."),
        "enable_chunked_context": Parameter("bool", False, "Compute a long prompt in parts."),
        "exclude_input_in_output": Parameter("bool", False, "Leave the prompt out of output_ids."),
        "max_queue_size": Parameter("int", 0, "Most requests that wait for a seat; 0: no limit.", low=0),
        "cancellation_check_period_ms": Parameter("int", 100, "How often to look for clients that are gone.", low=1),
        "stats_check_period_ms": Parameter("int", 100, "How often to refresh /metrics.", low=1),
        **_ITERATION_LOG,
        "FORCE_CPU_ONLY_INPUT_TENSORS": Parameter("choice", "no", "Where input tensors lie.", ("yes", "no")),
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
        "dtype": Parameter("choice", "bfloat16", "Precision of weights and arithmetic.", ("bfloat16", "float32")),
        **_CHAT_TEMPLATE,
    },
    "simple-gpt2": {**_GPT2_CHECKPOINT, **_ITERATION_LOG},
    "iterative-gpt2": {
        **_GPT2_CHECKPOINT,
        "dtype": Parameter(
            "choice", "bfloat16", "Precision of weights, cache and arithmetic.", ("bfloat16", "float16", "float32")
        ),
        "kv_cache": Parameter(
            "choice",
            "on",
            "off: compute every history again; tutorial: so, in float32, by generate.",
            ("on", "off", "tutorial"),
        ),
        "kv_cache_slots": Parameter("int", 8, "Sequences that the KV cache holds.", low=1),
        "when_full": Parameter("choice", "wait", "What a request does when every slot is taken.", ("wait", "refuse")),
        **_ITERATION_LOG,
    },
    BATCH_COST: {
        "fixed_ms": Parameter("float", 20.0, "What a batch costs, however many are in it.", low=0, high=60_000),
        "item_ms": Parameter("float", 2.0, "What each unit of work in it costs more.", low=0, high=60_000),
        **_EXECUTION_LOG,
        "TRITON_BATCH_STRATEGY_PATH": Parameter("path", None, "Library that decides who joins a batch; blank: none."),
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
    problems = _parameter_problems(model, texts)
    if problems:
        raise CourseError(f"model {model!r}: {problems[0].field}: {problems[0].message} {problems[0].fix}")
    return {name: spec.parse(texts.get(name, "")) for name, spec in PARAMETERS[model].items()}


# Reading, writing, editing --------------------------------------------------------------------------------------------

# Values for the templates' variables. None must be given: it depends on the machine.
DEFAULTS: dict[str, Any] = {
    "engine_dir": None,
    "tokenizer_dir": None,
    "triton_backend": "python",
    "triton_max_batch_size": 64,
    "preprocessing_instance_count": 1,
    "postprocessing_instance_count": 1,
    "decoupled_mode": False,
    "batching_strategy": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "max_tokens_in_paged_kv_cache": "",
    "kv_cache_free_gpu_mem_fraction": 0.5,
    "enable_kv_cache_reuse": False,
    "enable_chunked_context": False,
    "exclude_input_in_output": True,
    "max_queue_size": 0,
    "cancellation_check_period_ms": 100,
    "stats_check_period_ms": 100,
    "iteration_log_path": "",
    "add_special_tokens": True,
    "apply_chat_template": True,
    "skip_special_tokens": True,
    "checkpoint_dir": "",  # of the baseline and of text-embedding; see huggingface.folder
    "llama_dtype": "bfloat16",
    "gpt2_checkpoint_dir": "",  # of the GPT-2 models
    "gpt2_max_batch_size": 8,
    "gpt2_dtype": "bfloat16",
    "gpt2_kv_cache": "on",
    "gpt2_kv_cache_slots": 8,
    "gpt2_when_full": "wait",
    "gpt2_max_sequence_idle_microseconds": 60_000_000,
    "batch_cost_max_batch_size": 8,
    "batch_cost_fixed_ms": 20,
    "batch_cost_item_ms": 2,
    "running_sum_max_batch_size": 4,
    "running_sum_max_sequence_idle_microseconds": 5_000_000,
    "execution_log_path": "",
    "embedding_max_batch_size": 8,
    "embedding_dtype": "auto",
}
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_BARE_VALUE = re.compile(r"-?\d+|true|false|[A-Z][A-Z0-9_]*")


def parse(text: str, file: str = CONFIG) -> ModelConfig:
    """A `config.pbtxt` as a message.

    Raises
    ------
    CourseError
        With line and column of what is not right.
    """
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as error:
        raise CourseError(f"{file}: {_parse_reason(str(error), text)}") from None


def _parse_reason(error: str, text: str) -> str:
    """Protobuf's complaint, in a sentence that says what to do."""
    place = re.match(r"(\d+):(\d+) : ", error)
    where = f"line {place[1]}, column {place[2]}: " if place else ""
    line = text.splitlines()[int(place[1]) - 1] if place and int(place[1]) <= len(text.splitlines()) else ""
    field = re.search(r"(\w+)\s*:[\s\[]*$", line[: int(place[2]) - 1]) if place else None
    where += f"{field[1]}: " if field else ""
    variable = _VARIABLE.search(line)
    if variable:
        return f"{where}the variable ${{{variable[1]}}} is not filled. Give it a value when assembling."
    unknown = re.search(r'has no field named "(\w+)"', error)
    if unknown:
        known = [field.name for field in ModelConfig.DESCRIPTOR.fields]
        near = difflib.get_close_matches(unknown[1], known, 1)
        return f"{where}there is no field {unknown[1]!r}." + (f" Did you mean {near[0]!r}?" if near else "")
    both = re.search(r'Field "(\w+)" is specified along with field "(\w+)"', error)
    if both:
        return f"{where}{both[1]} and {both[2]} exclude each other: only one of them can be chosen. Take one out."
    value = re.search(r'Enum type "([\w.]+)" has no value named (\w+)', error)
    if value:
        names = ModelConfig.DESCRIPTOR.file.pool.FindEnumTypeByName(value[1]).values_by_name
        return (
            f"{where}there is no {value[1].rpartition('.')[2]} {value[2]}, only {', '.join(names)}. Correct this line."
        )
    reason = error.split(" : ", 1)[-1].splitlines()[0].strip(".'")
    return f"{where}{reason.rpartition(chr(39) + ': ')[2]}. Correct this line."


def read_config(path: str | Path) -> ModelConfig:
    """Read a `config.pbtxt`; errors name the file."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise CourseError(f"{path} does not exist. Assemble the repository: `inflight assemble`.") from None
    except UnicodeDecodeError as error:
        raise CourseError(f"{path} is not text ({error}). Assemble the repository again.") from error


def to_text(config: ModelConfig) -> str:
    return text_format.MessageToString(config, use_short_repeated_primitives=True)


def write_config(config: ModelConfig, path: str | Path) -> None:
    """Write a `config.pbtxt` so that a reader sees the old file or the new one, never half of one."""
    path = Path(path)
    try:
        files.replace_text(path, to_text(config))
    except OSError as error:
        raise CourseError(
            f"{path} cannot be written ({error.strerror}). Make room or make the folder writable."
        ) from error


def get_parameter(config: ModelConfig, name: str) -> str:
    """Text of a parameter; blank when it is not there."""
    return config.parameters[name].string_value if name in config.parameters else ""


def set_parameter(config: ModelConfig, name: str, value) -> None:
    """Set a parameter in the message, after checking key and value.

    Raises
    ------
    CourseError
        Unknown key, or a value that the key does not take. The message is unchanged then.
    """
    text = _as_text(value)
    problems = _parameter_problems(config.name, {name: text}, only_given=True)
    if problems:
        raise CourseError(f"{config.name}: {problems[0].field}: {problems[0].message} {problems[0].fix}")
    config.parameters[name].string_value = text


def spec(model: str, name: str) -> Parameter:
    """What a value of a model may be: a key of its parameters, or the path of one of Triton's own fields."""
    return batchers.FIELDS[name] if name in batchers.FIELDS else PARAMETERS[model][name]


def get_value(config: ModelConfig, name: str) -> str:
    """Text of a parameter, or of one of `batchers.FIELDS`; blank when it is not there."""
    return batchers.get_field(config, name) if name in batchers.FIELDS else get_parameter(config, name)


def set_value(config: ModelConfig, name: str, value) -> None:
    """Set a parameter, or one of `batchers.FIELDS`, after checking it; see `set_parameter` for what is raised."""
    if name in batchers.FIELDS:
        batchers.set_field(config, name, _as_text(value))
    else:
        set_parameter(config, name, value)


def edit(repo: str | Path, model: str, fragment: str = "", **values) -> str:
    """Change the config of one model on disk: everything that is named or, on an error, nothing.

    Parameters
    ----------
    fragment : str
        Part of a config.pbtxt, such as "dynamic_batching { max_queue_delay_microseconds: 500 }". What it names at its
        top level is replaced; another batcher than before takes the place of that one.
    **values
        Values of the model's parameters, and of `batchers.FIELDS` by their path:
        `**{"dynamic_batching.max_queue_delay_microseconds": 500}`.

    Returns
    -------
    str
        What changed, as a unified diff.

    Raises
    ------
    CourseError
        A key, field or value that is not there or not allowed; a config that Triton would refuse.
    """
    path = Path(repo) / model / CONFIG
    before = read_config(path)
    after = ModelConfig()
    after.CopyFrom(before)
    part = parse(fragment, "the fragment")
    for field, _ in part.ListFields():
        after.ClearField(field.name)
    after.MergeFrom(part)
    for name, value in values.items():
        set_value(after, name, value)
    batchers.check(after)
    write_config(after, path)
    return diff(before, after, f"{model}/{CONFIG}")


def diff(before: ModelConfig, after: ModelConfig, name: str = CONFIG) -> str:
    """Unified diff of two configs; blank when they are equal."""
    lines = [to_text(config).splitlines() for config in (before, after)]
    return "\n".join(difflib.unified_diff(*lines, f"{name} (before)", f"{name} (after)", lineterm="", n=3))


def _as_text(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Assembling -----------------------------------------------------------------------------------------------------------


def fill(template: str, values: dict[str, Any], file: str = CONFIG) -> ModelConfig:
    """A template with its variables replaced, as a message.

    A variable inside quotes takes any text, escaped; one outside takes a number, true, false or a name in capitals. So no
    value can become a second field, as it can with `sed`.
    """

    def literal(match: re.Match) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        text = _as_text(values[name])
        quoted = template[: match.start()].rpartition("\n")[2].count('"') % 2 == 1
        if quoted:
            return text_encoding.CEscape(text, as_utf8=True)
        if not _BARE_VALUE.fullmatch(text):
            raise CourseError(f"{file}: {name} is {text!r}; give a number, true, false or a name in capitals.")
        return text

    return parse(_VARIABLE.sub(literal, template), file)


def assemble(
    target: str | Path,
    engine_dir: str | Path | None = None,
    models: tuple[str, ...] = PIPELINE,
    templates: Path = TEMPLATES,
    **values,
) -> Path:
    """Make a model repository from the templates.

    Parameters
    ----------
    target : path
        Folder to make. A repository that was there is replaced, anything else refused.
    engine_dir : path, optional
        Engine folder; also the `tokenizer_dir` unless that is given. Models without an engine need none.
    models : tuple of str
        What the repository holds. With `BASELINE`, give the `checkpoint_dir` too (`huggingface.folder` makes one).
    **values
        Values of the templates' variables; see `DEFAULTS`.

    Raises
    ------
    CourseError
        Unknown variable, wrong value, or a repository that does not pass `check`; nothing is at `target` then.
    """
    unknown = sorted(set(values) - set(DEFAULTS))
    if unknown:
        near = difflib.get_close_matches(unknown[0], DEFAULTS, 1)
        raise CourseError(
            f"The templates have no variable {unknown[0]!r}. "
            + (f"Did you mean {near[0]!r}?" if near else f"They have: {', '.join(DEFAULTS)}.")
        )
    if engine_dir is not None:
        engine_dir = Path(engine_dir).absolute()
        values = {"tokenizer_dir": engine_dir, **values, "engine_dir": engine_dir}
    values = {name: value for name, value in {**DEFAULTS, **values}.items() if value is not None}
    target = Path(target).absolute()
    if target.is_dir() and any(target.iterdir()) and not is_repository(target):
        raise CourseError(f"{target} holds files that are not a model repository. Name an empty or new folder.")
    with files.written_aside(target, "repository") as aside:
        for model in models:
            _assemble_model(templates / model, aside / model, values)
        problems = check(aside)
        if problems:
            raise CourseError(str(problems[0]).replace(f"{aside}{os.sep}", ""))
    return target


def _assemble_model(template: Path, folder: Path, values: dict) -> None:
    config = fill((template / CONFIG).read_text(encoding="utf-8"), values, f"{template.name}/{CONFIG}")
    (folder / "1").mkdir(parents=True)
    for file in (template / "1").glob("*.py"):
        shutil.copyfile(file, folder / "1" / file.name)
    write_config(config, folder / CONFIG)


def is_repository(folder: Path) -> bool:
    return any(folder.glob(f"*/{CONFIG}"))


def models(repo: str | Path) -> list[str]:
    """Names of the models in a repository, in the order of the pipeline, then by name."""
    names = sorted(path.parent.name for path in Path(repo).glob(f"*/{CONFIG}"))
    return sorted(names, key=lambda name: PIPELINE.index(name) if name in PIPELINE else len(PIPELINE))


# Checking -------------------------------------------------------------------------------------------------------------


def check(repo: str | Path) -> list[Problem]:
    """Everything that can be found wrong in a repository without starting a server.

    Unfilled variables, unknown fields and keys, wrong types and values, missing files, batchers that Triton refuses, and
    ensemble steps whose tensor names, types or shapes do not fit together.
    """
    repo = Path(repo)
    if not repo.is_dir() or not is_repository(repo):
        return [Problem(str(repo), "folder", "There is no model in it.", "Make one: `inflight assemble`.")]
    problems, configs = [], {}
    for name in models(repo):
        path = repo / name / CONFIG
        try:
            configs[name] = read_config(path)
        except CourseError as error:
            message, _, fix = str(error).removeprefix(f"{path}: ").partition(". ")
            problems.append(Problem(str(path), "syntax", message.rstrip(".") + ".", fix or "Correct this line."))
    for name, config in configs.items():
        problems += _model_problems(repo, name, config)
    for name, config in configs.items():
        if config.platform == "ensemble" and len(configs) == len(
            models(repo)
        ):  # steps can be judged when all can be read
            problems += _ensemble_problems(str(repo / name / CONFIG), config, configs)
    return problems


def _model_problems(repo: Path, name: str, config: ModelConfig) -> list[Problem]:
    file = str(repo / name / CONFIG)
    problems = []
    if config.name and config.name != name:
        problems.append(
            Problem(file, "name", f"It is {config.name!r}, but the folder is {name!r}.", "Make them equal.")
        )
    versions = [path for path in (repo / name).iterdir() if path.is_dir() and path.name.isdigit()]
    if not versions:
        problems.append(Problem(str(repo / name), "1/", "There is no version folder.", "Make one named 1."))
    elif config.backend == "python" and not any((path / "model.py").exists() for path in versions):
        problems.append(
            Problem(str(versions[0]), "model.py", "The Python model is missing.", "Put its model.py there.")
        )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if tensor.data_type == DataType.TYPE_INVALID:
                problems.append(
                    Problem(file, f"{kind} {tensor.name}", "It has no data_type.", "Add one, such as TYPE_INT32.")
                )
    problems += [Problem(file, p.field, p.message, p.fix) for p in batchers.problems(config)]
    if name in PARAMETERS:
        texts = {key: value.string_value for key, value in config.parameters.items()}
        problems += [Problem(file, p.field, p.message, p.fix) for p in _parameter_problems(name, texts)]
    return problems + batch_library_problems(repo / name, config)


def batch_library_problems(folder: Path, config: ModelConfig) -> list[Problem]:
    """What is wrong with the library that Triton would take: the one that the config names, or one in the model's folders.

    Triton does not come back from loading one that has some of the functions.
    """
    file, field = str(folder / CONFIG), f"parameters.{batch_library.PARAMETER}"
    named = get_parameter(config, batch_library.PARAMETER)
    if named and config.HasField("sequence_batching"):
        return [Problem(file, field, "It cannot be specified with the sequence batcher.", "Leave it out.")]
    if named and not _VARIABLE.search(named):
        found = [(file, field, Path(named))]
    else:
        paths = [*folder.glob(f"*/{batch_library.FILE_NAME}"), folder / batch_library.FILE_NAME]
        found = [(str(path), batch_library.FILE_NAME, path) for path in paths if path.exists()]
    checked = [(where, what, batch_library.check(path)) for where, what, path in found]
    return [Problem(where, what, problem.message, problem.fix) for where, what, problem in checked if problem]


def _parameter_problems(model: str, texts: dict[str, str], only_given: bool = False) -> list[Problem]:
    known, problems = PARAMETERS[model], []
    for name, text in texts.items():
        field, variable = f"parameters.{name}", _VARIABLE.search(text)
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            fix = f"Did you mean {near[0]!r}?" if near else f"The model has: {', '.join(known)}."
            problems.append(Problem(model, field, "This key is unknown.", fix))
        elif variable:
            fix = "Give it a value when assembling."
            problems.append(Problem(model, field, f"The variable {variable[0]} is not filled.", fix))
    for name, spec in known.items():
        text = texts.get(name, "")
        if (only_given and name not in texts) or _VARIABLE.search(text):
            continue
        try:
            spec.parse(text)
        except ValueError as allowed:
            what = f"It is {text!r}." if text else "It has no value."
            problems.append(Problem(model, f"parameters.{name}", what, f"It must be {allowed}."))
    return problems


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from one model of an ensemble to another ("client" at both ends)."""

    source: str
    target: str
    tensor: str  # the ensemble's name for it
    output: str  # the source's name for it
    input: str  # the target's name for it
    data_type: str
    dims: tuple[int, ...]
    optional: bool


def ensemble_edges(repo: str | Path, ensemble: str = "ensemble") -> list[Edge]:
    """What flows where in an ensemble, read from the repository's files."""
    configs = {name: read_config(Path(repo) / name / CONFIG) for name in models(repo)}
    config = configs[ensemble]
    producers = {tensor.name: ("client", tensor) for tensor in config.input}
    edges = []
    for step in config.ensemble_scheduling.step:
        inputs = {tensor.name: tensor for tensor in configs[step.model_name].input}
        outputs = {tensor.name: tensor for tensor in configs[step.model_name].output}
        for own, shared in sorted(step.input_map.items()):
            source, tensor = producers[shared]
            edges.append(_edge(source, step.model_name, shared, tensor, own, inputs[own].optional))
        producers |= {shared: (step.model_name, outputs[own]) for own, shared in step.output_map.items()}
    for tensor in config.output:
        source, produced = producers[tensor.name]
        edges.append(_edge(source, "client", tensor.name, produced, tensor.name, False))
    return edges


def _edge(source: str, target: str, shared: str, tensor, own: str, optional: bool) -> Edge:
    kind = DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return Edge(source, target, shared, tensor.name, own, kind, tuple(tensor.dims), optional)


def _ensemble_problems(file: str, config: ModelConfig, configs: dict[str, ModelConfig]) -> list[Problem]:
    problems: list[Problem] = []
    available = {tensor.name: ("the ensemble's inputs", tensor) for tensor in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}] ({step.model_name})"
        if step.model_name not in configs:
            fix = f"There are: {', '.join(configs)}."
            problems.append(Problem(file, field, f"The repository has no model {step.model_name!r}.", fix))
            continue
        model = configs[step.model_name]
        problems += _step_problems(file, field, step, model, available)
        outputs = {tensor.name: tensor for tensor in model.output}
        available |= {
            shared: (step.model_name, outputs[own]) for own, shared in step.output_map.items() if own in outputs
        }
    for tensor in config.output:
        if tensor.name not in available:
            problems.append(
                Problem(file, f"output {tensor.name}", "No step produces it.", "Add it to a step's output_map.")
            )
        else:
            source, produced = available[tensor.name]
            problems += _fit_problems(file, f"output {tensor.name}", source, produced, tensor)
    return problems or _loose_ends(file, config)  # a misspelt name would be reported twice


def _loose_ends(file: str, config: ModelConfig) -> list[Problem]:
    """Names that two tensors have, and tensors that nobody takes; Triton refuses both."""
    steps, problems = config.ensemble_scheduling.step, []
    taken = {shared for step in steps for shared in step.input_map.values()} | {tensor.name for tensor in config.output}
    seen: set[str] = set()
    made = [(f"input {tensor.name}", tensor.name) for tensor in config.input]
    made += [
        (f"ensemble_scheduling.step[{index}] ({step.model_name}).output_map", shared)
        for index, step in enumerate(steps)
        for shared in step.output_map.values()
    ]
    for field, name in made:
        if name in seen:
            problems.append(
                Problem(file, field, f"{name!r} is already the name of another tensor.", "Give it one of its own.")
            )
        elif name not in taken:
            fix = "Name it in a step's input_map or among the ensemble's outputs, or leave it out."
            problems.append(Problem(file, field, f"No step and no output takes {name!r}.", fix))
        seen.add(name)
    return problems


def _step_problems(file: str, field: str, step, model: ModelConfig, available: dict) -> list[Problem]:
    problems = []
    sides = (
        ("input_map", step.input_map, {t.name: t for t in model.input}),
        ("output_map", step.output_map, {t.name: t for t in model.output}),
    )
    for side, mapping, tensors in sides:
        for own in mapping:
            if own not in tensors:
                near = difflib.get_close_matches(own, tensors, 1)
                fix = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(tensors)}."
                what = f"{model.name} has no {side.removesuffix('_map')} {own!r}."
                problems.append(Problem(file, f"{field}.{side}", what, fix))
    for own, shared in step.input_map.items():
        if own not in sides[0][2]:
            continue
        if shared not in available:
            what = f"{own} takes {shared!r}, which no earlier step and no input gives."
            near = difflib.get_close_matches(shared, available, 1)
            fix = f"Did you mean {near[0]!r}?" if near else "Correct the name, or add it to an output_map."
            problems.append(Problem(file, f"{field}.input_map", what, fix))
        else:
            source, tensor = available[shared]
            problems += _fit_problems(file, f"{field}.input_map {own}", source, tensor, sides[0][2][own])
    for tensor in model.input:
        if not tensor.optional and tensor.name not in step.input_map:
            what = f"{model.name} needs the input {tensor.name!r}, which the step does not give."
            problems.append(Problem(file, f"{field}.input_map", what, "Add it to the input_map."))
    return problems


def _fit_problems(file: str, field: str, source: str, given, wanted) -> list[Problem]:
    """Type and shape of a tensor against what takes it; -1 fits any length."""
    if given.data_type != wanted.data_type:
        names = [DataType.Name(tensor.data_type) for tensor in (given, wanted)]
        return [
            Problem(
                file,
                field,
                f"{source} gives {given.name} as {names[0]}, but {wanted.name} is {names[1]}.",
                "Make the types equal.",
            )
        ]
    fits = len(given.dims) == len(wanted.dims) and all(
        -1 in pair or pair[0] == pair[1] for pair in zip(given.dims, wanted.dims)
    )
    if not fits:
        return [
            Problem(
                file,
                field,
                f"{source} gives {given.name} with dims {list(given.dims)}, but {wanted.name} has {list(wanted.dims)}.",
                "Make the shapes fit.",
            )
        ]
    return []
