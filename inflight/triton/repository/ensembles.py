"""Ensembles: what flows from model to model, and whether it fits."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.triton.repository.contracts import NEVER_GIVEN
from inflight.triton.repository.layout import CONFIG, models
from inflight.triton.repository.parameters import Problem
from inflight.triton.repository.pbtxt import read_config
from inflight.triton.request import ENSEMBLE, fields


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


def ensemble_edges(repo: str | Path) -> list[Edge]:
    """What flows where in the ensemble, read from the repository's files.

    Without the tensors that are there for outside clients alone: they carry nothing in a request that is answered.
    """
    configs = {name: read_config(Path(repo) / name / CONFIG) for name in models(repo)}
    config = configs["ensemble"]
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
    for_others = {*NEVER_GIVEN, *(name for name, field in fields(ENSEMBLE).items() if field.must_be)}
    return [edge for edge in edges if edge.tensor not in for_others]


def _edge(source: str, target: str, shared: str, tensor, own: str, optional: bool) -> Edge:
    kind = DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return Edge(source, target, shared, tensor.name, own, kind, tuple(tensor.dims), optional)


def ensemble_problems(file: str, config: ModelConfig, configs: dict[str, ModelConfig]) -> list[Problem]:
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
            near = difflib.get_close_matches(shared, available, 1, cutoff=0.7)  # short names are soon alike
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
