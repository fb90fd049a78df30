"""The files of a tokenizer, read by a schema and within bounds: `tokenizer.json`, its config and its chat template."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from inflight import files, schemas
from inflight.checkpoint.shapes import TokenId
from inflight.errors import CourseError
from inflight.schemas import Schema

MOST_TOKENIZER_BYTES = 1 << 26  # the largest vocabularies make some 35 MB
MOST_TEMPLATE_BYTES = 1 << 18
# How many times longer a text may become before it is cut into tokens. A chain of replacements of one character by two
# doubles it with each.
MOST_GROWTH = 64

AGAIN = "Build the engine again: `inflight build`."


class Token(Schema):
    id: TokenId
    content: str
    special: bool


class Model(Schema):
    """The part of a `tokenizer.json` that holds the vocabulary: token to id, or, of a Unigram, [token, score] by id."""

    vocab: dict[str, TokenId] | Annotated[list[tuple[str, float]], Field(max_length=1 << 22)]
    merges: list[str | tuple[str, str]] | None = None

    def ids(self) -> dict[str, int]:
        if isinstance(self.vocab, dict):
            return self.vocab
        return {token: index for index, (token, _) in enumerate(self.vocab)}


class Vocabulary(Schema):
    """What is read of a `tokenizer.json` here; the tokenizers library reads the rest."""

    model: Model
    added_tokens: list[Token] = Field(default_factory=list)
    normalizer: dict[str, Any] | None = None
    decoder: dict[str, Any] | None = None


class Content(Schema):
    content: str


class NamedTemplate(Schema):
    name: str
    template: str


SpecialToken = str | Content | None


class TokenizerConfig(Schema):
    """What is read of a `tokenizer_config.json`."""

    bos_token: SpecialToken = None
    eos_token: SpecialToken = None
    unk_token: SpecialToken = None
    sep_token: SpecialToken = None
    pad_token: SpecialToken = None
    cls_token: SpecialToken = None
    mask_token: SpecialToken = None
    chat_template: str | list[NamedTemplate] | None = None

    def special_tokens(self) -> dict[str, str]:
        """Text of each special token by its name, such as `eos_token`."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name.endswith("_token")}
        texts = {name: token.content if isinstance(token, Content) else token for name, token in given.items()}
        return {name: text for name, text in texts.items() if text}

    def template(self) -> str | None:
        """The chat template; of several, the one that is named "default".

        Raises
        ------
        CourseError
            There are several, and none has that name.
        """
        if not isinstance(self.chat_template, list):
            return self.chat_template or None
        by_name = {each.name: each.template for each in self.chat_template}
        if by_name and "default" not in by_name:
            raise CourseError(
                f"The tokenizer has the chat templates {', '.join(by_name)[:200]}, and none is named 'default': give "
                "that name to the one to use, in tokenizer_config.json."
            )
        return by_name.get("default")


def read_vocabulary(folder: Path) -> bytes:
    """The text of a folder's `tokenizer.json`, once it is known to be one that can be used.

    Raises
    ------
    CourseError
        It is not there, does not fit, or makes a text much longer than it is.
    """
    called = f"The tokenizer {folder / 'tokenizer.json'}"
    content = files.read_bytes(folder / "tokenizer.json", "tokenizer", MOST_TOKENIZER_BYTES, AGAIN)
    found = schemas.parse(Vocabulary, content, called, AGAIN)
    for part in (found.normalizer, found.decoder):
        growth = math.prod(_growths(part))
        if growth > MOST_GROWTH:
            raise CourseError(
                f"{called} makes a text up to {growth:.3g} times as long by its replacements, and {MOST_GROWTH} is "
                f"the most that is taken. {AGAIN}"
            )
    return content


def _growths(part: Any) -> Iterator[float]:
    """How many times longer each replacement in a normalizer or decoder can make a text."""
    if isinstance(part, list):
        for each in part:
            yield from _growths(each)
    elif isinstance(part, dict):
        if part.get("type") == "Replace" and isinstance(part.get("content"), str):
            pattern = part.get("pattern")
            replaced = pattern.get("String") if isinstance(pattern, dict) else None
            yield max(1.0, len(part["content"]) / (len(replaced) if isinstance(replaced, str) and replaced else 1))
        for each in part.values():
            yield from _growths(each)


def read_config(folder: Path) -> TokenizerConfig:
    """A folder's `tokenizer_config.json`, empty where there is none, with the template of `chat_template.jinja`.

    As in Hugging Face's libraries, a template in a file of its own comes before one in the config.

    Raises
    ------
    CourseError
        A file cannot be read or does not fit.
    """
    config_file, template_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config = TokenizerConfig()
    if config_file.exists():
        config = schemas.read(TokenizerConfig, config_file, "tokenizer's config", AGAIN, 4 * schemas.MOST_BYTES)
    if template_file.exists():
        template = files.read_text(template_file, "chat template", MOST_TEMPLATE_BYTES, AGAIN)
        config = config.model_copy(update={"chat_template": template})
    return config


class GgufTokenizer(Schema):
    """A byte-pair tokenizer by the keys of its GGUF metadata without the prefix `tokenizer.ggml.`."""

    tokens: Annotated[list[str], Field(min_length=1)]
    token_type: list[int]
    merges: list[str]
    pre: str = "default"
    bos_token_id: TokenId | None = None
    eos_token_id: TokenId | None = None
    unknown_token_id: TokenId | None = None
    padding_token_id: TokenId | None = None
    chat_template: str | None = Field(None, alias="tokenizer.chat_template", max_length=MOST_TEMPLATE_BYTES)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.token_type) != len(self.tokens):
            raise ValueError(f"there are {len(self.tokens)} tokens and {len(self.token_type)} types of them")
        for name, index in self.special_ids().items():
            if index >= len(self.tokens):
                raise ValueError(f"the {name} is number {index} of {len(self.tokens)} tokens")
        if wrong := next((merge for merge in self.merges if merge.count(" ") != 1), None):
            raise ValueError(f"the merge {wrong[:40]!r} is not two tokens with a space between them")
        return self

    def special_ids(self) -> dict[str, int]:
        """Id of each special token by the name that Hugging Face's libraries have for it."""
        ids = {
            "bos_token": self.bos_token_id,
            "eos_token": self.eos_token_id,
            "unk_token": self.unknown_token_id,
            "pad_token": self.padding_token_id,
        }
        return {name: index for name, index in ids.items() if index is not None}
