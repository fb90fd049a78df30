"""Checkpoint and build options in, engine folder out.

    folder = build(fetch(), BuildConfig(max_batch_size=8), "engine")

The folder holds what TensorRT-LLM's does: the model prepared for one kind of machine, the tokenizer, and a
`config.json` with `version`, `pretrained_config` and `build_config`; beside it, the commands that build it with
TensorRT-LLM. The model is an OpenVINO graph with packed weights; the machine code for this very CPU is made from it
when the engine is loaded, in about a second.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inflight import cache, files, machine, manifest, tiers
from inflight import checkpoint as checkpoints
from inflight.cache import made_once
from inflight.checkpoint import tokenizer
from inflight.checkpoint.sources import Checkpoint
from inflight.engine import trtllm_commands
from inflight.engine.config import BuildConfig
from inflight.engine.folder import CONFIG_FILE, engine_version, flaw
from inflight.errors import CourseError

FOLDER_FORMAT = 4  # of the engines in the cache: 2 has checksums, 3 exact 4-bit products, 4 slowed rotations
COMMANDS_FILE = "BUILD_WITH_TENSORRT_LLM.md"


def cpu_has_bfloat16() -> bool:
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def check_machine(config: BuildConfig, tier: str | None = None) -> None:
    """Raise CourseError for options that a tier has not (by default this machine's), or that this CPU cannot compute.

    An engine for a GPU may be built on a machine that has none, and is not run there.
    """
    tier = tier or _tier_for(config)
    if tier == "cpu" and config.on(tier).dtype == "bfloat16" and not cpu_has_bfloat16():
        raise CourseError(
            "Build option dtype 'bfloat16' needs a CPU with bfloat16 arithmetic, which this one lacks; use 'float32'."
        )


def _resolved(config: BuildConfig, tier: str) -> BuildConfig:
    """`config` as an engine of a tier is built with it; a GPU from before Ampere computes in float16, not bfloat16."""
    gpu = tiers.here().gpu
    if tier == "cuda" and config.dtype == "auto" and gpu is not None and (gpu.capability or (8, 0)) < (8, 0):
        config = dataclasses.replace(config, dtype="float16")
    return config.on(tier)


def _tier_for(config: BuildConfig) -> str:
    """The machine's tier, or the CPU's where only that has what is asked for; then that is said."""
    tier = machine.tier()
    try:
        config.on(tier)
    except CourseError as error:
        config.on("cpu")
        cache.say(f"{error} This engine is built for the tier cpu.")
        return "cpu"
    return tier


def build(
    checkpoint: Checkpoint,
    config: BuildConfig,
    folder: str | Path,
    tier: str | None = None,
    device: str | None = None,
) -> Path:
    """Build an engine; nothing is at `folder` until all of it is.

    Parameters
    ----------
    tier : str, optional
        What it is for: "cpu" (OpenVINO on the CPU) or "cuda" (PyTorch on a GPU); by default this machine's, or the CPU
        for options that only an engine there has.
    device : str, optional
        Where an engine of the tier cuda computes: "cuda", or "cpu" to try it without a GPU; by default the GPU.

    Returns
    -------
    Path
        The engine folder. An engine that was there is replaced.

    Raises
    ------
    CourseError
        `folder` holds something else than an engine, cannot be written or is full; the checkpoint cannot be read; this
        machine cannot compute what `config` asks for.
    """
    tier = tier or _tier_for(config)
    check_machine(config, tier)
    config = _resolved(config, tier)
    if checkpoint.format == "random" and tier == "cpu":
        raise CourseError(
            f"{checkpoint.name} has no weights but random ones, which an engine of the tier cuda makes when it is "
            "loaded, and one of the tier cpu cannot: build it for a GPU, or take another checkpoint."
        )
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file, not a folder. Name another folder for the engine.")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists():
        raise CourseError(f"{folder} holds files that are not an engine. Name an empty or new folder for the engine.")
    with files.written_aside(folder.resolve(), "engine") as aside:
        with _reading(checkpoint):
            pretrained = _compile(checkpoint, config, aside) if tier == "cpu" else _write(checkpoint, config, aside)
        resolved = dataclasses.replace(config, quant_algo=pretrained["quantization"]["quant_algo"])
        family = "gpt" if pretrained["architecture"].startswith("GPT") else "llama"
        (aside / COMMANDS_FILE).write_text(trtllm_commands.as_markdown(resolved, family), encoding="utf-8")
        content = {
            "version": engine_version(tier),
            "tier": tier,
            "device": "cpu" if tier == "cpu" else device or "cuda",
            "pretrained_config": pretrained,
            "build_config": dataclasses.asdict(config),
        }
        (aside / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        manifest.write(aside)
    return folder


@contextmanager
def _reading(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn what libraries that take a file apart raise, which is whatever they trip over, into a CourseError."""
    try:
        yield
    except (CourseError, OSError):
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise CourseError(
            f"The checkpoint {checkpoint.path} cannot be read ({reason[:300]}). Fetch it again: `inflight fetch`."
        ) from error


def _compile(checkpoint: Checkpoint, config: BuildConfig, aside: Path) -> dict:
    """Write graph, weights and tokenizer into `aside`; return the `pretrained_config`."""
    from inflight.engine.openvino import four_bits, slow_rotation, steps

    written = gguf_file = aside / "weights.gguf"
    try:
        if checkpoint.format == "hf":
            quant_algo = None if config.quant_algo == "auto" else config.quant_algo
            checkpoints.weights.from_huggingface(checkpoint.path, gguf_file, quant_algo)
            source = checkpoints.weights.GgufFile(gguf_file)
        else:
            source = checkpoints.weights.GgufFile(checkpoint.path)
            source.shape()  # before the compiler believes what the file says of itself
            stored = source.precision()
            as_stored = {"W4": "W4A8", "W8": "W8A16"}.get(stored or "")
            quant_algo = as_stored if config.quant_algo == "auto" else config.quant_algo
            if stored == checkpoints.weights.bits(quant_algo):
                gguf_file = Path(checkpoint.path)
            else:
                checkpoints.weights.requantize(source, gguf_file, quant_algo)
        tokenizer.write_files(checkpoint, source.metadata, aside)
        graph, of_graph = steps.to_graph(gguf_file, aside), checkpoints.weights.GgufFile(gguf_file)
        is_slower = slow_rotation.slow_down(graph, of_graph)
        if four_bits.make_exact(graph, of_graph) or is_slower:
            steps.save(graph, aside)
    finally:
        written.unlink(missing_ok=True)
    return _pretrained_config(checkpoint, config, quant_algo, source)


def _write(checkpoint: Checkpoint, config: BuildConfig, aside: Path) -> dict:
    """The same for a GPU."""
    from inflight.engine.torch import builder as torch_builder

    return torch_builder.write_engine(checkpoint, config, aside)


def _pretrained_config(
    checkpoint: Checkpoint, config: BuildConfig, quant_algo: str | None, source: checkpoints.weights.GgufFile
) -> dict:
    shape = source.shape()
    return {
        "architecture": {"llama": "LlamaForCausalLM"}.get(shape.architecture, shape.architecture),
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.sha256},
        "num_parameters": sum(row["parameters"] for row in source.tensor_table()),
        "dtype": config.dtype,
        **shape.sizes(),
        "quantization": {"quant_algo": quant_algo, "kv_cache_quant_algo": config.kv_cache_quant_algo},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    }


def cached(
    checkpoint: Checkpoint, config: BuildConfig | None = None, tier: str | None = None, device: str | None = None
) -> Path:
    """The engine of `checkpoint` with `config` in the course's cache folder, built unless it is there and whole.

    `tier` and `device` are as `build` takes them.
    """
    config = config or BuildConfig()
    tier = tier or _tier_for(config)
    config = _resolved(config, tier)
    parts = [checkpoint.sha256, engine_version(tier), FOLDER_FORMAT, dataclasses.asdict(config)]
    key = json.dumps(parts + [device] * (device is not None))
    folder = cache.place("engines", f"{checkpoint.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    return made_once(
        folder, lambda: flaw(folder, checkpoint, config), lambda: build(checkpoint, config, folder, tier, device)
    )
