"""Makes a model repository from the templates (`assemble`), or from one that somebody wrote (`refit`)."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight import files, tiers
from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.contracts import apply_contract, contract_values
from inflight.triton.repository.layout import (
    BLS,
    CONFIG,
    DEFAULT_CONTRACT,
    ENGINE,
    ENSEMBLE,
    LLMAPI,
    PIPELINE,
    SETTINGS,
    TEMPLATES,
    VARIABLE,
    is_repository,
    models,
)
from inflight.triton.repository.parameters import DEFAULTS, variables
from inflight.triton.repository.pbtxt import as_text, fill, read_config, write_config
from inflight.triton.repository.validation import problems

# Tier -> the kind of an instance of a model that computes with PyTorch.
KINDS = {tiers.CPU: "KIND_CPU", tiers.CUDA: "KIND_GPU"}


def assemble(
    target: str | Path,
    engine_dir: str | Path | None = None,
    models: tuple[str, ...] = PIPELINE,
    templates: Path = TEMPLATES,
    contract: str = DEFAULT_CONTRACT,
    **values: Any,
) -> Path:
    """Make a model repository from the templates.

    Parameters
    ----------
    target : path
        Folder to make. A repository that was there is replaced, anything else refused.
    engine_dir : path, optional
        Engine folder; also the `tokenizer_dir` unless that is given. Models without an engine need none.
    models : tuple of str
        What the repository holds. `BLS` needs the models of `PIPELINE` beside it; `BASELINE` needs `checkpoint_dir`
        (`huggingface.folder` makes one).
    contract : str
        Whose clients the tensors are for: "0.19", TensorRT-LLM 0.9 to 0.19, "0.5", the first workshops, or "llmapi":
        TensorRT-LLM's model of today, which is one in place of `PIPELINE`, with its settings in `model.yaml`.
    **values
        Values of the variables, of which `DEFAULTS` has all; None is blank.

    Raises
    ------
    CourseError
        Unknown variable or contract, wrong value, or a repository that has `problems`; nothing is at `target`
        then.
    """
    known = list(DEFAULTS)
    if contract == LLMAPI:
        if models != PIPELINE:
            raise CourseError(f"A repository of the contract {LLMAPI} has one model: name no others.")
        models = (ENGINE,)
        known = VARIABLE.findall((templates / LLMAPI / "1" / SETTINGS).read_text(encoding="utf-8"))
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise CourseError(f"The templates have no variable {unknown[0]!r}. {did_you_mean(unknown[0], known)}")
    if engine_dir is not None:
        engine_dir = Path(engine_dir).absolute()
        values = {"tokenizer_dir": engine_dir, **values, "engine_dir": engine_dir}
    names = {ENGINE: LLMAPI} if contract == LLMAPI else {BLS: ENSEMBLE}
    kind = {"instance_kind": KINDS[tiers.here().name]}
    values = {**DEFAULTS, **contract_values(contract), **kind, **values}
    target = Path(target).absolute()
    with _made_aside(target) as aside:
        for model in models:
            _assemble_model(templates / names.get(model, model), aside / model, values, contract)
    return target


def refit(own: str | Path, target: str | Path, engine_dir: str | Path, **values: Any) -> Path:
    """Make a repository that has the models, tensors and code of `own`, and the engine and settings that are given.

    A repository that somebody has written serves another engine in this way, or the same one with other settings. What
    `own` lacks of the pipeline comes from the templates.

    Parameters
    ----------
    own : path
        A model repository, or a part of one.
    target : path
        Folder to make, as for `assemble`.
    engine_dir : path
        Engine folder; also the `tokenizer_dir` unless that is given.
    **values
        Values of the variables, as for `assemble`.

    Raises
    ------
    CourseError
        As `assemble`; a config of `own` that cannot be read.
    """
    own, target = Path(own), Path(target).absolute()
    if not is_repository(own):
        raise CourseError(f"There is no model repository at {own}. Name a folder that has one folder for each model.")
    with _made_aside(target) as aside:
        assemble(aside, engine_dir, **values)
        most = read_config(aside / ENSEMBLE / CONFIG).max_batch_size
        for model in models(own):
            config = read_config(own / model / CONFIG)
            if model in PIPELINE:
                _take_settings(config, read_config(aside / model / CONFIG))
            elif config.max_batch_size:  # a step takes what its ensemble takes
                config.max_batch_size = max(config.max_batch_size, most)
            (aside / model / "1").mkdir(parents=True, exist_ok=True)
            for file in (own / model / "1").glob("*.py"):
                shutil.copyfile(file, aside / model / "1" / file.name)
            write_config(config, aside / model / CONFIG)
    return target


@contextlib.contextmanager
def _made_aside(target: Path) -> Iterator[Path]:
    """A folder that takes the place of `target` when the block has filled it, unless it has `problems`."""
    if target.is_dir() and any(target.iterdir()) and not is_repository(target):
        raise CourseError(f"{target} holds files that are not a model repository. Name an empty or new folder.")
    with files.written_aside(target, "repository") as aside:
        yield aside
        if found := problems(aside):
            raise found[0]


def _take_settings(config: ModelConfig, settings: ModelConfig) -> None:
    """Give a config the settings that another got from its template's variables, and leave its tensors as they are."""
    config.backend, config.max_batch_size = settings.backend, settings.max_batch_size
    for field in ("parameters", "instance_group", "model_transaction_policy"):
        config.ClearField(field)
    for key, value in settings.parameters.items():
        config.parameters[key].CopyFrom(value)
    config.instance_group.extend(settings.instance_group)
    config.model_transaction_policy.CopyFrom(settings.model_transaction_policy)


def _assemble_model(template: Path, folder: Path, values: dict[str, Any], contract: str) -> None:
    text = files.read_text(template / CONFIG, "template", "Check the repository out again.")
    config = fill(text, values, f"{template.name}/{CONFIG}")
    for name, variable in variables(template.name).items():
        if name not in config.parameters:  # the template leaves it to the table of settings
            config.parameters[name].string_value = as_text(values[variable])
    apply_contract(config, contract)
    config.name = folder.name
    (folder / "1").mkdir(parents=True)
    for file in (template / "1").glob("*.py"):
        shutil.copyfile(file, folder / "1" / file.name)
    if (settings := template / "1" / SETTINGS).exists():
        text = VARIABLE.sub(lambda match: _in_yaml(match[1], values), settings.read_text(encoding="utf-8"))
        (folder / "1" / SETTINGS).write_text(text, encoding="utf-8")
    write_config(config, folder / CONFIG)


def _in_yaml(name: str, values: dict[str, Any]) -> str:
    """Return a variable's value as YAML reads it; policies have capitals there."""
    text = as_text(values[name])
    if name == "batch_scheduler_policy":
        return text.upper()
    return text if re.fullmatch(r"true|false|[\d.]+", text) else json.dumps(text or None)
