"""The commands that build the same engine with TensorRT-LLM, in its three generations.

    print(as_markdown(BuildConfig(max_batch_size=8), family="llama", tp_size=2))

Up to 0.8 each family of models has a `build.py`; from 0.9 `convert_checkpoint.py` and `trtllm-build` do it in two
steps; the LLM API, recommended from 1.0, reads a `model.yaml` when it starts, and there is no engine to build.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from inflight.errors import CourseError

if TYPE_CHECKING:  # the engine writes this module's page beside itself
    from inflight.engine.config import BuildConfig

FAMILIES = ("llama", "gpt")
CHECKPOINT, CONVERTED, ENGINE = "MODEL_DIR", "CHECKPOINT_DIR", "ENGINE_DIR"
LINE = 92
GENERATIONS = (
    "TensorRT-LLM 0.5: build.py",
    "TensorRT-LLM 0.14: convert_checkpoint.py and trtllm-build",
    "TensorRT-LLM 1.x: model.yaml of the LLM API",
)


def commands(config: BuildConfig, family: str = "llama", tp_size: int = 1, pp_size: int = 1) -> dict[str, str]:
    """Text of the commands, or of the file, by generation (`GENERATIONS`). Paths in capitals are yours to fill in.

    Parameters
    ----------
    family : str
        "llama" or "gpt".
    tp_size, pp_size : int
        GPUs that share each layer, and GPUs that share out the layers.

    Raises
    ------
    CourseError
        Unknown family, or a size that is not at least 1.
    """
    if family not in FAMILIES:
        raise CourseError(f"There are no commands for the family {family!r}; there are for {' and '.join(FAMILIES)}.")
    for name, size in (("tp_size", tp_size), ("pp_size", pp_size)):
        if not isinstance(size, int) or size < 1:
            raise CourseError(f"{name} is {size!r}; give a number of GPUs of at least 1.")
    config = _decided(config)
    texts = (
        _build_py(config, family, tp_size, pp_size),
        _trtllm_build(config, family, tp_size, pp_size),
        _model_yaml(config, tp_size, pp_size),
    )
    return dict(zip(GENERATIONS, texts))


def as_markdown(config: BuildConfig, family: str = "llama", tp_size: int = 1, pp_size: int = 1) -> str:
    """The same as `commands`, as one page with what differs from this engine."""
    fences = ("bash", "bash", "yaml")
    parts = ["# The same engine with TensorRT-LLM"]
    for (title, text), fence in zip(commands(config, family, tp_size, pp_size).items(), fences):
        parts.append(f"## {title}\n\n```{fence}\n{text}\n```")
    parts.append("## What differs\n\n" + "\n".join(f"- {note}" for note in differences(config)))
    return "\n\n".join(parts) + "\n"


def differences(config: BuildConfig) -> list[str]:
    """Sentences about options that a GPU build would choose otherwise, or does not have in this form."""
    notes, config = [], _decided(config)
    if config.dtype == "float32":
        notes.append("`float32` is kept here because this engine computes in it; on a GPU you would choose `float16`.")
    if config.quant_algo == "W4A8":
        notes.append(
            "W4A8 here means whole-number activations, rounded as they come. The nearest build by these scripts "
            "is W4A16: 4-bit weights, activations as they are. That is what the commands make."
        )
    if config.quant_algo == "auto":
        notes.append("`auto` takes the precision of the checkpoint; the commands leave the weights in `dtype`.")
    if config.quant_algo in ("W4A8", "W4A16", "W8A16"):
        notes.append("The LLM API quantizes nothing when it starts: give it a checkpoint that is quantized already.")
    if config.kv_cache_quant_algo:
        notes.append(
            "An INT8 KV cache on a GPU has one scale for a whole layer, found by running sample texts when "
            "converting; this engine finds its scales block by block while it runs. The LLM API offers FP8, not INT8."
        )
    notes.append("A GPU engine is compiled for one GPU model and one TensorRT version, and runs with those only.")
    return notes


def _build_py(config: BuildConfig, family: str, tp_size: int, pp_size: int) -> str:
    dtype, source = config.dtype, CHECKPOINT
    lines = []
    if family == "gpt":
        calibrate = ["--calibrate-kv-cache"] if config.kv_cache_quant_algo else []
        lines.append(
            _command(
                "python3 examples/gpt/hf_gpt_convert.py",
                [
                    f"-i {CHECKPOINT}",
                    f"-o {CONVERTED}",
                    f"--tensor-parallelism {tp_size}",
                    f"--storage-type {dtype}",
                    *calibrate,
                ],
            )
        )
        source = f"{CONVERTED}/{tp_size}-gpu"
        gpus = [f"--world_size {tp_size}"]
        if pp_size > 1:
            lines.insert(0, "# GPT has tensor parallelism only in this version: pp_size is left out")
    else:
        gpus = [f"--world_size {tp_size * pp_size}", f"--tp_size {tp_size}", f"--pp_size {pp_size}"]
        if config.kv_cache_quant_algo:
            lines.append(
                _command(
                    "python3 examples/llama/hf_llama_convert.py",
                    [f"-i {CHECKPOINT}", f"-o {CONVERTED}", "--calibrate-kv-cache"],
                )
            )
    scales = [f"--ft_model_dir {CONVERTED}/{tp_size}-gpu"] if family == "llama" and config.kv_cache_quant_algo else []
    lines.append(
        _command(
            f"python3 examples/{family}/build.py",
            [
                *(scales or [f"--model_dir {source}"]),
                f"--dtype {dtype}",
                *gpus,
                f"--use_gpt_attention_plugin {dtype}",
                f"--use_gemm_plugin {dtype}",
                "--enable_context_fmha",
                "--use_inflight_batching",
                "--paged_kv_cache",
                "--remove_input_padding",
                f"--tokens_per_block {config.tokens_per_block}",
                *_weight_only(config),
                f"--max_batch_size {config.max_batch_size}",
                f"--max_input_len {config.max_input_len}",
                f"--max_output_len {config.max_seq_len - config.max_input_len}",
                f"--max_num_tokens {config.max_num_tokens}",
                f"--max_beam_width {config.max_beam_width}",
                f"--output_dir {ENGINE}",
            ],
        )
    )
    return "\n".join(lines)


def _trtllm_build(config: BuildConfig, family: str, tp_size: int, pp_size: int) -> str:
    convert = _command(
        f"python3 examples/{family}/convert_checkpoint.py",
        [
            f"--model_dir {CHECKPOINT}",
            f"--dtype {config.dtype}",
            f"--tp_size {tp_size}",
            f"--pp_size {pp_size}",
            *_weight_only(config),
            f"--output_dir {CONVERTED}",
        ],
    )
    build = _command(
        "trtllm-build",
        [
            f"--checkpoint_dir {CONVERTED}",
            f"--gpt_attention_plugin {config.dtype}",
            f"--gemm_plugin {config.dtype}",
            "--context_fmha enable",
            "--paged_kv_cache enable",
            "--remove_input_padding enable",
            f"--tokens_per_block {config.tokens_per_block}",
            f"--max_batch_size {config.max_batch_size}",
            f"--max_input_len {config.max_input_len}",
            f"--max_seq_len {config.max_seq_len}",
            f"--max_num_tokens {config.max_num_tokens}",
            f"--max_beam_width {config.max_beam_width}",
            f"--output_dir {ENGINE}",
        ],
    )
    return f"{convert}\n{build}"


def _model_yaml(config: BuildConfig, tp_size: int, pp_size: int) -> str:
    return "\n".join(
        [
            f"model: {CHECKPOINT}",
            "backend: pytorch",
            f"dtype: {config.dtype}",
            f"tensor_parallel_size: {tp_size}",
            f"pipeline_parallel_size: {pp_size}",
            f"max_batch_size: {config.max_batch_size}",
            f"max_input_len: {config.max_input_len}",
            f"max_seq_len: {config.max_seq_len}",
            f"max_num_tokens: {config.max_num_tokens}",
            f"max_beam_width: {config.max_beam_width}",
            "kv_cache_config:",
            f"  tokens_per_block: {config.tokens_per_block}",
            "  free_gpu_memory_fraction: 0.9",
            "triton_config:",
            "  max_batch_size: 0",
            "  decoupled: true",
        ]
    )


def _decided(config: BuildConfig) -> BuildConfig:
    """`config` with the precision that "auto" is on a CPU."""
    return dataclasses.replace(config, dtype="float32") if config.dtype == "auto" else config


def _weight_only(config: BuildConfig) -> list[str]:
    precision = {"W4A8": "int4", "W4A16": "int4", "W8A16": "int8"}.get(config.quant_algo or "")
    flags = ["--use_weight_only", f"--weight_only_precision {precision}"] if precision else []
    return flags + (["--int8_kv_cache"] if config.kv_cache_quant_algo else [])


def _command(program: str, arguments: list[str]) -> str:
    """The command in lines of at most `LINE` characters."""
    lines = [program]
    for argument in arguments:
        if len(lines[-1]) + len(argument) < LINE:
            lines[-1] += f" {argument}"
        else:
            lines.append(argument)
    return " \\\n    ".join(lines)


# What each flag means, and what became of it ----------------------------------------------------------------------

COLUMNS = (
    "build option",
    "0.5: build.py",
    "0.14: convert_checkpoint.py, trtllm-build",
    "1.x: model.yaml",
    "what it means",
    "what became of it",
)
_ROWS = (
    (
        "max_batch_size",
        "--max_batch_size (default 8)",
        "--max_batch_size (default 2048)",
        "max_batch_size",
        "Most sequences in one iteration: the slots.",
        "Kept. The default grew with in-flight batching.",
    ),
    (
        "max_input_len",
        "--max_input_len (default 2048)",
        "--max_input_len (default 1024)",
        "max_input_len",
        "Most tokens of a prompt.",
        "Ignored, with a warning, when padding is removed and fused attention is on.",
    ),
    (
        "max_seq_len",
        "--max_output_len (default 512)",
        "--max_seq_len (default: the model's)",
        "max_seq_len",
        "Most tokens of prompt and answer together; the old flag counted the answer alone.",
        "Renamed and redefined in 0.12.",
    ),
    (
        "max_num_tokens",
        "--max_num_tokens",
        "--max_num_tokens (default 8192)",
        "max_num_tokens",
        "Most tokens computed in one iteration, over all sequences.",
        "Kept; a default of 8192 since 0.11.",
    ),
    (
        "max_beam_width",
        "--max_beam_width (default 1)",
        "--max_beam_width (default 1)",
        "max_beam_width",
        "Most candidates that beam search keeps.",
        "Kept.",
    ),
    (
        "kv_cache_type",
        "--paged_kv_cache",
        "--paged_kv_cache enable; then --kv_cache_type paged",
        "always paged",
        "Keep the KV cache in blocks instead of one piece a sequence.",
        "The default; the old flag is marked deprecated.",
    ),
    (
        "tokens_per_block",
        "--tokens_per_block (default 64)",
        "--tokens_per_block (default 64)",
        "kv_cache_config: tokens_per_block",
        "Tokens in one KV cache block.",
        "Kept; default 32 in 1.x.",
    ),
    (
        "remove_input_padding",
        "--remove_input_padding",
        "--remove_input_padding enable",
        "always",
        "Pack the tokens of all sequences into one row.",
        "The default.",
    ),
    (
        "dtype",
        "--dtype float16",
        "convert_checkpoint.py --dtype",
        "dtype",
        "Precision of weights and activations.",
        "Moved to the conversion step, where the default is the checkpoint's since 0.15.",
    ),
    (
        "quant_algo",
        "--use_weight_only --weight_only_precision",
        "convert_checkpoint.py, same names",
        "read from a quantized checkpoint",
        "Store weights in 8 or 4 bits.",
        "Moved to the conversion step, then to the checkpoint.",
    ),
    (
        "kv_cache_quant_algo",
        "--int8_kv_cache",
        "convert_checkpoint.py --int8_kv_cache",
        "kv_cache_config: dtype (FP8)",
        "Store keys and values in 8 bits.",
        "INT8 gave way to FP8.",
    ),
    (
        "tp_size, pp_size",
        "--world_size --tp_size --pp_size",
        "convert_checkpoint.py --tp_size --pp_size",
        "tensor_parallel_size, pipeline_parallel_size",
        "Over how many GPUs layers are split, and shared out.",
        "--world_size went: it is the product. Removed from trtllm-build in 0.12.",
    ),
    (
        "(none)",
        "--use_inflight_batching",
        "no flag",
        "always",
        "Forced three others on: attention plugin, packed input, paged KV cache.",
        "All three are defaults now.",
    ),
    (
        "(none)",
        "--use_gpt_attention_plugin",
        "--gpt_attention_plugin (default auto)",
        "none",
        "Attention by TensorRT-LLM's own kernel.",
        "On by default, then no plugins at all.",
    ),
    (
        "(none)",
        "--use_gemm_plugin",
        "--gemm_plugin (default off)",
        "none",
        "Matrix products by cuBLAS.",
        "Optional, then gone with the engines.",
    ),
    (
        "(none)",
        "--enable_context_fmha",
        "--context_fmha enable",
        "always",
        "Fused attention for prompts.",
        "The default.",
    ),
    ("(none)", "--parallel_build", "--workers N", "none", "Build the parts for several GPUs side by side.", "Renamed."),
)


def flags() -> list[dict[str, str]]:
    """The table of flags: a dict a row, keys as in `COLUMNS`."""
    return [dict(zip(COLUMNS, row)) for row in _ROWS]
