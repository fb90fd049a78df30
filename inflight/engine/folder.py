"""An engine's folder, read and checked; nothing is loaded.

info = read("engine")       # version, pretrained_config, build_config
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

from inflight import manifest, schemas
from inflight.checkpoint.sources import Checkpoint
from inflight.engine.config import BuildConfig
from inflight.engine.config_file import BuiltBy, EngineConfig
from inflight.errors import CourseError

MODEL_FILE = "openvino_model.xml"
WEIGHTS_FILE = "openvino_model.bin"
TORCH_WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def engine_version(tier: str = "cpu") -> str:
    """Version of the runtime that engines of a tier are built by and for."""
    runtime = {"cpu": "openvino", "cuda": "torch"}[tier]
    return f"{runtime} {installed_version(runtime).partition('+')[0]}"  # 2.13.0+cpu and 2.13.0+cu130 read the same


@dataclass(frozen=True)
class EngineInfo:
    """What an engine folder's `config.json` says.

    `tier` is what it was built for, `device` where it computes: "cpu", or "cuda" for a GPU. An engine of the tier cuda
    may be built for the CPU, to be tried there.
    """

    folder: Path
    version: str
    pretrained_config: dict
    build_config: BuildConfig
    tier: str = "cpu"
    device: str = "cpu"

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights take in memory."""
        file = self.folder / {"cpu": WEIGHTS_FILE, "cuda": TORCH_WEIGHTS_FILE}[self.tier]
        if self.tier == "cuda" and not file.exists():  # random weights are made when the engine is loaded
            return self.pretrained_config["num_parameters"] * DTYPE_BYTES[self.build_config.dtype]
        return file.stat().st_size

    @property
    def kv_cache_bytes_per_token(self) -> int:
        """2 (keys and values) × layers × KV heads × head size × bytes of one number."""
        model = self.pretrained_config
        build = self.build_config.on(self.tier)
        number = 1 if build.kv_cache_quant_algo else DTYPE_BYTES[build.dtype]
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
        No engine there; one built by another version, or for another checkpoint; one that is not as it was built: every
        file is compared with the SHA-256 that the build noted (0.07 s for the course's).
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CourseError(f"There is no engine at {folder}. Build one: `inflight build --output-dir {folder}`.")
    again = f"Build it again: `inflight build --output-dir {folder}`."
    file, what = folder / CONFIG_FILE, "engine's config"
    if not file.exists():
        raise CourseError(f"{folder} is not an engine: it has no {CONFIG_FILE}. {again}")
    built = schemas.read(BuiltBy, file, what, again)
    version, here = built.version, engine_version(built.tier)
    if version != here:
        raise CourseError(f"The engine in {folder} was built by {version}; this is {here}. {again}")
    content = schemas.read(EngineConfig, file, what, again)
    pretrained, options = content.pretrained_config.model_dump(), content.build_config.model_dump()
    built_from = pretrained["checkpoint"]
    if checkpoint is not None and built_from["sha256"] != checkpoint.sha256:
        raise CourseError(
            f"The engine in {folder} was built from {built_from['name']} (sha256 {built_from['sha256'][:12]}…), not "
            f"from {checkpoint.name} (sha256 {checkpoint.sha256[:12]}…). Build one for it in another folder."
        )
    try:
        build_config = BuildConfig(**options).on(built.tier)
    except CourseError as error:
        raise CourseError(f"The engine's config {file} does not fit: {error} {again}") from None
    if found := manifest.differences(folder):
        raise CourseError(
            f"The engine in {folder} is damaged: {manifest.in_words(found)}. {again}{_accept(folder, found)}"
        )
    return EngineInfo(folder, version, pretrained, build_config, content.tier, content.device)


def _accept(folder: Path, found: dict[str, str]) -> str:
    """The way on for whoever changed an engine's text on purpose; nobody edits weights or removes files on purpose."""
    by_machine = {MODEL_FILE, WEIGHTS_FILE, TORCH_WEIGHTS_FILE, manifest.MANIFEST}
    by_hand = not by_machine & set(found) and "is missing" not in found.values()
    return f" Or, if you changed it yourself, accept it: `inflight accept {folder}`." if by_hand else ""


def flaw(folder: Path, checkpoint: Checkpoint, build_config: BuildConfig) -> str | None:
    """Why an engine is not the whole one of this checkpoint and these options, in a few words; None if it is.

    `build_config` is as it is `on` the engine's tier.
    """
    try:
        info = read(folder, checkpoint)
    except CourseError as error:
        if found := manifest.differences(folder):
            return f"is damaged ({manifest.in_words(found)})"
        return f"is not the engine that is wanted ({str(error).partition(' Build ')[0].rstrip('.')})"
    return None if info.build_config == build_config else "was built with other options"


def accept(folder: str | Path) -> None:
    """Take the files of an engine that somebody changed on purpose as they are now.

    Raises
    ------
    CourseError
        The folder is not an engine, or cannot be written.
    """
    folder = Path(folder)
    if not (folder / manifest.MANIFEST).is_file() or not (folder / CONFIG_FILE).is_file():
        raise CourseError(
            f"{folder} is not an engine: it lacks {CONFIG_FILE} or {manifest.MANIFEST}. Build it again: "
            f"`inflight build --output-dir {folder}`."
        )
    try:
        manifest.write(folder)
    except OSError as error:
        raise CourseError(
            f"{folder} cannot be written ({error.strerror}): copy the engine to a folder that can."
        ) from None
