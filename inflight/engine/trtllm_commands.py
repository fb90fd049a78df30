"""The commands that build and serve the same engine with TensorRT-LLM: every one that the course prints or runs.

    print(as_markdown(BuildConfig(max_batch_size=8), family="llama", tp_size=2))
    convert(Recipe(weights="int8"), CONTAINER).argv  # ["python3", "/app/examples/llama/convert_checkpoint.py", …]

A command is made here once. `assets/lab-gpu/lab.sh`, the lessons, the page in an engine's folder and the widget print
it, with the names that `lab.sh` gives to places (`NAMES`); the package runs it, with paths (`CONTAINER`). What the
programs take is in `assets/lab-gpu/facts.toml`, and a test holds the commands to it.

Up to 0.8 each family of models has a `build.py`; from 0.9 `convert_checkpoint.py` and `trtllm-build` do it in two
steps; the LLM API, recommended from 1.0, reads a `model.yaml` when it starts, and there is no engine to build.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inflight.engine.trtllm_flags import COLUMNS, flags
from inflight.errors import CourseError

if TYPE_CHECKING:  # the engine writes this module's page beside itself
    from inflight.engine.config import BuildConfig

__all__ = ["COLUMNS", "flags"]

CONTAINER_VERSION = (
    "25.04"  # the newest whose templates, tensors and V1 are those of the course: assets/lab-gpu/README.md
)
IMAGE = f"nvcr.io/nvidia/tritonserver:{CONTAINER_VERSION}-trtllm-python-py3"
CLIENT_IMAGE = f"nvcr.io/nvidia/tritonserver:{CONTAINER_VERSION}-py3-sdk"
FALLBACK_IMAGE, FALLBACK_TAG = "nvcr.io/nvidia/tritonserver:24.10-trtllm-python-py3", "v0.14.0"
BACKEND = "https://github.com/triton-inference-server/tensorrtllm_backend"
CONTAINER_NAME = "triton-lab"

# Models that nobody has to ask for. The revision is pinned: what is downloaded is what was meant.
MODEL_ID, MODEL_REVISION = "TinyLlama/TinyLlama-1.1B-Chat-v1.0", "fe8a4ea1ffedaf415f4da2f062534de366a451e6"
GPT_MODEL_ID = "openai-community/gpt2-medium"
TEXTS_ID = "abisee/cnn_dailymail"

FAMILIES = ("llama", "gpt")
# Targets, with what their tensor cores multiply; float32 is not among it. Fused attention takes 16 bits or FP8.
GPUS = {
    "Hopper: H100, H200": ("float16", "bfloat16", "fp8"),
    "Ada: L4, L40S": ("float16", "bfloat16", "fp8"),
    "Ampere: A100, A10": ("float16", "bfloat16"),
}
GPU_DTYPES = ("float16", "bfloat16", "fp8")
GENERATIONS = (
    "TensorRT-LLM 0.5: build.py",
    "TensorRT-LLM 0.18: convert_checkpoint.py and trtllm-build",
    "TensorRT-LLM 1.x: model.yaml of the LLM API",
)
LINE = 92


@dataclass(frozen=True)
class Command:
    """A program and what it is given: `argv` for a process, `str()` and `line` for a reader and a shell.

    `options` are groups of words that stay together in a line: an option and its values, or a word alone. A word with
    a dollar sign is the shell's to expand.
    """

    program: tuple[str, ...]
    options: tuple[tuple[str, ...], ...] = ()

    @property
    def argv(self) -> list[str]:
        return [*self.program, *(word for option in self.options for word in option)]

    @property
    def line(self) -> str:
        return " ".join(_quoted(word) for word in self.argv)

    def __str__(self) -> str:
        """The command in lines of at most `LINE` characters."""
        lines = [" ".join(map(_quoted, self.program))]
        for option in self.options:
            words = " ".join(map(_quoted, option))
            if len(lines[-1]) + len(words) < LINE:
                lines[-1] += f" {words}"
            else:
                lines.append(words)
        return " \\\n    ".join(lines)


def _quoted(word: str) -> str:
    if "$" not in word:
        return shlex.quote(word)
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _command(program: str | tuple[str, ...], *options: str | tuple | None) -> Command:
    """A command of words and groups of words; None is left out."""
    groups = [option if isinstance(option, tuple) else (option,) for option in options if option is not None]
    return Command(
        program if isinstance(program, tuple) else tuple(program.split()),
        tuple(tuple(str(word) for word in group) for group in groups),
    )


@dataclass(frozen=True)
class Places:
    """Where the steps find and put what they handle."""

    app: str  # scripts/, tools/ and all_models/ of the backend
    examples: str  # TensorRT-LLM's converters
    clients: str  # the backend's clients
    model: str  # the checkpoint of Hugging Face
    checkpoint: str  # the same in TensorRT-LLM's form
    engine: str
    repository: str
    texts: str  # the data set cnn_dailymail: what INT8 KV cache and FP8 are calibrated with
    logs: str


NAMES = Places("$APP", "$EXAMPLES", "$CLIENTS", "$MODEL", "$CHECKPOINT", "$ENGINE", "$REPO", "$TEXTS", "$LOGS")
CONTAINER = Places(
    app="/app",
    examples="/app/examples",
    clients="/app/client",
    model="/lab/models/hf",
    checkpoint="/lab/checkpoint",
    engine="/lab/engine",
    repository="/lab/repo",
    texts="/lab/datasets/cnn_dailymail",
    logs="/lab/logs",
)
LEGEND = (
    "`$MODEL` is the folder of the Hugging Face checkpoint, `$CHECKPOINT` the same in TensorRT-LLM's form, `$ENGINE` "
    "the engine; `$EXAMPLES` are TensorRT-LLM's `examples`, `$TEXTS` is a folder with the data set cnn_dailymail."
)


@dataclass(frozen=True)
class Recipe:
    """What an engine is built from, and its limits. Numbers may be names of the shell, such as "$SLOTS".

    Attributes
    ----------
    family : str
        "llama" or "gpt".
    dtype : str
        "float16" or "bfloat16": the precision of activations.
    weights : str, optional
        "int8" or "int4" (stored so, multiplied in `dtype`), or "fp8" (Hopper and Ada: weights, activations and KV
        cache). None: as `dtype` says.
    int8_kv_cache : bool
        Excludes reuse of the KV cache and chunked context: the attention kernel that they need has no INT8.
    """

    family: str = "llama"
    dtype: str = "float16"
    weights: str | None = None
    int8_kv_cache: bool = False
    tp_size: int | str = 1
    pp_size: int = 1
    max_batch_size: int | str = 8
    max_seq_len: int | str = 2048
    max_num_tokens: int | str = 2048
    tokens_per_block: int | str = 32
    max_beam_width: int | str = 1

    @classmethod
    def of(cls, config: BuildConfig, family: str = "llama", tp_size: int = 1, pp_size: int = 1, dtype: str = "float16"):
        """The recipe for the engine that `config` describes, on a GPU that computes in `dtype` (one of `GPU_DTYPES`).

        Raises
        ------
        CourseError
            Unknown family or dtype, a size that is not at least 1, or FP8 for GPT.
        """
        if family not in FAMILIES:
            raise CourseError(
                f"There are no commands for the family {family!r}; there are for {' and '.join(FAMILIES)}."
            )
        if dtype not in GPU_DTYPES:
            raise CourseError(
                f"There are no commands for the dtype {dtype!r}; on a GPU choose {', '.join(GPU_DTYPES)}."
            )
        if (family, dtype) == ("gpt", "fp8"):
            raise CourseError("There are no commands for GPT in FP8: choose float16, or the family llama.")
        for name, size in (("tp_size", tp_size), ("pp_size", pp_size)):
            if not isinstance(size, int) or size < 1:
                raise CourseError(f"{name} is {size!r}; give a number of GPUs of at least 1.")
        stored = {"W4A8": "int4", "W4A16": "int4", "W8A16": "int8"}.get(config.quant_algo or "")
        return cls(
            family=family,
            dtype="float16" if dtype == "fp8" else dtype,
            weights="fp8" if dtype == "fp8" else stored,
            int8_kv_cache=bool(config.kv_cache_quant_algo),
            tp_size=tp_size,
            pp_size=pp_size,
            max_batch_size=config.max_batch_size,
            max_seq_len=config.max_seq_len,
            max_num_tokens=config.max_num_tokens,
            tokens_per_block=config.tokens_per_block,
            max_beam_width=config.max_beam_width,
        )


# The chain: convert, build, fill, launch ------------------------------------------------------------------------------


def convert(recipe: Recipe, places: Places = NAMES) -> Command:
    """From a folder of Hugging Face to TensorRT-LLM's checkpoint: the precision is decided here."""
    gpus = ("--tp_size", recipe.tp_size), ("--pp_size", recipe.pp_size) if recipe.pp_size != 1 else None
    if recipe.weights == "fp8":
        return _command(
            f"python3 {places.examples}/quantization/quantize.py",
            ("--model_dir", places.model),
            ("--dtype", recipe.dtype),
            ("--qformat", "fp8"),
            ("--kv_cache_dtype", "int8" if recipe.int8_kv_cache else "fp8"),
            ("--calib_dataset", places.texts),
            *gpus,
            ("--output_dir", places.checkpoint),
        )
    return _command(
        f"python3 {places.examples}/{recipe.family}/convert_checkpoint.py",
        ("--model_dir", places.model),
        ("--dtype", recipe.dtype),
        *gpus,
        ("--use_weight_only", "--weight_only_precision", recipe.weights) if recipe.weights else None,
        ("--int8_kv_cache", "--calib_dataset", places.texts) if recipe.int8_kv_cache else None,
        ("--output_dir", places.checkpoint),
    )


def build(recipe: Recipe, places: Places = NAMES) -> Command:
    """From TensorRT-LLM's checkpoint to the engine: the limits are decided here."""
    fp8, plain_kv = recipe.weights == "fp8", not recipe.int8_kv_cache
    workers = recipe.tp_size * recipe.pp_size  # one for each GPU; times 1, a name of the shell stays what it is
    return _command(
        "trtllm-build",
        ("--checkpoint_dir", places.checkpoint),
        ("--gpt_attention_plugin", "auto"),
        ("--gemm_plugin", "fp8" if fp8 else "auto"),
        ("--kv_cache_type", "paged"),
        ("--remove_input_padding", "enable"),
        ("--context_fmha", "enable"),
        ("--use_paged_context_fmha", "enable") if plain_kv else None,
        ("--use_fp8_context_fmha", "enable") if fp8 and plain_kv else None,
        ("--tokens_per_block", recipe.tokens_per_block),
        ("--max_batch_size", recipe.max_batch_size),
        ("--max_seq_len", recipe.max_seq_len),
        ("--max_num_tokens", recipe.max_num_tokens),
        ("--max_beam_width", recipe.max_beam_width),
        ("--workers", workers) if workers != 1 else None,
        ("--output_dir", places.engine),
    )


MODELS = ("ensemble", "preprocessing", "tensorrt_llm", "postprocessing")


def template_values(
    places: Places = NAMES,
    slots: int | str = 8,
    batching: str = "inflight_fused_batching",
    policy: str = "guaranteed_no_evict",
    decoupled: bool | str = True,
    queue_delay_us: int | str = 0,
    **more: object,
) -> dict[str, dict[str, str]]:
    """What to fill into the templates of the backend: for each model, variable -> value.

    Not every release's templates have every variable: give `fill_template.py` only those that are there. Releases
    after 0.18 end with an error where one is not. `more` are further variables of `tensorrt_llm`.
    """
    tokenizer: dict[str, object] = {"triton_max_batch_size": slots, "tokenizer_dir": places.model}
    values: dict[str, dict[str, object]] = {
        "ensemble": {"triton_max_batch_size": slots, "logits_datatype": "TYPE_FP32"},
        "preprocessing": {
            **tokenizer,
            "preprocessing_instance_count": 1,
            "max_queue_delay_microseconds": 0,
            "max_queue_size": 0,
        },
        "postprocessing": {**tokenizer, "postprocessing_instance_count": 1},
        "tensorrt_llm": {
            "triton_backend": "tensorrtllm",
            "triton_max_batch_size": slots,
            "engine_dir": places.engine,
            "batching_strategy": batching,
            "batch_scheduler_policy": policy,
            "decoupled_mode": decoupled,
            "max_queue_delay_microseconds": queue_delay_us,
            "max_queue_size": 0,
            "kv_cache_free_gpu_mem_fraction": 0.5,
            "exclude_input_in_output": True,
            "stats_check_period_ms": 10,
            "encoder_input_features_data_type": "TYPE_FP16",
            "logits_datatype": "TYPE_FP32",
            "prompt_embedding_table_data_type": "TYPE_FP16",
            **more,
        },
    }
    return {model: {name: str(value) for name, value in given.items()} for model, given in values.items()}


def fill(file: str, pairs: str, places: Places = NAMES) -> Command:
    """Fill one `config.pbtxt` in place; `pairs` is `name:value,name:value`, without blanks."""
    return _command(f"python3 {places.app}/tools/fill_template.py", ("-i", file), pairs)


def launch(world_size: int | str = 1, places: Places = NAMES) -> Command:
    """Triton on as many GPUs as the engine was built for. Returns at once; the models cannot be loaded again."""
    return _command(
        f"python3 {places.app}/scripts/launch_triton_server.py",
        ("--world_size", world_size),
        ("--model_repo", places.repository),
        ("--log", "--log-file", f"{places.logs}/triton.log"),
    )


def serve(places: Places = NAMES) -> Command:
    """Triton on one GPU, without the launcher: in the foreground, and its models can be loaded again."""
    return _command(
        "tritonserver",
        f"--model-repository={places.repository}",
        "--disable-auto-complete-config",
        ("--model-control-mode=explicit", "--load-model=*"),
        ("--log-verbose=1", f"--log-file={places.logs}/triton.log"),
    )


def serve_openai(model: str = "MODEL_FOLDER", port: int = 8080, slots: int = 8) -> Command:
    """TensorRT-LLM's own server with OpenAI's endpoints, without Triton: a target of `inflight bench compare`."""
    return _command("trtllm-serve", model, ("--host", "127.0.0.1"), ("--port", port), ("--max_batch_size", slots))


# The container --------------------------------------------------------------------------------------------------------


def start(runtime: str, image: str = "$IMAGE", folder: str = "$LAB", devices: str = "$DEVICES") -> Command:
    """A container in which nothing runs yet. `folder` is on this machine, and `/lab` inside.

    Ports are published on this machine's loopback only. Python models hand tensors over in shared memory, and GPUs
    use it among themselves: the runtime's own 64 MB are too few.

    Parameters
    ----------
    runtime : {"docker", "podman"}
    devices : str
        "all"; for one GPU "device=0" (docker) or "0" (podman).
    """
    gpus: tuple[tuple[str, ...], ...] = (("--gpus", devices),)
    if runtime == "podman":
        gpus = ("--device", f"nvidia.com/gpu={devices}"), ("--security-opt", "label=disable")
    unlimited, stack = (
        ("memlock=-1:-1", "stack=67108864:67108864") if runtime == "podman" else ("memlock=-1", "stack=67108864")
    )
    return _command(
        f"{runtime} run",
        "--detach",
        ("--name", CONTAINER_NAME),
        *gpus,
        ("--shm-size", "8g"),
        ("--ulimit", unlimited),
        ("--ulimit", stack),
        *(("-p", f"127.0.0.1:{port}:{port}") for port in (8000, 8001, 8002)),
        ("-v", f"{folder}:/lab"),
        ("-e", "HF_HUB_OFFLINE=1"),
        image,
        # It only stays, so that there is a container to run the steps in. Bash takes in what the steps leave behind,
        # and ends at once when it is told to; `sleep` as the first process does neither.
        ("bash", "-c", "trap exit TERM; sleep infinity & wait"),
    )


# Clients and one-liners of the lessons --------------------------------------------------------------------------------


def lab_commands() -> dict[str, Command]:
    """The commands that lessons and `lab.sh` print as they stand, by name."""
    ensemble, backend = "localhost:8000/v2/models/ensemble", "$LAB/tensorrtllm_backend"
    question, length = '"text_input": "$PROMPT"', '"max_tokens": $LENGTH'
    text_client = f"python3 {NAMES.clients}/end_to_end_grpc_client.py"
    token_client = f"python3 {NAMES.clients}/inflight_batcher_llm_client.py"
    by_text = ("--prompt", "$PROMPT"), ("--output-len", "$LENGTH")
    by_tokens = ("--text", "$PROMPT"), ("--tokenizer-dir", "$MODEL"), ("--request-output-len", "$LENGTH")
    streamed = *by_tokens, "--streaming", "--exclude-input-in-output"
    recipe = Recipe(
        family="$FAMILY",
        dtype="$PRECISION",
        tp_size="$GPUS",
        max_batch_size="$SLOTS",
        max_seq_len="$MAX_SEQ_LEN",
        max_num_tokens="$MAX_NUM_TOKENS",
    )
    stored = replace(recipe, dtype="float16", weights="$PRECISION")
    fp8 = replace(recipe, dtype="float16", weights="fp8")
    return {
        "fetch": _command("hf download", "$MODEL_ID", ("--revision", "$REVISION"), ("--local-dir", "$MODEL_HERE")),
        "fetch_texts": _command(
            "hf download", TEXTS_ID, ("--repo-type", "dataset"), ("--local-dir", "$LAB/datasets/cnn_dailymail")
        ),
        "start_docker": start("docker"),
        "start_podman": start("podman"),
        "devices_podman": _command("nvidia-ctk cdi generate", "--output=/etc/cdi/nvidia.yaml"),
        "convert": convert(recipe),
        "convert_weight_only": convert(stored),
        "quantize_fp8": convert(fp8),
        "build": build(recipe),
        "build_fp8": build(fp8),
        "fill": fill("$file", "$pairs"),
        "launch": launch("$GPUS"),
        "serve": serve(),
        "ready": _command("curl", ("-fs", "-o", "/dev/null"), "localhost:8000/v2/health/ready"),
        "is_ready": _command("curl", "-i", "localhost:8000/v2/health/ready"),
        "tensors": _command("curl", ensemble),
        "query": _command("curl", "-fsS", ("-d", f"{{{question}, {length}}}"), f"{ensemble}/generate"),
        "stream": _command(
            "curl", "-fsSN", ("-d", f'{{{question}, {length}, "stream": true}}'), f"{ensemble}/generate_stream"
        ),
        "text_client": _command(text_client, *by_text, "--exclude-input-in-output"),
        "text_client_streaming": _command(text_client, *by_text, "--streaming", "--exclude-input-in-output"),
        "token_client": _command(token_client, *streamed),
        "stop_by_id": _command(token_client, *by_tokens, "--streaming", ("--stop-after-ms", 400), ("--request-id", 7)),
        "stop_by_cancel": _command(
            token_client, *by_tokens, "--streaming", ("--stop-after-ms", 400), "--stop-via-request-cancel"
        ),
        "metrics": _command("curl", "localhost:8002/metrics"),
        "statistics": _command("curl", "localhost:8000/v2/models/batch-cost/stats"),
        "load": _command("curl", ("-X", "POST"), "localhost:8000/v2/repository/models/tensorrt_llm/load"),
        "load_batch_cost": _command("curl", ("-X", "POST"), "localhost:8000/v2/repository/models/batch-cost/load"),
        "measure": _command(
            f"python3 {NAMES.app}/tools/inflight_batcher_llm/benchmark_core_model.py",
            ("-i", "grpc"),
            ("--max-input-len", 1024),
            ("--request-rate", -1),
            "--exclude-input-in-output",
            "dataset",
            ("--dataset", "$DATASET"),
            ("--tokenizer-dir", "$MODEL"),
        ),
        "server_image_0_5": _command(
            "docker build", ("-t", "triton_trt_llm"), ("-f", "dockerfile/Dockerfile.trt_llm_backend"), "."
        ),
        "server_image": _command(
            "docker build", ("-t", "triton_trt_llm"), ("-f", "dockerfile/Dockerfile.triton.trt_llm_backend"), "."
        ),
        "backend_clone": _command("git clone", ("-b", FALLBACK_TAG), BACKEND, backend),
        "backend_large_files": _command(("git", "-C", backend), "lfs", "install"),
        "backend_submodules": _command(("git", "-C", backend), "submodule", "update", "--init", "--recursive"),
        "client_image": _command("docker run", ("-it", "--rm"), ("--net", "host"), CLIENT_IMAGE),
    }


# The same engine in three generations ---------------------------------------------------------------------------------


def commands(
    config: BuildConfig, family: str = "llama", tp_size: int = 1, pp_size: int = 1, dtype: str = "float16"
) -> dict[str, str]:
    """Text of the commands, or of the file, by generation (`GENERATIONS`). What the names mean: `LEGEND`.

    Parameters
    ----------
    family : str
        "llama" or "gpt".
    tp_size, pp_size : int
        GPUs that share each layer, and GPUs that share out the layers.
    dtype : str
        What the target GPU computes in, one of `GPU_DTYPES`. `config.dtype`, this engine's own, plays no part.

    Raises
    ------
    CourseError
        Unknown family or dtype, a size that is not at least 1, or FP8 for GPT.
    """
    recipe = Recipe.of(config, family, tp_size, pp_size, dtype)
    texts = (
        _build_py(recipe, config, tp_size, pp_size),
        f"{convert(recipe)}\n{build(recipe)}",
        _model_yaml(recipe, config.max_input_len),
    )
    return dict(zip(GENERATIONS, texts))


def as_markdown(
    config: BuildConfig, family: str = "llama", tp_size: int = 1, pp_size: int = 1, dtype: str = "float16"
) -> str:
    """The same as `commands`, as one page with what differs from this engine."""
    fences = ("bash", "bash", "yaml")
    parts = ["# The same engine with TensorRT-LLM", LEGEND]
    for (title, text), fence in zip(commands(config, family, tp_size, pp_size, dtype).items(), fences):
        parts.append(f"## {title}\n\n```{fence}\n{text}\n```")
    parts.append("## What differs\n\n" + "\n".join(f"- {note}" for note in differences(config, dtype)))
    return "\n\n".join(parts) + "\n"


def differences(config: BuildConfig, dtype: str = "float16") -> list[str]:
    """Sentences about options that a GPU build chooses otherwise, or does not have in this form."""
    notes = []
    if dtype == "fp8":
        notes.append(
            "FP8 takes the place of `quant_algo`: weights, activations and KV cache have 8 bits, with scales found by "
            "running sample texts. TensorRT-LLM 0.5 had scripts of its own for that; its command builds float16."
        )
    elif config.dtype != dtype:
        notes.append(f"`dtype` {config.dtype} is this engine's, for this machine; the commands take {dtype}.")
    if config.quant_algo == "W4A8" and dtype != "fp8":
        notes.append(
            "W4A8 here means whole-number activations, rounded as they come. The nearest build by these scripts "
            "is W4A16: 4-bit weights, activations as they are. That is what the commands make."
        )
    if config.quant_algo == "auto" and dtype != "fp8":
        notes.append("`auto` takes the precision of the checkpoint; the commands leave the weights in `dtype`.")
    if config.quant_algo in ("W4A8", "W4A16", "W8A16") or dtype == "fp8":
        notes.append("The LLM API quantizes nothing when it starts: give it a checkpoint that is quantized already.")
    if config.kv_cache_quant_algo:
        notes.append(
            "An INT8 KV cache on a GPU has one scale for a whole layer, found by running sample texts when "
            "converting; this engine finds its scales block by block while it runs. TensorRT-LLM refuses to build it "
            "with `--use_paged_context_fmha`, so it excludes reuse and chunked context. The LLM API offers FP8 instead."
        )
    notes.append(
        "From 0.9 on `max_input_len` is not given: with packed input and fused attention `trtllm-build` ignores it, "
        "and a prompt may be as long as `max_seq_len`."
    )
    notes.append("A GPU engine is compiled for one GPU model and one TensorRT version, and runs with those only.")
    return notes


def _build_py(recipe: Recipe, config: BuildConfig, tp_size: int, pp_size: int) -> str:
    dtype, family = recipe.dtype, recipe.family
    weights = recipe.weights if recipe.weights in ("int8", "int4") else None
    source, converted = NAMES.model, f"{NAMES.checkpoint}/{tp_size}-gpu"
    lines: list[str | Command] = []
    if family == "gpt":
        if pp_size > 1:
            lines.append("# GPT has tensor parallelism only in this version: pp_size is left out")
        lines.append(_converted_0_5("examples/gpt/hf_gpt_convert.py", tp_size, dtype, recipe.int8_kv_cache))
        source, gpus = converted, [("--world_size", tp_size)]
        plugin = [("--use_layernorm_plugin", dtype), ("--hidden_act", "gelu")]
    else:
        gpus = [("--world_size", tp_size * pp_size), ("--tp_size", tp_size), ("--pp_size", pp_size)]
        plugin = [("--use_rmsnorm_plugin", dtype)]
        if recipe.int8_kv_cache:
            lines.append(_converted_0_5("examples/llama/hf_llama_convert.py", tp_size, "fp16", True))
    scales = ("--ft_model_dir", converted) if family == "llama" and recipe.int8_kv_cache else None
    build_py = _command(
        f"python3 examples/{family}/build.py",
        scales or ("--model_dir", source),
        ("--dtype", dtype),
        *gpus,
        ("--use_gpt_attention_plugin", dtype),
        ("--use_gemm_plugin", dtype),
        *plugin,
        "--enable_context_fmha",
        "--use_inflight_batching",
        "--paged_kv_cache",
        "--remove_input_padding",
        ("--tokens_per_block", recipe.tokens_per_block),
        ("--use_weight_only", "--weight_only_precision", weights) if weights else None,
        "--int8_kv_cache" if recipe.int8_kv_cache else None,
        ("--max_batch_size", recipe.max_batch_size),
        ("--max_input_len", config.max_input_len),
        ("--max_output_len", config.max_seq_len - config.max_input_len),
        ("--max_num_tokens", recipe.max_num_tokens),
        ("--max_beam_width", recipe.max_beam_width),
        "--parallel_build" if tp_size * pp_size > 1 else None,
        ("--output_dir", NAMES.engine),
    )
    return "\n".join(map(str, [*lines, build_py]))


def _converted_0_5(script: str, tp_size: int, storage_type: str, calibrate: bool) -> Command:
    return _command(
        f"python3 {script}",
        ("-i", NAMES.model),
        ("-o", NAMES.checkpoint),
        ("--tensor-parallelism", tp_size),
        ("--storage-type", storage_type),
        "--calibrate-kv-cache" if calibrate else None,
    )


def _model_yaml(recipe: Recipe, max_input_len: int) -> str:
    return "\n".join(
        [
            "model: MODEL  # its path, or its name on Hugging Face",
            "backend: pytorch",
            f"dtype: {recipe.dtype}",
            f"tensor_parallel_size: {recipe.tp_size}",
            f"pipeline_parallel_size: {recipe.pp_size}",
            f"max_batch_size: {recipe.max_batch_size}",
            f"max_input_len: {max_input_len}",
            f"max_seq_len: {recipe.max_seq_len}",
            f"max_num_tokens: {recipe.max_num_tokens}",
            f"max_beam_width: {recipe.max_beam_width}",
            "kv_cache_config:",
            f"  tokens_per_block: {recipe.tokens_per_block}",
            "  free_gpu_memory_fraction: 0.9",
            "triton_config:",
            "  max_batch_size: 0",
            "  decoupled: true",
        ]
    )
