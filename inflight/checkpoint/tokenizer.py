"""Text to token ids and back, from the tokenizer that an engine folder carries.

    tokenizer = load(engine_dir)
    ids = tokenizer.encode("Hello")
    text = tokenizer.decode(ids)

A checkpoint in GGUF keeps its vocabulary and merges as metadata; `from_gguf` turns them into the `tokenizer.json` that
Hugging Face's AutoTokenizer opens.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jinja2.sandbox
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from inflight import manifest
from inflight.errors import CourseError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# token_type values of the GGUF format: control tokens (<|im_start|>) and tokens a user added.
GGUF_CONTROL, GGUF_USER_DEFINED = 3, 4

# How text is cut before byte-pair merging, by the name that GGUF gives the rule.
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _pre_tokenizer(rule: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rule in ("gpt-2", "default"):
        return byte_level
    if rule == "smollm":  # every digit is a token of its own
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if rule == "llama-bpe":
        split = pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise CourseError(
        f"The checkpoint cuts text by the rule {rule!r}, which the course does not know: it knows gpt-2, smollm and "
        "llama-bpe. Use a Hugging Face folder of the same model instead: its tokenizer.json is taken as it is."
    )


def from_gguf(metadata: dict) -> tuple[Tokenizer, dict]:
    """The byte-pair tokenizer described by a GGUF file's metadata.

    Parameters
    ----------
    metadata : dict
        GGUF key to value, arrays as lists (`tokenizer.ggml.tokens`, `tokenizer.ggml.merges`, ...).

    Returns
    -------
    Tokenizer, dict
        The tokenizer, and the content of `tokenizer_config.json` (special tokens and chat template).

    Raises
    ------
    CourseError
        The tokenizer is not byte-pair, or its splitting rule is unknown.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise CourseError(
            f"The checkpoint's tokenizer is of the kind {kind!r}; the course reads byte-pair ones ('gpt2') from GGUF. "
            "Use a Hugging Face folder of the same model instead: its tokenizer.json is taken as it is."
        )
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=False))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == GGUF_CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == GGUF_USER_DEFINED]
    )
    special = {
        name: tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (
            ("bos_token", "bos"),
            ("eos_token", "eos"),
            ("unk_token", "unknown"),
            ("pad_token", "padding"),
        )
        if f"tokenizer.ggml.{key}_token_id" in metadata
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return tokenizer, config


class ChatTokenizer:
    """A tokenizer with the chat template of its model.

    Attributes
    ----------
    end_id, pad_id : int
        Token that ends an answer, and the one that fills unused places.
    vocab_size : int
    """

    def __init__(self, tokenizer: Tokenizer, config: dict):
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self._special = {
            key: value if isinstance(value, str) else value["content"]
            for key, value in config.items()
            if key.endswith("_token") and value
        }
        self.end_id = tokenizer.token_to_id(self._special.get("eos_token", ""))
        self.pad_id = tokenizer.token_to_id(self._special.get("pad_token", self._special.get("eos_token", "")))
        template = config.get("chat_template")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template) if template else None

    def chat(self, text: str) -> str:
        """`text` as one user turn, followed by the opening of the assistant's. Unchanged if there is no template."""
        if self._template is None:
            return text
        messages = [{"role": "user", "content": text}]
        return self._template.render(messages=messages, add_generation_prompt=True, **self._special)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are not whole characters come out as U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decode_increment(self, preceding_ids, ids, is_final: bool, skip_special_tokens: bool = True) -> str:
        """The text that `ids` add after `preceding_ids`, in whole characters.

        A character whose bytes are spread over several tokens is held back until its last byte is there, or until
        the end. Joining the increments of a stream gives the same text as decoding all of it at once.
        """
        before = self.decode(preceding_ids, skip_special_tokens)
        after = self.decode([*preceding_ids, *ids], skip_special_tokens)
        already_sent = len(_whole_characters(before))
        return (after if is_final else _whole_characters(after))[already_sent:]


def _whole_characters(text: str) -> str:
    """`text` without a U+FFFD at its end: it may stand for a character whose bytes are not all there yet.

    One at most, for the decoder puts a single U+FFFD for the beginning of a character, however many bytes it has.
    """
    return text.removesuffix("\ufffd")


def load_tokenizer(folder: str | Path) -> ChatTokenizer:
    """Open `tokenizer.json` and `tokenizer_config.json` of an engine or Hugging Face folder.

    Raises
    ------
    CourseError
        A file is missing or cannot be read, or is not as it was when the folder was made.
    """
    folder = Path(folder)
    _refuse_changed(folder)
    try:
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
    except FileNotFoundError:
        raise CourseError(f"{folder} has no tokenizer.json. Build the engine again: `inflight build`.") from None
    except Exception as error:  # the tokenizers library raises bare Exception for a file it cannot parse
        raise CourseError(f"The tokenizer in {folder} cannot be read ({error}). Build the engine again.") from error
    template_file = folder / "chat_template.jinja"
    if "chat_template" not in config and template_file.exists():
        config["chat_template"] = template_file.read_text(encoding="utf-8")
    return ChatTokenizer(tokenizer, config)


def _refuse_changed(folder: Path) -> None:
    """Raise CourseError when the tokenizer is not as the course made it; of what others made there is no note."""
    if not os.path.lexists(folder / manifest.MANIFEST):
        return
    if found := manifest.differences(folder, only=TOKENIZER_FILES):
        raise CourseError(
            f"The tokenizer in {folder} is damaged: {manifest.in_words(found)}. Make that folder again (an engine: "
            f"`inflight build --output-dir {folder}`). Or, if you changed it yourself, accept it: "
            f"`inflight accept {folder}`."
        )
