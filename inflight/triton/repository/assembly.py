"""Templates and values in, a model repository out."""

from __future__ import annotations

import difflib
import os
import shutil
from pathlib import Path

from inflight import files, tiers
from inflight.errors import CourseError
from inflight.triton.repository.checks import check
from inflight.triton.repository.contracts import apply_contract, contract_values
from inflight.triton.repository.layout import BLS, CONFIG, NEWEST_CONTRACT, PIPELINE, TEMPLATES, is_repository
from inflight.triton.repository.pbtxt import MOST_BYTES, fill, write_config
from inflight.triton.repository.templates import DEFAULTS

# Tier -> the kind of an instance of a model that computes with PyTorch.
KINDS = {tiers.CPU: "KIND_CPU", tiers.CUDA: "KIND_GPU"}


def assemble(
    target: str | Path,
    engine_dir: str | Path | None = None,
    models: tuple[str, ...] = PIPELINE,
    templates: Path = TEMPLATES,
    contract: str = NEWEST_CONTRACT,
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
        What the repository holds. `BLS` needs the models of `PIPELINE` beside it; `BASELINE` needs `checkpoint_dir`
        (`huggingface.folder` makes one).
    contract : str
        Whose clients the tensors are for: "0.19", TensorRT-LLM 0.9 to 0.19, or "0.5", the first workshops.
    **values
        Values of the templates' variables; see `DEFAULTS`.

    Raises
    ------
    CourseError
        Unknown variable or contract, wrong value, or a repository that does not pass `check`; nothing is at `target`
        then.
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
    kind = {"instance_kind": KINDS[tiers.here().name]}
    values = {**DEFAULTS, **contract_values(contract), **kind, **values}
    values = {name: value for name, value in values.items() if value is not None}
    target = Path(target).absolute()
    if target.is_dir() and any(target.iterdir()) and not is_repository(target):
        raise CourseError(f"{target} holds files that are not a model repository. Name an empty or new folder.")
    with files.written_aside(target, "repository") as aside:
        for model in models:
            _assemble_model(templates / ("ensemble" if model == BLS else model), aside / model, values, contract)
        problems = check(aside)
        if problems:
            raise CourseError(str(problems[0]).replace(f"{aside}{os.sep}", ""))
    return target


def _assemble_model(template: Path, folder: Path, values: dict, contract: str) -> None:
    text = files.read_text(template / CONFIG, "template", MOST_BYTES, "Check the repository out again.")
    config = fill(text, values, f"{template.name}/{CONFIG}")
    apply_contract(config, contract)
    config.name = folder.name
    (folder / "1").mkdir(parents=True)
    for file in (template / "1").glob("*.py"):
        shutil.copyfile(file, folder / "1" / file.name)
    write_config(config, folder / CONFIG)
