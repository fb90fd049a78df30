"""Checks a repository before a server loads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from inflight.errors import CourseError
from inflight.triton.repository.ensembles import ensemble_problems
from inflight.triton.repository.layout import CONFIG, SETTINGS, is_repository, models
from inflight.triton.repository.parameters import PARAMETERS, parameter_problems
from inflight.triton.repository.pbtxt import read_config


def problems(repo: str | Path) -> list[CourseError]:
    """List every problem that can be found in a repository without starting a server.

    Unfilled variables, unknown fields and keys, wrong types and values, missing files, and ensemble steps whose tensor
    names, types or shapes do not fit together. The rest of a config Triton judges, at its load. Each is a CourseError
    whose `where` is the file, in the repository, and the field.
    """
    repo = Path(repo)
    if not repo.is_dir() or not is_repository(repo):
        return [CourseError("There is no model in it.", "Make one: `inflight assemble`.", where=(str(repo), "folder"))]
    found, configs = [], {}
    for name in models(repo):
        try:
            configs[name] = read_config(repo / name / CONFIG)
        except CourseError as error:
            found.append(CourseError(error.what, error.fix, where=(f"{_printable(name)}/{CONFIG}", "syntax")))
    for name, config in configs.items():
        found += _model_problems(repo / name, config)
    if len(configs) == len(models(repo)):  # steps can be judged when all can be read
        for name, config in configs.items():
            if config.platform == "ensemble":
                found += ensemble_problems(f"{_printable(name)}/{CONFIG}", config, configs)
    return found


def _model_problems(folder: Path, config: ModelConfig) -> Iterator[CourseError]:
    name = _printable(folder.name)
    file = f"{name}/{CONFIG}"
    if config.name and config.name != folder.name:
        what = f"It is {config.name!r}, but the folder is {folder.name!r}."
        yield CourseError(what, "Make them equal.", where=(file, "name"))
    if config.backend == "python" and not re.fullmatch(r"[\w.-]+", folder.name, re.ASCII):
        what = "The line of shell by which Triton starts a Python model does not take the folder's name."
        yield CourseError(what, "Use A to Z, digits, - and _.", where=(name, "name"))
    versions = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()]
    if not versions:
        yield CourseError("There is no version folder.", "Make one named 1.", where=(name, "1/"))
    elif config.backend == "python" and not any((path / "model.py").exists() for path in versions):
        where = (f"{name}/{versions[0].name}", "model.py")
        yield CourseError("The Python model is missing.", "Put its model.py there.", where=where)
    if (settings := folder / "1" / SETTINGS).exists():
        from inflight.triton.repository import llmapi  # it takes pydantic, which other models have no use for

        try:
            llmapi.read(settings)
        except CourseError as error:
            where = (f"{name}/1/{SETTINGS}", error.where[-1])
            yield CourseError(error.what, error.fix or "Correct it.", where=where)
    elif folder.name in PARAMETERS:
        texts = {key: value.string_value for key, value in config.parameters.items()}
        yield from parameter_problems(file, folder.name, texts)


def _printable(name: str) -> str:
    """Return a folder's name with what cannot be printed escaped: it may hold bytes that are no text."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
