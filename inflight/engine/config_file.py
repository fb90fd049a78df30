"""The schema of an engine's `config.json`; `folder` reads it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from inflight.checkpoint.shapes import Base, Epsilon, Heads, Layers, Positions, Width, Words, check_heads
from inflight.schemas import Schema

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, le=1 << 31)]


class BuiltBy(Schema):
    """What every engine says, also one of another version, whose other fields may be others."""

    version: Annotated[str, Field(min_length=1, max_length=100)]
    tier: Literal["cpu", "cuda"] = "cpu"


class Source(Schema):
    """The checkpoint that the engine was built from."""

    name: Annotated[str, Field(max_length=255)]
    sha256: Sha256


class Quantization(Schema):
    quant_algo: Literal["W8A16", "W4A8", "W4A16"] | None
    kv_cache_quant_algo: Literal["INT8"] | None


class PretrainedConfig(Schema):
    """The model in the engine, under TensorRT-LLM's names."""

    model_config = ConfigDict(extra="allow")  # a lesson shows them all

    architecture: Annotated[str, Field(max_length=100)]
    checkpoint: Source
    num_parameters: Annotated[int, Field(ge=1, lt=1 << 50)]
    dtype: Literal["float32", "bfloat16", "float16"]
    num_hidden_layers: Layers
    num_attention_heads: Heads
    num_key_value_heads: Heads
    head_size: Width
    hidden_size: Width
    intermediate_size: Width
    vocab_size: Words
    max_position_embeddings: Positions
    quantization: Quantization

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.num_attention_heads, self.num_key_value_heads, self.hidden_size, self.head_size)
        return self


class TorchConfig(Schema):
    """What an engine for PyTorch says of its model besides, under TensorRT-LLM's names."""

    architecture: Literal["LlamaForCausalLM", "GPTForCausalLM"]
    norm_epsilon: Epsilon
    rotary_base: Base | None = None
    share_embedding_table: bool
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None  # of random weights

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.architecture == "LlamaForCausalLM" and self.rotary_base is None:
            raise ValueError("a Llama has no rotary_base")
        return self


class BuildOptions(Schema):
    """The fields of `BuildConfig`, which looks at what this engine has and at how they fit together."""

    max_batch_size: Count
    max_input_len: Count
    max_seq_len: Count
    max_num_tokens: Count
    max_beam_width: Count
    kv_cache_type: str
    tokens_per_block: Count
    remove_input_padding: bool
    dtype: str
    quant_algo: str | None
    kv_cache_quant_algo: str | None


class EngineConfig(BuiltBy):
    """The whole file."""

    device: Literal["cpu", "cuda"] = "cpu"
    pretrained_config: PretrainedConfig
    build_config: BuildOptions
