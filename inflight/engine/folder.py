"""An engine's folder, read and checked; nothing is loaded.

info = read("engine")       # version, pretrained_config, build_config
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

from inflight import schemas
from inflight.checkpoint.sources import Checkpoint
from inflight.engine.config import BuildConfig
from inflight.engine.config_file import BuiltBy, EngineConfig
from inflight.errors import CourseError

MODEL_FILE = "openvino_model.xml"
WEIGHTS_FILE = "openvino_model.bin"
CONFIG_FILE = "config.json"


def engine_version() -> str:
    """Version of the runtime that engines are built by and for."""
    return f"openvino {installed_version('openvino')}"


@dataclass(frozen=True)
class EngineInfo:
    """What an engine folder's `config.json` says."""

    folder: Path
    version: str
    pretrained_config: dict
    build_config: BuildConfig

    @property
    def kv_cache_bytes_per_token(self) -> int:
        """2 (keys and values) × layers × KV heads × head size × bytes of one number."""
        model = self.pretrained_config
        number = 1 if self.build_config.kv_cache_quant_algo else {"float32": 4, "bfloat16": 2}[self.build_config.dtype]
        return 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_size"] * number


def read(folder: str | Path, checkpoint: Checkpoint | None = None) -> EngineInfo:
    """Read and check an engine folder.

    Parameters
    ----------
    checkpoint : Checkpoint, optional
        When given, the engine must have been built from it.

    Raises
    ------
    CourseError
        No engine there, an incomplete one, one built by another version, or one for another checkpoint.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CourseError(f"There is no engine at {folder}. Build one: `inflight build --output-dir {folder}`.")
    again = f"Build it again: `inflight build --output-dir {folder}`."
    file, what = folder / CONFIG_FILE, "engine's config"
    if not file.exists():
        raise CourseError(f"{folder} is not an engine: it has no {CONFIG_FILE}. {again}")
    version = schemas.read(BuiltBy, file, what, again).version
    if version != engine_version():
        raise CourseError(f"The engine in {folder} was built by {version}; this is {engine_version()}. {again}")
    content = schemas.read(EngineConfig, file, what, again)
    pretrained, options = content.pretrained_config.model_dump(), content.build_config.model_dump()
    built_from = pretrained["checkpoint"]
    if checkpoint is not None and built_from["sha256"] != checkpoint.sha256:
        raise CourseError(
            f"The engine in {folder} was built from {built_from['name']} (sha256 {built_from['sha256'][:12]}…), not "
            f"from {checkpoint.name} (sha256 {checkpoint.sha256[:12]}…). Build one for it in another folder."
        )
    for name, size in content.files.items():
        actual = (folder / name).stat().st_size if (folder / name).exists() else None
        if actual != size:
            found = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise CourseError(f"The engine in {folder} is damaged: {name} {found}. {again}")
    try:
        return EngineInfo(folder, version, pretrained, BuildConfig(**options))
    except CourseError as error:
        raise CourseError(f"The engine's config {file} does not fit: {error} {again}") from None
