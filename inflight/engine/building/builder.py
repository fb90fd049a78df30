"""Builds an engine folder from a checkpoint and build options.

    folder = build(fetch(), BuildConfig(max_batch_size=8), "engine")

The folder holds what TensorRT-LLM's does: the model prepared for one kind of machine, the tokenizer, and a
`config.json` with `version`, `pretrained_config` and `build_config`. On a CPU the model is an OpenVINO graph with the
checkpoint's own weights, made from a GGUF file, the same for every CPU; the kernels for this CPU are chosen when the
engine is loaded, in about a second. On a GPU it is the weights of a Hugging Face folder as `torch.runner` takes them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from inflight import cache, files, processor, tiers
from inflight.checkpoint import sources, tokenizer, weights
from inflight.checkpoint.sources import Checkpoint
from inflight.engine.folder import CONFIG_FILE, engine_version
from inflight.engine.settings import BuildConfig
from inflight.errors import CourseError, reason

FOLDER_FORMAT = 6  # of the engines in the cache: a change of what a build writes gives them another name


def _resolved(config: BuildConfig, tier: str) -> BuildConfig:
    """Return `config` as a tier's engine is built with it; GPUs from before Ampere compute in float16, not bfloat16."""
    gpu = tiers.here().gpu
    if tier == "cuda" and config.dtype == "auto" and gpu is not None and gpu.capability < (8, 0):
        config = dataclasses.replace(config, dtype="float16")
    return config.on(tier)


def _tier_for(config: BuildConfig) -> str:
    """Return the machine's tier; or the CPU's, with a message, where only that has what is asked for."""
    tier = tiers.here().name
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
        Where the engine runs: "cpu" (OpenVINO on the CPU, from a GGUF file) or "cuda" (PyTorch on a GPU, from a Hugging
        Face folder, which is made of a GGUF file); by default this machine's, or the CPU for options that only an
        engine there has. An engine for a GPU may be built on a machine that has none.
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
    config = _resolved(config, tier)
    if tier == "cpu" and config.dtype == "bfloat16" and not processor.here().has_bfloat16:
        raise CourseError(
            "Build option dtype 'bfloat16' needs a CPU with bfloat16 arithmetic, which this one lacks; use 'float32'."
        )
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file, not a folder. Name another folder for the engine.")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists():
        raise CourseError(f"{folder} holds files that are not an engine. Name an empty or new folder for the engine.")
    sources.check(checkpoint)
    with files.written_aside(folder.resolve(), "engine") as aside:
        try:
            pretrained = _from_gguf(checkpoint, config, aside) if tier == "cpu" else _for_gpu(checkpoint, config, aside)
        except (CourseError, OSError):
            raise
        except Exception as error:  # a library that reads a file may raise any error
            raise CourseError(
                f"The checkpoint {checkpoint.path} cannot be read ({reason(error)[:300]}). Give another one, or get it "
                "again."
            ) from error
        content = {
            "version": engine_version(tier),
            "tier": tier,
            "device": "cpu" if tier == "cpu" else device or "cuda",
            "pretrained_config": pretrained,
            "build_config": dataclasses.asdict(config),
        }
        (aside / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        cache.seal(aside)
    return folder


def _from_gguf(checkpoint: Checkpoint, config: BuildConfig, aside: Path) -> dict[str, Any]:
    """Write graph, weights and tokenizer into `aside`; return the `pretrained_config`."""
    from inflight.engine.openvino import four_bits, steps

    if checkpoint.format != "gguf":
        raise CourseError(
            f"{checkpoint.path} is a Hugging Face folder, and engines for a CPU are built from GGUF files: give the "
            "model's .gguf file, or build for a GPU (--tier cuda)."
        )
    source = weights.GgufFile(checkpoint.path)
    sizes, quant_algo = source.sizes(), config.quant_algo
    if quant_algo == "auto":
        stored = source.precision()
        quant_algo = {"W8": "W8A16"}.get(stored or "", stored)
    of_graph, again = source, aside / "weights.gguf"
    try:
        if not source.is_read_as(quant_algo):
            weights.requantize(source, again, quant_algo)
            of_graph = weights.GgufFile(again)
        tokenizer.write_files(checkpoint, source.metadata, aside)
        graph = steps.to_graph(of_graph.path, aside)
        is_slower = steps.slow_down(graph, of_graph)
        if four_bits.make_exact(graph, of_graph) or is_slower:
            steps.save(graph, aside)
    finally:
        again.unlink(missing_ok=True)
    num_parameters = sum(row["parameters"] for row in source.tensor_table())
    return _pretrained_config(checkpoint, config, quant_algo, num_parameters, sizes)


def _for_gpu(checkpoint: Checkpoint, config: BuildConfig, aside: Path) -> dict[str, Any]:
    """Write the same for PyTorch."""
    from inflight.checkpoint import as_huggingface
    from inflight.engine.torch import builder

    source = dataclasses.replace(checkpoint, path=as_huggingface.folder(checkpoint), format="hf")
    sizes, num_parameters = builder.write_weights(source.path, config.dtype, aside)
    tokenizer.write_files(source, {}, aside)
    return _pretrained_config(checkpoint, config, None, num_parameters, sizes)


def _pretrained_config(
    checkpoint: Checkpoint, config: BuildConfig, quant_algo: str | None, num_parameters: int, sizes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "architecture": "LlamaForCausalLM",
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.sha256},
        "num_parameters": num_parameters,
        "dtype": config.dtype,
        **sizes,
        "quantization": {"quant_algo": quant_algo, "kv_cache_quant_algo": config.kv_cache_quant_algo},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    }


def cached(checkpoint: Checkpoint, config: BuildConfig | None = None, tier: str | None = None) -> Path:
    """Return the engine of `checkpoint` with `config` in the course's cache folder, built unless it is there.

    `tier` is as `build` takes it.
    """
    config = config or BuildConfig()
    tier = tier or _tier_for(config)
    config = _resolved(config, tier)
    key = json.dumps([checkpoint.sha256, engine_version(tier), FOLDER_FORMAT, dataclasses.asdict(config)])
    folder = cache.place("engines", f"{checkpoint.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}")
    return cache.made_once(folder, lambda: build(checkpoint, config, folder, tier))
