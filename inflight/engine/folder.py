"""Reads the `config.json` of an engine's folder; nothing is loaded.

info = read("engine")       # version, pretrained_config, build_config
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from inflight import cache, processor
from inflight.checkpoint.sources import Checkpoint
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError

MODEL_FILE = "openvino_model.xml"
WEIGHTS_FILE = "openvino_model.bin"
TORCH_WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def engine_version(tier: str = "cpu") -> str:
    """Return the version of the runtime that engines of a tier are built by and for."""
    runtime = {"cpu": "openvino", "cuda": "torch"}[tier]
    return f"{runtime} {installed_version(runtime).partition('+')[0]}"  # 2.13.0+cpu and 2.13.0+cu130 read the same


@dataclass(frozen=True)
class EngineInfo:
    """The content of an engine folder's `config.json`.

    `tier` says what it was built for, `device` where it computes: "cpu", or "cuda" for a GPU. An engine of the tier
    cuda may be built for the CPU, to be tried there.
    """

    folder: Path
    version: str
    pretrained_config: dict[str, Any]
    build_config: BuildConfig
    tier: str = "cpu"
    device: str = "cpu"

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take in memory."""
        return (self.folder / {"cpu": WEIGHTS_FILE, "cuda": TORCH_WEIGHTS_FILE}[self.tier]).stat().st_size

    @property
    def quant_algo(self) -> str | None:
        """Precision of a matrix product here: what the build decided, or the processor's for 4-bit weights."""
        decided = self.pretrained_config["quantization"]["quant_algo"]
        return processor.here().quant_algo if decided == "W4" else decided

    @property
    def precision(self) -> str:
        """The same in a few words, with the reason."""
        decided = self.pretrained_config["quantization"]["quant_algo"]
        why = processor.here().why if decided == "W4" else "as it was built"
        return f"{self.quant_algo or 'products in floating point'}: {why}"

    @property
    def kv_cache_bytes_per_token(self) -> int:
        """2 (keys and values) × layers × KV heads × head size × bytes of one number."""
        model = self.pretrained_config
        build = self.build_config.on(self.tier)
        number = 1 if build.kv_cache_quant_algo else DTYPE_BYTES[build.dtype]
        return int(2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_size"] * number)


def read(folder: str | Path, checkpoint: Checkpoint | None = None) -> EngineInfo:
    """Read an engine's folder.

    Parameters
    ----------
    checkpoint : Checkpoint, optional
        When given, the engine must have been built from it.

    Raises
    ------
    CourseError
        No engine there; one built by another version, or for another checkpoint; a config that cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CourseError(f"There is no engine at {folder}. {_build(folder, 'one')}")
    if not (folder / CONFIG_FILE).exists():
        raise CourseError(f"{folder} is not an engine: it has no {CONFIG_FILE}. {_build(folder)}")
    try:
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        version, tier, device = content["version"], content["tier"], content["device"]
        pretrained, options = content["pretrained_config"], content["build_config"]
        built_from, here = pretrained["checkpoint"], engine_version(tier)
        if version == here:
            build_config = BuildConfig(**options).on(tier)
    except (CourseError, OSError, ValueError, KeyError, TypeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise CourseError(
            f"The engine's config {folder / CONFIG_FILE} cannot be used ({reason}). {_build(folder)}"
        ) from None
    if version != here:
        raise CourseError(f"The engine in {folder} was built by {version}; this is {here}. {_build(folder)}")
    if checkpoint is not None and built_from["sha256"] != checkpoint.sha256:
        raise CourseError(
            f"The engine in {folder} was built from {built_from['name']} (sha256 {built_from['sha256'][:12]}…), not "
            f"from {checkpoint.name} (sha256 {checkpoint.sha256[:12]}…). Build one for it in another folder."
        )
    return EngineInfo(folder, version, pretrained, build_config, tier, device)


def check_weights(info: EngineInfo) -> None:
    """Check that graph and weights are what the build wrote, which takes 40 ms; CourseError if they are not."""
    if problem := cache.damage(info.folder, MODEL_FILE, WEIGHTS_FILE, TORCH_WEIGHTS_FILE):
        raise cannot_be_loaded(info, problem)


def cannot_be_loaded(info: EngineInfo, why: str) -> CourseError:
    """Make the error for an engine whose files are not what the build wrote."""
    return CourseError(f"The engine in {info.folder} cannot be loaded ({why}). {_build(info.folder)}")


def _build(folder: Path, what: str = "it again") -> str:
    return cache.way_on(folder, f"Build {what}: `inflight build --output-dir {folder}`.")
