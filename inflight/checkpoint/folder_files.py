"""The files of a Hugging Face folder: what its index and its config claim, held against what is there."""

from __future__ import annotations

import math
from pathlib import Path

from inflight import schemas
from inflight.checkpoint.safetensors_header import tensor_shapes
from inflight.checkpoint.shapes import ModelConfig
from inflight.errors import CourseError
from inflight.schemas import Schema

MOST_INDEX_BYTES = 4 * schemas.MOST_BYTES
# Weights packed the tightest have 2 bits for a parameter. A number of a safetensors file is counted as 32 bits.
PARAMETERS_PER_NUMBER = 16
AGAIN = "Save or download the folder again."


class ShardIndex(Schema):
    """`model.safetensors.index.json`: the name of each tensor, and the file that holds it."""

    weight_map: dict[str, str]


def checked(folder: Path) -> list[Path]:
    """The files that make the model of a folder: its config, its tokenizer and its weights, each found to be one.

    Raises
    ------
    CourseError
        A file is missing, lies outside of the folder, cannot be read, or does not hold what it claims; the weights are
        pickled; the config is of another model than the weights.
    """
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and list(folder.glob("*.bin")):
        raise CourseError(
            f"{folder} holds only pickled weights (*.bin), which can run code when opened: save the model "
            "there as safetensors, or give a folder that has them."
        )
    weights = sorted({*weights, *(folder / shard for shard in _shards(folder))}) or [folder / "model.safetensors"]
    needed = [folder / "config.json", folder / "tokenizer.json", *weights]
    missing = [file.name for file in needed if not file.exists()]
    if missing:
        raise CourseError(
            f"The folder {folder} has no {', '.join(missing)}: give a Hugging Face model folder with "
            "config.json, tokenizer.json and safetensors weights."
        )
    for file in needed:
        _check_place(folder, file)
    _check_size(folder / "config.json", weights)
    return needed


def _shards(folder: Path) -> set[str]:
    """Names of the files with weights that the folder's index lists; none where it has no index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return set()
    names = set(schemas.read(ShardIndex, index, "index of the weights", AGAIN, MOST_INDEX_BYTES).weight_map.values())
    for name in sorted(names):
        if "/" in name or "\0" in name or not name.endswith(".safetensors"):
            raise CourseError(
                f"The index of the weights {index} names {name[:100]!r}, which is not the name of a safetensors file "
                f"in that folder. {AGAIN}"
            )
    return names


def _check_size(config_file: Path, weights: list[Path]) -> None:
    """CourseError when the config is of a model that is larger than the weights."""
    config = schemas.read(ModelConfig, config_file, "model's config", AGAIN)
    numbers = sum(math.prod(shape) for file in weights for _, shape in tensor_shapes(file))
    if config.least_parameters() > PARAMETERS_PER_NUMBER * numbers:
        raise CourseError(
            f"The config {config_file} is of a model with at least {config.least_parameters():,} "
            f"parameters, and the weights beside it have {numbers:,} numbers. {AGAIN}"
        )


def _check_place(folder: Path, file: Path) -> None:
    """CourseError when a link leads out of the folder, but for the hub's cache, which keeps its files beside it."""
    place, home = file.resolve(), folder.resolve()
    is_of_hub = home.parent.name == "snapshots" and place.is_relative_to(home.parent.parent / "blobs")
    if not (place.is_relative_to(home) or is_of_hub):
        raise CourseError(
            f"{file} is a link to {place}, out of its folder: put the file itself there, or give the folder that it is "
            "in."
        )
