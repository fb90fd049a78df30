"""Checks a repository before a server loads it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton.repository.ensembles import ensemble_problems
from inflight.triton.repository.layout import CONFIG, SETTINGS, is_repository, models
from inflight.triton.repository.parameters import PARAMETERS, Problem, parameter_problems
from inflight.triton.repository.pbtxt import read_config


def problems(repo: str | Path) -> list[Problem]:
    """List every problem that can be found in a repository without starting a server.

    Unfilled variables, unknown fields and keys, wrong types and values, missing files, and ensemble steps whose tensor
    names, types or shapes do not fit together. The rest of a config Triton judges, at its load.
    """
    repo = Path(repo)
    if not repo.is_dir() or not is_repository(repo):
        return [Problem(str(repo), "folder", "There is no model in it.", "Make one: `inflight assemble`.")]
    found, configs = [], {}
    for name in models(repo):
        path = repo / name / CONFIG
        try:
            configs[name] = read_config(path)
        except CourseError as error:
            found.append(Problem(str(path), "syntax", error.what, error.fix))
    for name, config in configs.items():
        found += _model_problems(repo, name, config)
    if len(configs) == len(models(repo)):  # steps can be judged when all can be read
        for name, config in configs.items():
            if config.platform == "ensemble":
                found += ensemble_problems(str(repo / name / CONFIG), config, configs)
    return found


def _model_problems(repo: Path, name: str, config: ModelConfig) -> list[Problem]:
    file, problems = str(repo / name / CONFIG), []
    if config.name and config.name != name:
        what = f"It is {config.name!r}, but the folder is {name!r}."
        problems.append(Problem(file, "name", what, "Make them equal."))
    if config.backend == "python" and not re.fullmatch(r"[\w.-]+", name, re.ASCII):
        what = "The line of shell by which Triton starts a Python model does not take the folder's name."
        problems.append(Problem(str(repo / name), "name", what, "Use A to Z, digits, - and _."))
    versions = [path for path in (repo / name).iterdir() if path.is_dir() and path.name.isdigit()]
    if not versions:
        problems.append(Problem(str(repo / name), "1/", "There is no version folder.", "Make one named 1."))
    elif config.backend == "python" and not any((path / "model.py").exists() for path in versions):
        what = "The Python model is missing."
        problems.append(Problem(str(versions[0]), "model.py", what, "Put its model.py there."))
    if (settings := repo / name / "1" / SETTINGS).exists():
        from inflight.triton.repository import llmapi  # it takes pydantic, which other models have no use for

        try:
            llmapi.read(settings)
        except CourseError as error:
            problems.append(Problem(str(settings), error.where[-1], error.what, error.fix or "Correct it."))
    elif name in PARAMETERS:
        texts = {key: value.string_value for key, value in config.parameters.items()}
        problems += [replace(problem, file=file) for problem in parameter_problems(name, texts)]
    return problems
