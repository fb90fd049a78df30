"""What a checkpoint says of its model's size: the schemas of its config, and the tensors that follow from them.

A size is believed when it is one that a model can have, fits to the others, and the weights are of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from inflight import schemas
from inflight.errors import CourseError
from inflight.schemas import Schema

Layers = Annotated[int, Field(ge=1, le=1000)]
Heads = Annotated[int, Field(ge=1, le=1024)]
Width = Annotated[int, Field(ge=1, le=1 << 20)]
Words = Annotated[int, Field(ge=1, le=1 << 22)]
Positions = Annotated[int, Field(ge=1, le=1 << 28)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 22)]
Base = Annotated[float, Field(gt=0, le=1e12)]
Epsilon = Annotated[float, Field(ge=0, le=1)]


def check_heads(heads: int, kv_heads: int, hidden: int, head_size: int | None) -> int:
    """The size of a head; ValueError when heads, KV heads and hidden size do not fit together."""
    if heads % kv_heads:
        raise ValueError(f"{heads} attention heads cannot share {kv_heads} KV heads evenly")
    if head_size is None and hidden % heads:
        raise ValueError(f"a hidden size of {hidden} cannot be divided among {heads} attention heads")
    size = head_size or hidden // heads
    if size % 2:
        raise ValueError(f"a head of {size} numbers cannot be rotated in pairs")
    return size


class GgufShape(Schema):
    """A model's size by the keys of its GGUF metadata, those of its architecture without their prefix."""

    architecture: str = Field(alias="general.architecture", max_length=100)
    layers: Layers = Field(alias="block_count")
    hidden: Width = Field(alias="embedding_length")
    feed_forward: Width = Field(alias="feed_forward_length")
    heads: Heads = Field(alias="attention.head_count")
    stated_kv_heads: Heads | None = Field(None, alias="attention.head_count_kv")
    stated_head_size: Width | None = Field(None, alias="attention.key_length")
    positions: Positions = Field(alias="context_length")
    stated_words: Words | None = Field(None, alias="vocab_size")
    rotated: Width | None = Field(None, alias="rope.dimension_count")
    rope_base: Base | None = Field(None, alias="rope.freq_base")
    epsilon: Epsilon | None = Field(None, alias="attention.layer_norm_rms_epsilon")
    tokens: list[str] = Field(alias="tokenizer.ggml.tokens", min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.heads, self.kv_heads, self.hidden, self.stated_head_size)
        if len(self.tokens) > self.words:
            raise ValueError(f"it has {len(self.tokens)} tokens and a vocabulary of {self.words}")
        return self

    @property
    def kv_heads(self) -> int:
        return self.stated_kv_heads or self.heads

    @property
    def head_size(self) -> int:
        return self.stated_head_size or self.hidden // self.heads

    @property
    def words(self) -> int:
        return self.stated_words or len(self.tokens)

    def sizes(self) -> dict[str, int]:
        """The sizes by their names in an engine's config.json."""
        return {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_size": self.head_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.feed_forward,
            "vocab_size": self.words,
            "max_position_embeddings": self.positions,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that a Llama of this size has."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        of_layer = {
            "attn_norm": (self.hidden,),
            "attn_q": (queries, self.hidden),
            "attn_k": (keys, self.hidden),
            "attn_v": (keys, self.hidden),
            "attn_output": (self.hidden, queries),
            "ffn_norm": (self.hidden,),
            "ffn_gate": (self.feed_forward, self.hidden),
            "ffn_up": (self.feed_forward, self.hidden),
            "ffn_down": (self.hidden, self.feed_forward),
        }
        return {
            "token_embd.weight": (self.words, self.hidden),
            "output_norm.weight": (self.hidden,),
            **{f"blk.{n}.{part}.weight": shape for n in range(self.layers) for part, shape in of_layer.items()},
        }


class RopeParameters(Schema):
    """How positions are rotated. Those of "llama3" make the slow ones of a model of shorter texts slower."""

    rope_theta: Base | None = None
    rope_type: Annotated[str, Field(max_length=100)] | None = None
    type: Annotated[str, Field(max_length=100)] | None = None  # the same in older files
    factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    low_freq_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    high_freq_factor: Annotated[float, Field(gt=0, le=1e6)] | None = None
    original_max_position_embeddings: Positions | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind == "llama3":
            _, low, high, _ = self.llama3()
            if high <= low:
                raise ValueError(f"rope_type 'llama3' has high_freq_factor {high} and low_freq_factor {low}")
        return self

    @property
    def kind(self) -> str:
        return self.rope_type or self.type or "default"

    def llama3(self) -> tuple[float, float, float, int]:
        """Factor, low and high factor of the frequencies, and positions; ValueError when one is missing."""
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        if missing := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"it has rope_type 'llama3' and no {missing[0]}")
        return tuple(getattr(self, name) for name in names)


class ModelConfig(Schema):
    """What every Hugging Face `config.json` may say of a model's size, under the names of Llama and of GPT-2.

    transformers makes a layer, a row, a label for each that a config claims, before it looks at the weights.
    """

    model_type: str | None = Field(None, max_length=100)
    num_hidden_layers: Layers | None = None
    n_layer: Layers | None = None
    num_attention_heads: Heads | None = None
    n_head: Heads | None = None
    num_key_value_heads: Heads | None = None
    head_dim: Width | None = None
    hidden_size: Width | None = None
    n_embd: Width | None = None
    intermediate_size: Width | None = None
    n_inner: Width | None = None
    max_position_embeddings: Positions | None = None
    n_positions: Positions | None = None
    n_ctx: Positions | None = None
    vocab_size: Words | None = None
    num_labels: Words | None = None
    type_vocab_size: Words | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for heads, hidden in ((self.num_attention_heads, self.hidden_size), (self.n_head, self.n_embd)):
            if heads and hidden and not self.head_dim and hidden % heads:
                raise ValueError(f"a hidden size of {hidden} cannot be divided among {heads} attention heads")
        return self

    def least_parameters(self) -> int:
        """Fewer parameters than any model of this size has."""
        hidden = self.hidden_size or self.n_embd or 1
        layers = self.num_hidden_layers or self.n_layer or 1
        wide = max(hidden, self.intermediate_size or self.n_inner or 1)
        learned_positions = self.n_positions or 0
        return hidden * ((self.vocab_size or 1) + layers * wide + learned_positions)


class LlamaConfig(ModelConfig):
    """The `config.json` of a Llama, from which an engine's weights are made."""

    num_hidden_layers: Layers
    num_attention_heads: Heads
    hidden_size: Width
    intermediate_size: Width
    max_position_embeddings: Positions
    vocab_size: Words
    rms_norm_eps: Epsilon
    rope_theta: Base | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None  # older files have the numbers here
    hidden_act: Annotated[str, Field(max_length=100)] | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    tie_word_embeddings: bool | None = False
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | Annotated[list[TokenId], Field(min_length=1, max_length=100)] | None = None

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        check_heads(self.num_attention_heads, self.kv_heads, self.hidden_size, self.head_dim)
        return self

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rope_base(self) -> float:
        parameters = self.rope_parameters or RopeParameters()
        return self.rope_theta or parameters.rope_theta or 10000.0

    @property
    def rotation(self) -> RopeParameters:
        return self.rope_scaling or self.rope_parameters or RopeParameters()

    @property
    def end_id(self) -> int:
        """The first of the tokens that end an answer."""
        ids = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return ids[0] or 0


class Gpt2Config(ModelConfig):
    """The `config.json` of a GPT-2."""

    n_layer: Layers
    n_head: Heads
    n_embd: Width
    n_positions: Positions
    vocab_size: Words
    layer_norm_epsilon: Epsilon = 1e-5
    activation_function: Annotated[str, Field(max_length=100)] = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False

    @property
    def feed_forward(self) -> int:
        return self.n_inner or 4 * self.n_embd


def read_llama(config_file: Path, fix: str) -> LlamaConfig:
    """The `config.json` of a Llama.

    Raises
    ------
    CourseError
        It is not one, or the model has something that no engine here computes; it would answer, and wrongly.
    """
    llama = schemas.read(LlamaConfig, config_file, "model's config", fix)
    refuse_unless(config_file, "hidden_act", llama.hidden_act or "silu", ("silu",))
    refuse_unless(config_file, "attention_bias", llama.attention_bias or False, (False,))
    refuse_unless(config_file, "mlp_bias", llama.mlp_bias or False, (False,))
    refuse_unless(config_file, "rope_type", llama.rotation.kind, ("default", "llama3"))
    return llama


def refuse_unless(config_file: Path, name: str, value: object, computed: tuple) -> None:
    """CourseError for an option of a model that has another value than those that are computed."""
    if value not in computed:
        raise CourseError(
            f"{config_file} has {name} = {value!r}, and the course computes {' or '.join(map(repr, computed))} only: "
            "use another checkpoint."
        )


def shape_problem(wanted: dict[str, tuple[int, ...]], found: Iterable[tuple[str, tuple[int, ...]]]) -> str | None:
    """The first of the `wanted` tensors that is not among those found, or has another shape; None: all are right."""
    shapes = dict(found)
    for name, shape in wanted.items():
        if name not in shapes:
            return f"it has no tensor {name}"
        if shapes[name] != shape:
            return f"its tensor {name} has the shape {shapes[name]} instead of {shape}"
    return None
