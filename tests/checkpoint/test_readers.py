"""Files that are cut short are refused in a sentence; special tokens are read in every form."""

import struct

import pytest

from inflight.checkpoint.gguf_index import read_index
from inflight.checkpoint.tokenizer_files import TokenizerConfig
from inflight.errors import CourseError

# GGUF -----------------------------------------------------------------------------------------------------------------


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def gguf_file(keys: list[bytes] = [], tensors: list[bytes] = [], version=3, counts=None) -> bytes:  # noqa: B006
    num_tensors, num_keys = counts or (len(tensors), len(keys))
    begin = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys) + b"".join(keys + tensors)
    return begin.ljust(4096, b"\0")


def tensor(name=b"w", shape=(8,), kind=0, offset=0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9


def test_a_gguf_cut_short_anywhere_is_refused(tmp_path):
    keys = [text(b"general.architecture") + struct.pack("<I", STRING) + text(b"llama")]
    keys += [text(b"k") + struct.pack("<IIQ", ARRAY, STRING, 2) + text(b"a") + text(b"b")]
    whole = gguf_file(keys, [tensor(shape=(8, 4))]).rstrip(b"\0")
    whole = whole.ljust(-(-len(whole) // 32) * 32 + 8 * 4 * 4, b"\0")
    path = tmp_path / "model.gguf"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CourseError, match=r"corrupt or cut short|not a GGUF file"):
            read_index(path)
    path.write_bytes(whole)
    assert read_index(path).metadata == {"general.architecture": "llama", "k": ["a", "b"]}


# Hugging Face folders -------------------------------------------------------------------------------------------------


# Tokenizers -----------------------------------------------------------------------------------------------------------


def test_special_tokens_and_templates_in_every_form():
    config = TokenizerConfig.model_validate(
        {
            "add_bos_token": True,
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "unk_token": None,
            "chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}],
        }
    )
    assert config.special_tokens() == {"bos_token": "<s>", "eos_token": "</s>"}
    assert config.template() == "d"


# Files ----------------------------------------------------------------------------------------------------------------
