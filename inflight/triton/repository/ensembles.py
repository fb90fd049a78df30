"""Ensembles: lists which tensors flow from model to model, and checks that they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from inflight.errors import CourseError, did_you_mean
from inflight.triton.repository.contracts import NEVER_GIVEN
from inflight.triton.repository.layout import CONFIG, ENSEMBLE, models
from inflight.triton.repository.pbtxt import read_config
from inflight.triton.repository.request import fields


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
    """List which tensor flows where in the ensemble, read from the repository's files.

    Tensors that only outside clients send are left out: they carry nothing in a request that is answered.
    """
    configs = {name: read_config(Path(repo) / name / CONFIG) for name in models(repo)}
    config = configs[ENSEMBLE]
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


def _edge(source: str, target: str, shared: str, tensor: Any, own: str, optional: bool) -> Edge:
    kind = DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return Edge(source, target, shared, tensor.name, own, kind, tuple(tensor.dims), optional)


def ensemble_problems(file: str, config: ModelConfig, configs: dict[str, ModelConfig]) -> list[CourseError]:
    """Find what does not fit together in an ensemble's steps, outputs, and the models that they name."""
    found: list[tuple[str, str, str]] = []  # field, what, fix
    available = {tensor.name: ("the ensemble's inputs", tensor) for tensor in config.input}
    for index, step in enumerate(config.ensemble_scheduling.step):
        field = f"ensemble_scheduling.step[{index}] ({step.model_name})"
        if step.model_name not in configs:
            found.append(
                (field, f"The repository has no model {step.model_name!r}.", did_you_mean(step.model_name, configs))
            )
            continue
        model = configs[step.model_name]
        found += _step_problems(field, step, model, available)
        outputs = {tensor.name: tensor for tensor in model.output}
        maps = step.output_map.items()
        available |= {shared: (step.model_name, outputs[own]) for own, shared in maps if own in outputs}
    for tensor in config.output:
        if tensor.name in available:
            found += _fit_problems(f"output {tensor.name}", available[tensor.name], tensor)
        else:
            found.append((f"output {tensor.name}", "No step produces it.", "Add it to a step's output_map."))
    return [CourseError(what, fix, where=(file, field)) for field, what, fix in found]


def _step_problems(
    field: str, step: Any, model: ModelConfig, available: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    inputs = {tensor.name: tensor for tensor in model.input}
    outputs = {tensor.name: tensor for tensor in model.output}
    for kind, mapping, tensors in (("input", step.input_map, inputs), ("output", step.output_map, outputs)):
        for own in mapping:
            if own not in tensors:
                what = f"{model.name} has no {kind} {own!r}."
                yield f"{field}.{kind}_map", what, did_you_mean(own, tensors)
    for own, shared in step.input_map.items():
        if own in inputs and shared in available:
            yield from _fit_problems(f"{field}.input_map {own}", available[shared], inputs[own])
        elif own in inputs:
            what = f"{own} takes {shared!r}, which no earlier step and no input provides."
            fix = did_you_mean(shared, available, cutoff=0.7)  # with a lower cutoff, short names look alike
            yield f"{field}.input_map", what, fix
    for tensor in model.input:
        if not tensor.optional and tensor.name not in step.input_map:
            what = f"{model.name} needs the input {tensor.name!r}, which the step does not give."
            yield f"{field}.input_map", what, "Add it to the input_map."


def _fit_problems(field: str, produced: tuple[str, Any], wanted: Any) -> Iterator[tuple[str, str, str]]:
    """Compare type and shape of a tensor with those of the input that takes it; -1 fits any length."""
    source, given = produced
    has, needs = list(given.dims), list(wanted.dims)
    if given.data_type != wanted.data_type:
        kinds = [DataType.Name(tensor.data_type) for tensor in (given, wanted)]
        what = f"{source} gives {given.name} as {kinds[0]}, but {wanted.name} is {kinds[1]}."
        yield field, what, "Make the types equal."
    elif len(has) != len(needs) or any(one != other and -1 not in (one, other) for one, other in zip(has, needs)):
        what = f"{source} gives {given.name} with dims {has}, but {wanted.name} has {needs}."
        yield field, what, "Make the shapes fit."
