"""Turns text into token ids and back, by the tokenizer that an engine folder carries.

    tokenizer = load(engine_dir)
    ids = tokenizer.encode("Hello")
    text = tokenizer.decode(ids)

A checkpoint in GGUF keeps its vocabulary and merges as metadata; `from_gguf` turns them into the `tokenizer.json` that
Hugging Face's AutoTokenizer opens.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from inflight import cache
from inflight.checkpoint.chat_template import ChatTemplate
from inflight.checkpoint.sources import TOKENIZER_FILES, Checkpoint
from inflight.errors import CourseError

# token_type values of the GGUF format: control tokens (<|im_start|>) and tokens a user added.
GGUF_CONTROL, GGUF_USER_DEFINED = 3, 4
GGUF_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
MOST_IDS = 1 << 32  # the tokenizers library counts with 32 bits
AGAIN = "Build the engine again: `inflight build`."

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
        f"The checkpoint's tokenizer splits text by the rule {rule!r}, which the course does not know: "
        "it knows gpt-2, smollm and llama-bpe. Use another checkpoint or, on a GPU, this one's Hugging Face folder, "
        "whose tokenizer is kept."
    )


def from_gguf(metadata: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Make the byte-pair tokenizer that a GGUF file's metadata describes.

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
        The tokenizer is not byte-pair, its splitting rule is unknown, or its parts do not fit together.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise CourseError(
            f"The checkpoint's tokenizer is of the kind {kind!r}; the course reads byte-pair ones ('gpt2') from GGUF. "
            "Use another checkpoint or, on a GPU, this one's Hugging Face folder, whose tokenizer is kept."
        )
    with _library_errors("The checkpoint's tokenizer cannot be made", "Download or convert it again."):
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        rule = metadata.get("tokenizer.ggml.pre", "default")
        pre_tokenizer = _pre_tokenizer(rule)
        vocabulary = {token: index for index, token in enumerate(tokens)}
        merges = [(left, right) for left, right in (merge.split(" ") for merge in metadata["tokenizer.ggml.merges"])]
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule == "llama-bpe"))
        tokenizer.pre_tokenizer = pre_tokenizer
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens(
            [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == GGUF_CONTROL]
        )
        tokenizer.add_tokens(
            [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == GGUF_USER_DEFINED]
        )
        ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in GGUF_SPECIAL.items()}
        special = {name: tokens[index] for name, index in ids.items() if index is not None}
        if "bos_token" in special and metadata.get("tokenizer.ggml.add_bos_token", rule == "llama-bpe"):
            bos = special["bos_token"]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, ids["bos_token"])]
            )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    return tokenizer, config


def write_files(checkpoint: Checkpoint, metadata: dict[str, Any], folder: Path) -> None:
    """Put the tokenizer of a checkpoint into an engine's folder: a Hugging Face folder's, or that of a GGUF's metadata.

    Raises
    ------
    CourseError
        There is none that can be used: an engine that no text can reach is of no use.
    """
    if checkpoint.format == "hf":
        for name in TOKENIZER_FILES:
            if (checkpoint.path / name).exists():
                shutil.copyfile(checkpoint.path / name, folder / name)
    else:
        text, settings = from_gguf(metadata)
        (folder / "tokenizer.json").write_text(text.to_str(pretty=True), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    load_tokenizer(folder)


@contextmanager
def _library_errors(what: str, fix: str, folder: Path | None = None) -> Iterator[None]:
    """Turn the bare exceptions of the tokenizers library into a CourseError; `folder` is what was read."""
    try:
        yield
    except CourseError:
        raise
    except Exception as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).strip().partition("\n")[0]
        fix = cache.way_on(folder, fix) if folder else fix
        raise CourseError(f"{what} ({reason or type(error).__name__}). {fix}") from error


class ChatTokenizer:
    """A tokenizer with the chat template of its model.

    Attributes
    ----------
    has_template : bool
    end_id, pad_id : int
        Token that ends an answer, and the one that fills unused places.
    vocab_size : int
    longest_token : int
        Characters of the longest token: no text has fewer tokens than its characters divided by this.
    """

    def __init__(self, tokenizer: Tokenizer, config: dict[str, Any]):
        tokenizer.no_padding()  # of which a file may ask for
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.longest_token = max(map(len, tokenizer.get_vocab()), default=1)
        control = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        longest_first = sorted(filter(None, control), key=len, reverse=True)
        self._control_tokens = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        special, template = _special_tokens(config), _template(config)
        self.end_id = tokenizer.token_to_id(special.get("eos_token", ""))
        self.pad_id = tokenizer.token_to_id(special.get("pad_token", special.get("eos_token", "")))
        self.has_template = bool(template)
        self._template = ChatTemplate(template, special) if template else None

    def chat(self, said: str | list[dict[str, str]]) -> str:
        """Return a chat as the model reads it, up to the opening of the assistant's next turn.

        Parameters
        ----------
        said : str or list of dict
            One user turn, which is unchanged if there is no template; or messages, each with `role` and `content`.

        Raises
        ------
        CourseError
            The template has a fault.
        """
        if self._template is None:
            if isinstance(said, str):
                return said
            raise CourseError("This model has no chat template: give one text.")
        return self._template.render(_messages(said))

    def encode_chat(self, said: str | list[dict[str, str]], add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `chat(said)`, with control tokens where the template writes them and nowhere else.

        What reads like one in a message, such as <|im_end|>, becomes tokens of those characters. Without a template the
        text is as its author wrote it, and its control tokens are control tokens. A template writes its own special
        tokens, so none is added to what it gives. Parameters and errors as `chat`.
        """
        control_tokens = self._control_tokens
        add_special_tokens = add_special_tokens and self._template is None
        if self._template is None or control_tokens is None:
            return self.encode(self.chat(said), add_special_tokens)
        written: dict[str, str] = {}  # what stands for such a text while the template is rendered -> the text

        def stand_in(found: re.Match[str]) -> str:
            mark = secrets.token_hex(16)
            written[mark] = found[0]
            return mark

        marked = _with_texts(_messages(said), lambda text: control_tokens.sub(stand_in, text))
        if not written:
            return self.encode(self.chat(said), add_special_tokens)
        # A tokenizer of the same vocabulary that reads control tokens as text.
        plain = Tokenizer(self._tokenizer.model)
        plain.normalizer, plain.pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        marks = re.compile("|".join(written))
        encodings = []
        for piece in control_tokens.split(self._template.render(marked)):
            text = marks.sub(lambda found: written[found[0]], piece)
            tokenizer = plain if text != piece else self._tokenizer
            encodings.append(tokenizer.encode(text, add_special_tokens=False))
        return self._tokenizer.post_process(Encoding.merge(encodings), add_special_tokens=add_special_tokens).ids

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        with _library_errors("The text cannot be cut into tokens", AGAIN):
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are not whole characters come out as U+FFFD.

        An id behind the last token stands for no text: the vocabulary of many a model is larger than its tokenizer's.

        Raises
        ------
        CourseError
            An id is negative, or larger than any vocabulary.
        """
        ids = list(ids)
        try:
            return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            wrong = next(number for number in ids if not 0 <= number < MOST_IDS)
            raise CourseError(
                f"{wrong} is not the id of a token: give ids of at least 0, and less than the vocabulary's "
                f"{self.vocab_size}."
            ) from None

    def decode_increment(
        self, preceding_ids: Sequence[int], ids: Sequence[int], is_final: bool, skip_special_tokens: bool = True
    ) -> str:
        """Return the text that `ids` add after `preceding_ids`, in whole characters.

        A character whose bytes are spread over several tokens is held back until its last byte is there, or until
        the end. Joining the increments of a stream gives the same text as decoding all of it at once.
        """
        before = self.decode(preceding_ids, skip_special_tokens)
        after = self.decode([*preceding_ids, *ids], skip_special_tokens)
        already_sent = len(_whole_characters(before))
        return (after if is_final else _whole_characters(after))[already_sent:]


def _messages(said: str | list[dict[str, str]]) -> list[dict[str, str]]:
    return [{"role": "user", "content": said}] if isinstance(said, str) else said


def _with_texts(value: Any, changed: Callable[[str], str]) -> Any:
    """Return a JSON value with each text in it replaced by `changed(text)`."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, list):
        return [_with_texts(item, changed) for item in value]
    if isinstance(value, dict):
        return {name: _with_texts(item, changed) for name, item in value.items()}
    return value


def _whole_characters(text: str) -> str:
    """Cut a U+FFFD off the end of `text`: it may stand for a character whose bytes are not all there yet.

    One at most, for the decoder puts a single U+FFFD for the beginning of a character, however many bytes it has.
    """
    return text.removesuffix("\ufffd")


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Text of each special token of a `tokenizer_config.json` by its name, such as `eos_token`."""
    given = {name: token for name, token in config.items() if name.endswith("_token") and token}
    return {
        name: token["content"] if isinstance(token, dict) else token
        for name, token in given.items()
        if isinstance(token, (str, dict))
    }


def _template(config: dict[str, Any]) -> str | None:
    """The chat template of a `tokenizer_config.json`; of several, the one that is named "default"."""
    template = config.get("chat_template")
    if isinstance(template, list):
        return {each["name"]: each["template"] for each in template}.get("default")
    return template


def load_tokenizer(folder: str | Path) -> ChatTokenizer:
    """Open `tokenizer.json` and `tokenizer_config.json` of an engine or Hugging Face folder.

    As in Hugging Face's libraries, a template in a file of its own comes before one in the config.

    Raises
    ------
    CourseError
        A file is missing, cannot be read, or is not one that a tokenizer can have.
    """
    folder = Path(folder)
    config_file, template_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    if not (folder / "tokenizer.json").exists():
        raise CourseError(f"{folder} has no tokenizer.json. {cache.way_on(folder, AGAIN)}")
    with _library_errors(f"The tokenizer in {folder} cannot be read", AGAIN, folder):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
        if template_file.exists():
            config["chat_template"] = template_file.read_text(encoding="utf-8")
        return ChatTokenizer(tokenizer, config)
