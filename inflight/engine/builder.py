"""Checkpoint and build options in, engine folder out.

    folder = build(fetch(), BuildConfig(max_batch_size=8), "engine")
    info = read(folder)         # version, pretrained_config, build_config

The folder holds what TensorRT-LLM's does: the model prepared for one kind of machine, the tokenizer, and a
`config.json` with `version`, `pretrained_config` and `build_config`; beside it, the commands that build it with
TensorRT-LLM. The model is an OpenVINO graph with packed weights; the machine code for this very CPU is made from it
when the engine is loaded, in about a second.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from inflight import files
from inflight.checkpoint import tokenizer, weights
from inflight.checkpoint.sources import Checkpoint, cache_dir, made_once
from inflight.engine import trtllm_commands
from inflight.errors import CourseError

MODEL_FILE = "openvino_model.xml"
WEIGHTS_FILE = "openvino_model.bin"
CONFIG_FILE = "config.json"
COMMANDS_FILE = "BUILD_WITH_TENSORRT_LLM.md"
TOKENS_PER_BLOCK = 32  # fixed by the CPU's paged-attention kernel


@dataclass(frozen=True)
class BuildConfig:
    """What is decided when an engine is built, under TensorRT-LLM's names.

    Parameters
    ----------
    max_batch_size : int
        Most sequences in one iteration: the seats.
    max_input_len : int
        Most tokens of a prompt.
    max_seq_len : int
        Most tokens of a prompt and its answer together.
    max_num_tokens : int
        Most tokens computed in one iteration, prompts and answers of all sequences together.
    max_beam_width : int
        1; this engine has no beam search.
    kv_cache_type : str
        "paged"; the kernel has no other.
    tokens_per_block : int
        32; fixed by the kernel.
    remove_input_padding : bool
        True; tokens of all sequences are packed into one row, without padding.
    dtype : str
        Precision of activations: "float32", or "bfloat16" on a CPU that has it. "float16" is a GPU's.
    quant_algo : str or None
        Precision of the two sides of each matrix product. Weights: 8 or 4 bits (W8, W4), or floating point (None).
        Activations: rounded to 8 bits in groups of 32 values (A8), or left in `dtype` (A16). A8 is about twice as fast;
        A16 gives the same answer whatever else is in the batch. "auto" is the checkpoint's weights, with A8 at 4 bits.
    kv_cache_quant_algo : str or None
        "INT8", or None for the precision of `dtype`.
    """

    max_batch_size: int = 8
    max_input_len: int = 1024
    max_seq_len: int = 2048
    max_num_tokens: int = 2048
    max_beam_width: int = 1
    kv_cache_type: str = "paged"
    tokens_per_block: int = TOKENS_PER_BLOCK
    remove_input_padding: bool = True
    dtype: str = "float32"
    quant_algo: str | None = "auto"
    kv_cache_quant_algo: str | None = None

    def __post_init__(self):
        for problem in _problems(self):
            raise CourseError(f"Build option {problem}")


def _problems(config: BuildConfig):
    """Yield a sentence for each option that this engine does not have or that contradicts another."""
    for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{name} is {value!r}; give a whole number of at least 1."
            return
    if config.max_input_len >= config.max_seq_len:
        yield (
            f"max_input_len ({config.max_input_len}) leaves no room for an answer in max_seq_len "
            f"({config.max_seq_len}); make max_seq_len larger."
        )
    if config.max_num_tokens < config.max_batch_size:
        yield (
            f"max_num_tokens ({config.max_num_tokens}) is less than one token for each of max_batch_size "
            f"({config.max_batch_size}) sequences; make it at least that."
        )
    fixed = {
        "max_beam_width": (1, "it decodes one beam; use sampling instead"),
        "kv_cache_type": ("paged", "in-flight batching needs pages, and the kernel has no other"),
        "tokens_per_block": (TOKENS_PER_BLOCK, "the CPU's paged-attention kernel fixes it"),
        "remove_input_padding": (True, "its kernel takes packed rows only"),
    }
    for name, (value, reason) in fixed.items():
        if getattr(config, name) != value:
            yield f"{name} can only be {value!r} in this engine: {reason}."
    choices = {
        "dtype": ("float32", "bfloat16"),
        "quant_algo": ("auto", *weights.GGUF_FORMATS),
        "kv_cache_quant_algo": (None, "INT8"),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            yield f"{name} is {getattr(config, name)!r}; this engine has {', '.join(map(repr, allowed))}."
    if config.dtype == "bfloat16" and not cpu_has_bfloat16():
        yield "dtype 'bfloat16' needs a CPU with bfloat16 arithmetic, which this one lacks; use 'float32'."


def cpu_has_bfloat16() -> bool:
    import openvino

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def engine_version() -> str:
    """Version of the runtime that engines are built by and for."""
    import openvino

    return f"openvino {openvino.get_version().split('-')[0]}"


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
    try:
        content = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        version, pretrained = content["version"], content["pretrained_config"]
        known = {field.name for field in dataclasses.fields(BuildConfig)}
        options = {key: value for key, value in content["build_config"].items() if key in known}
    except FileNotFoundError:
        raise CourseError(f"{folder} is not an engine: it has no {CONFIG_FILE}. {again}") from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CourseError(f"{folder / CONFIG_FILE} is not an engine's config ({error}). {again}") from error
    if version != engine_version():
        raise CourseError(f"The engine in {folder} was built by {version}; this is {engine_version()}. {again}")
    built_from = pretrained["checkpoint"]
    if checkpoint is not None and built_from["sha256"] != checkpoint.sha256:
        raise CourseError(
            f"The engine in {folder} was built from {built_from['name']} (sha256 {built_from['sha256'][:12]}…), not from "
            f"{checkpoint.name} (sha256 {checkpoint.sha256[:12]}…). Build one for it in another folder."
        )
    for name, size in content["files"].items():
        actual = (folder / name).stat().st_size if (folder / name).exists() else None
        if actual != size:
            found = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise CourseError(f"The engine in {folder} is damaged: {name} {found}. {again}")
    return EngineInfo(folder, version, pretrained, BuildConfig(**options))


def build(checkpoint: Checkpoint, config: BuildConfig, folder: str | Path) -> Path:
    """Build an engine; nothing is at `folder` until all of it is.

    Returns
    -------
    Path
        The engine folder. An engine that was there is replaced.

    Raises
    ------
    CourseError
        `folder` holds something else than an engine, cannot be written or is full; the checkpoint cannot be read.
    """
    folder = Path(folder).absolute()
    if folder.exists() and not folder.is_dir():
        raise CourseError(f"{folder} is a file, not a folder. Name another folder for the engine.")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists():
        raise CourseError(f"{folder} holds files that are not an engine. Name an empty or new folder for the engine.")
    with files.written_aside(folder, "engine") as aside:
        pretrained = _compile(checkpoint, config, aside)
        resolved = dataclasses.replace(config, quant_algo=pretrained["quantization"]["quant_algo"])
        (aside / COMMANDS_FILE).write_text(trtllm_commands.as_markdown(resolved), encoding="utf-8")
        sizes = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
        content = {
            "version": engine_version(),
            "pretrained_config": pretrained,
            "build_config": dataclasses.asdict(config),
            "files": sizes,
        }
        (aside / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder


def _compile(checkpoint: Checkpoint, config: BuildConfig, aside: Path) -> dict:
    """Write graph, weights and tokenizer into `aside`; return the `pretrained_config`."""
    gguf_file = aside / "weights.gguf"
    try:
        if checkpoint.format == "hf":
            quant_algo = None if config.quant_algo == "auto" else config.quant_algo
            weights.from_huggingface(checkpoint.path, gguf_file, quant_algo)
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                if (checkpoint.path / name).exists():
                    shutil.copyfile(checkpoint.path / name, aside / name)
            source = weights.GgufFile(gguf_file)
        else:
            source = weights.GgufFile(checkpoint.path)
            stored = source.precision()
            quant_algo = {"W4": "W4A8", "W8": "W8A16"}.get(stored) if config.quant_algo == "auto" else config.quant_algo
            if stored == weights.bits(quant_algo):
                gguf_file.symlink_to(Path(checkpoint.path).absolute())
            else:
                weights.requantize(source, gguf_file, quant_algo)
            text, settings = tokenizer.from_gguf(source.metadata)
            (aside / "tokenizer.json").write_text(text.to_str(pretty=True), encoding="utf-8")
            (aside / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
        _convert(gguf_file, aside)
    except (ValueError, KeyError, IndexError, RuntimeError) as error:
        raise CourseError(
            f"The checkpoint {checkpoint.path} cannot be read ({str(error).strip().splitlines()[-1]}). "
            "Fetch it again: `inflight fetch`."
        ) from error
    finally:
        gguf_file.unlink(missing_ok=True)
    return _pretrained_config(checkpoint, config, quant_algo, source)


def _convert(gguf_file: Path, aside: Path) -> None:
    """GGUF to an OpenVINO graph with packed weights, on disk."""
    import openvino_genai

    properties = {"enable_save_ov_model": True}
    try:
        openvino_genai.LLMPipeline(str(gguf_file), "CPU", **properties)
        produced = {MODEL_FILE, WEIGHTS_FILE}
        if not all((aside / name).exists() for name in produced):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the library logs a failed write and goes on
    except RuntimeError as error:
        if "iostream error" not in str(error):  # the C++ library's words for a write that failed, whatever the reason
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
    finally:
        for file in aside.glob("openvino_*tokenizer.*"):  # the course uses tokenizer.json
            file.unlink()


def _pretrained_config(
    checkpoint: Checkpoint, config: BuildConfig, quant_algo: str | None, source: weights.GgufFile
) -> dict:
    metadata = source.metadata
    architecture = metadata["general.architecture"]
    value = lambda key: metadata[f"{architecture}.{key}"]
    heads, hidden = value("attention.head_count"), value("embedding_length")
    return {
        "architecture": {"llama": "LlamaForCausalLM"}.get(architecture, architecture),
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.sha256},
        "num_parameters": sum(row["parameters"] for row in source.tensor_table()),
        "dtype": config.dtype,
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get(f"{architecture}.attention.head_count_kv", heads),
        "head_size": metadata.get(f"{architecture}.attention.key_length", hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": value("feed_forward_length"),
        "vocab_size": metadata.get(f"{architecture}.vocab_size") or len(metadata["tokenizer.ggml.tokens"]),
        "max_position_embeddings": value("context_length"),
        "quantization": {"quant_algo": quant_algo, "kv_cache_quant_algo": config.kv_cache_quant_algo},
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    }


def cached(checkpoint: Checkpoint, config: BuildConfig | None = None) -> Path:
    """The engine of `checkpoint` with `config` in the course's cache folder, built if it is not there yet."""
    config = config or BuildConfig()
    key = json.dumps([checkpoint.sha256, engine_version(), dataclasses.asdict(config)])
    folder = cache_dir() / "engines" / f"{checkpoint.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return made_once(folder, lambda: _is_engine(folder, checkpoint), lambda: build(checkpoint, config, folder))


def _is_engine(folder: Path, checkpoint: Checkpoint) -> bool:
    try:
        read(folder, checkpoint)
    except CourseError:
        return False
    return True
