"""The settings of building an engine, of loading it, and of sampling, each with its help and its bounds.

Plain data and its checks: it needs only the standard library.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from inflight.engine.scheduler import POLICIES
from inflight.errors import CourseError

log = logging.getLogger("inflight.engine")

BATCHING_TYPES = ("V1", "inflight_batching", "inflight_fused_batching")
OLDER_POLICIES = {"guaranteed_completion": "guaranteed_no_evict"}  # older spelling -> today's
# Precision of weights and activations of a matrix product; None is floating point. There is no W8A8: W4A8 is faster,
# and W8A16 gives answers that do not depend on the rest of a batch.
QUANT_ALGOS = (None, "W8A16", "W4A8", "W4A16")
TOKENS_PER_BLOCK = 32  # fixed by the CPU's paged-attention kernel
TIERS = ("cpu", "cuda")  # OpenVINO on the CPU, PyTorch on an NVIDIA GPU
# The values that each tier's engine takes for the options that differ; the first is what "auto" takes.
TIER_OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "cpu": {
        "dtype": ("float32", "bfloat16"),
        "tokens_per_block": (TOKENS_PER_BLOCK,),
        "quant_algo": ("auto", *QUANT_ALGOS),
        "kv_cache_quant_algo": (None, "INT8"),
    },
    "cuda": {
        "dtype": ("bfloat16", "float16", "float32"),
        "tokens_per_block": (TOKENS_PER_BLOCK, 64, 128, 256),
        "quant_algo": ("auto", None),
        "kv_cache_quant_algo": (None,),
    },
}


def setting(
    default: Any, help: str, choices: tuple[str, ...] = (), low: float | None = None, high: float | None = None
) -> Any:
    """Make a field of a config with its help, choices and bounds, where all who offer or check it find them.

    Parameters
    ----------
    default : value or None
        None: the setting may be left blank.
    help : str
        What it does, in a sentence.
    choices : tuple of str
        Every spelling that is taken; empty where it is no choice.
    low, high : number, optional
        Least and greatest value.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


def check_settings(config: Any, what: str = "{}") -> None:
    """Refuse a setting that is not one of its choices, not a number of its default's kind, or out of its bounds.

    Parameters
    ----------
    config : dataclass
        Its fields were made by `setting`. One whose default is None may be None.
    what : str
        How a message calls a setting; {} is its name.

    Raises
    ------
    CourseError
        With the setting's name, its value, and what to give.
    """
    for option in fields(config):
        value, low, high = getattr(config, option.name), option.metadata["low"], option.metadata["high"]
        name, choices = what.format(option.name), option.metadata["choices"]
        if choices and value not in choices:
            raise CourseError(f"{name} is {value!r}; it must be {' or '.join(choices)}.")
        kind = {int: Integral, float: Real}.get(type(option.default))
        is_bounded = not (low is None and high is None)
        if (kind is None and not is_bounded) or (value is None and option.default is None):
            continue
        is_number = isinstance(value, kind or Real) and not isinstance(value, bool)
        is_number = is_number and (isinstance(value, Integral) or math.isfinite(value))
        if not is_number or (low is not None and value < low) or (high is not None and value > high):
            number = "a whole number" if kind is Integral else "a finite number"
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
            raise CourseError(f"{name} is {value!r}; give {number}{' of ' * bool(bounds)}{' and '.join(bounds)}.")


@dataclass(frozen=True)
class BuildConfig:
    """The settings of building an engine, under TensorRT-LLM's names; the help of each says what it does."""

    max_batch_size: int = setting(8, "Most sequences in one iteration.", low=1)
    max_input_len: int = setting(1792, "Most tokens of a prompt.", low=1)
    max_seq_len: int = setting(2048, "Most tokens of prompt and answer.", low=1)
    max_num_tokens: int = setting(2048, "Most tokens computed in one iteration.", low=1)
    max_beam_width: int = setting(1, "1: this engine has no beam search.")
    kv_cache_type: str = setting("paged", "paged: this engine has no other.")
    tokens_per_block: int = setting(TOKENS_PER_BLOCK, "Tokens of a KV cache block: 32; on a GPU also 64, 128 or 256.")
    remove_input_padding: bool = setting(True, "Tokens of all sequences are packed into one row, without padding.")
    dtype: str = setting(
        "auto",
        "Activations: float32; bfloat16 where available; on a GPU also float16. auto: float32, bfloat16 on a GPU.",
    )
    # W: bits of the weights, A: of the activations. A8, rounded in groups of 16 values, is about twice as fast on a CPU
    # that multiplies 8-bit whole numbers; A16 gives an answer that does not depend on the batch.
    quant_algo: str | None = setting(
        "auto",
        "Matrix products: W8A16, W4A16, W4A8 or none; auto: the checkpoint's weights, the quicker activations.",
    )
    kv_cache_quant_algo: str | None = setting(None, "KV cache: INT8 (on a CPU), or none for the type in dtype.")

    def __post_init__(self) -> None:
        check_settings(self, "Build option {}")
        for problem in _problems(self):
            raise CourseError(f"Build option {problem}")

    def on(self, tier: str) -> BuildConfig:
        """Return these options as a tier's engine is built with them: `dtype` is never "auto" there.

        Raises
        ------
        CourseError
            There is no such tier, or it lacks what an option asks for.
        """
        if tier not in TIERS:
            raise CourseError(f"The tier is {tier!r}; engines are built for {' or '.join(TIERS)}.")
        has = TIER_OPTIONS[tier]
        resolved = replace(self, dtype=has["dtype"][0]) if self.dtype == "auto" else self
        for name, allowed in has.items():
            if (value := getattr(resolved, name)) not in allowed:
                raise CourseError(
                    f"Build option {name} is {value!r}; an engine of the tier {tier} has "
                    f"{', '.join(map(repr, allowed))}."
                )
        return resolved


def _problems(config: BuildConfig) -> Iterator[str]:
    """Yield a sentence for each option that this engine does not have or that contradicts another."""
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
        "remove_input_padding": (True, "its kernel takes packed rows only"),
    }
    for name, (value, reason) in fixed.items():
        if getattr(config, name) != value:
            yield f"{name} can only be {value!r} in this engine: {reason}."
    for name in TIER_OPTIONS["cpu"]:
        allowed = list(dict.fromkeys(value for tier in TIERS for value in TIER_OPTIONS[tier][name]))
        if getattr(config, name) not in (*allowed, *(["auto"] if name == "dtype" else [])):
            yield f"{name} is {getattr(config, name)!r}; the engines here have {', '.join(map(repr, allowed))}."


@dataclass(frozen=True)
class SpeculativeConfig:
    """The settings of drafting tokens, under the names of TensorRT-LLM's `NGramDecodingConfig`."""

    decoding_type: str = setting(
        "NGram", "NGram: what followed the last tokens where they came earlier.", choices=("NGram",)
    )
    max_draft_len: int = setting(4, "Most drafts of an answer in an iteration.", low=1)
    max_matching_ngram_size: int = setting(2, "So many of the last tokens are looked for first, then fewer.", low=1)

    def __post_init__(self) -> None:
        check_settings(self, "{} of speculative_config")

    @classmethod
    def read(cls, given: SpeculativeConfig | dict[str, Any] | str) -> SpeculativeConfig:
        """Read the config from a dict or its JSON. Raises CourseError for anything else."""
        if isinstance(given, cls):
            return given
        known = [option.name for option in fields(cls)]
        try:
            options = json.loads(given) if isinstance(given, str) else given
        except ValueError:
            options = None
        if not isinstance(options, dict) or not set(options) <= set(known):
            raise CourseError(
                f"speculative_config is {given!r}; give a JSON object, such as "
                f'{{"decoding_type": "NGram", "max_draft_len": 4}}, of {", ".join(known)}.'
            )
        return cls(**options)


@dataclass(frozen=True)
class ExecutorConfig:
    """The settings of loading an engine, under the names of Triton's TensorRT-LLM backend."""

    gpt_model_type: str = setting(
        "inflight_fused_batching", "V1: static batching; the others: in-flight batching.", choices=BATCHING_TYPES
    )
    # guaranteed_no_evict admits a request when blocks for its prompt and its whole answer can be had; max_utilization
    # when its next iteration fits, and pauses the youngest request, to be computed again, when blocks run out later.
    batch_scheduler_policy: str = setting(
        "guaranteed_no_evict", "What happens when KV blocks are short.", choices=(*POLICIES, *OLDER_POLICIES)
    )
    scheduler_path: str | Path | None = setting(
        None, "Python file with a scheduler of your own, used instead of the policy; blank: none."
    )
    logits_processor_path: str | Path | None = setting(
        None, "Python file with a class of your own that masks the logits of guided requests; blank: none."
    )
    speculative_config: SpeculativeConfig | dict[str, Any] | str | None = setting(
        None, "Drafts tokens that one iteration checks: JSON, as TensorRT-LLM's LLM API has it; blank: none."
    )
    drafter_path: str | Path | None = setting(
        None, "Python file with a class of your own that drafts, in place of the lookup in the prompt; blank: none."
    )
    max_tokens_in_paged_kv_cache: int | None = setting(
        None, "Most tokens in the KV cache; blank: no such limit.", low=1
    )
    # TensorRT-LLM's default is 0.9 of a GPU that serves nothing else. Here it is the host's memory, which notebook,
    # tokenizers and neighbours share.
    kv_cache_free_gpu_mem_fraction: float = setting(
        0.5, "Most of the free memory that the KV cache takes.", low=0, high=1
    )
    enable_kv_cache_reuse: bool = setting(False, "Keep the KV blocks of prompts for later ones.")
    kv_store_path: str | Path | None = setting(
        None, "Folder in which KV blocks outlive the engine, and which engines may share; blank: none."
    )
    kv_store_bytes: int = setting(2**30, "Most bytes in that folder; the least recent blocks go first.", low=1)
    kv_peer_url: str | None = setting(
        None, "OpenAI port of an engine, http://host:port, whose store has blocks of prompts for this one; blank: none."
    )
    kv_policy_path: str | Path | None = setting(
        None, "Python file with a class of your own that says when blocks are worth moving; blank: always."
    )
    enable_chunked_context: bool = setting(False, "Compute a long prompt in parts.")
    max_queue_size: int = setting(0, "Most requests that wait to be admitted; 0: no limit.", low=0)
    iteration_log_path: str | Path | None = setting(None, "File for one JSON line per iteration; blank: none.")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.batch_scheduler_policy in OLDER_POLICIES:
            today = OLDER_POLICIES[self.batch_scheduler_policy]
            log.warning("batch_scheduler_policy %s is an older spelling: using %s.", self.batch_scheduler_policy, today)
            object.__setattr__(self, "batch_scheduler_policy", today)
        if self.speculative_config is not None:
            object.__setattr__(self, "speculative_config", SpeculativeConfig.read(self.speculative_config))
        elif self.drafter_path is not None:
            object.__setattr__(self, "speculative_config", SpeculativeConfig())
        if self.kv_store_path is not None and not self.enable_kv_cache_reuse:
            raise CourseError("kv_store_path keeps blocks for later prompts: set enable_kv_cache_reuse as well.")
        for name in ("kv_peer_url", "kv_policy_path"):
            if getattr(self, name) is not None and self.kv_store_path is None:
                raise CourseError(f"{name} is about blocks in a store: set kv_store_path as well.")

    def check_prompts_fit(self, build: BuildConfig) -> None:
        """Raise CourseError where an engine could never compute its longest prompt."""
        if build.max_num_tokens < build.max_input_len and not self.enable_chunked_context:
            raise CourseError(
                f"A prompt of max_input_len ({build.max_input_len}) tokens does not fit into an iteration of "
                f"max_num_tokens ({build.max_num_tokens}): set enable_chunked_context, or build the engine with a "
                "larger max_num_tokens."
            )

    def num_blocks(self, build: BuildConfig, by_memory: int | None = None) -> int:
        """Return the number of KV cache blocks: the least of what is allowed, what memory has, and full slots can use.

        Raises
        ------
        CourseError
            They are too few for one longest request.
        """
        per_sequence = -(-build.max_seq_len // build.tokens_per_block)
        found, limit = per_sequence * build.max_batch_size, ""
        if by_memory is not None and by_memory < found:
            found, limit = by_memory, f"kv_cache_free_gpu_mem_fraction ({self.kv_cache_free_gpu_mem_fraction})"
        if self.max_tokens_in_paged_kv_cache is not None:
            by_tokens = self.max_tokens_in_paged_kv_cache // build.tokens_per_block
            if by_tokens < found:
                found, limit = by_tokens, f"max_tokens_in_paged_kv_cache ({self.max_tokens_in_paged_kv_cache})"
        if found < per_sequence:
            raise CourseError(
                f"{limit} gives {found * build.tokens_per_block} tokens of KV cache, too few for one request of "
                f"max_seq_len: it needs {per_sequence * build.tokens_per_block}. Raise it, or build the engine with a "
                "smaller max_seq_len."
            )
        return found


@dataclass(frozen=True)
class SamplingConfig:
    """Settings of sampling, under TensorRT-LLM's names. Greedy with `top_k` 1, or with `top_k` 0 and `top_p` 0."""

    temperature: float = setting(1.0, "Logits are divided by it; above 1 flatter, below 1 sharper. 0: greedy.", low=0)
    top_k: int = setting(0, "Choose among the k most likely tokens; 0: no such limit.", low=0)
    top_p: float = setting(
        0.0,
        "Choose among the most likely tokens whose probabilities reach this sum; 0 or 1: no such limit.",
        low=0,
        high=1,
    )
    # Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    repetition_penalty: float = setting(
        1.0, "Logits of tokens in prompt or answer are divided (if positive) or multiplied by it."
    )
    presence_penalty: float = setting(0.0, "Taken from the logits of tokens in the answer, once.")
    frequency_penalty: float = setting(0.0, "Taken from the logits of tokens in the answer, for each occurrence.")
    min_length: int = setting(0, "The end token is not chosen before the answer has this many tokens.", low=0)
    random_seed: int = setting(0, "Same seed, same request: same tokens.", low=0)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.repetition_penalty <= 0:
            raise CourseError(f"repetition_penalty is {self.repetition_penalty}; give a value above 0 (1 means none).")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1 or (self.top_k == 0 and self.top_p == 0)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)
