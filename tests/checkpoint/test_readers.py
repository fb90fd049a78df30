"""Files that claim what they do not hold: each is refused in a sentence, before its claim costs memory or time."""

import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from inflight import files
from inflight.checkpoint import fetch
from inflight.checkpoint.gguf_index import read_index
from inflight.checkpoint.tokenizer_files import TokenizerConfig
from inflight.errors import CourseError
from inflight.paths import COURSE

ONE = 1 << 60


def said(reader, sources, folders) -> dict[str, str]:
    """What a reader says of each folder, in a process that may take little memory beyond what the intact files take."""
    script = (
        "import sys; from pathlib import Path; from tests.checkpoint.fuzz_readers import sentences;"
        "sentences(sys.argv[1], Path(sys.argv[2]), [Path(folder) for folder in sys.argv[3:]])"
    )
    command = [sys.executable, "-c", script, reader, str(sources / reader), *map(str, folders)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=COURSE, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


def check_all(reader, sources, folders, wanted: dict[str, str]) -> None:
    """Every sentence holds its wanted words and the name of the file's folder."""
    found = said(reader, sources, folders)
    assert found.keys() == wanted.keys()
    wrong = {name: found[name] for name, words in wanted.items() if words not in found[name]}
    assert not wrong


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
ALIGNMENT = text(b"general.alignment") + struct.pack("<I", UINT32)
CLAIMS = {
    "array": (gguf_file([text(b"k") + struct.pack("<IIQ", ARRAY, UINT8, ONE)]), "claim more than"),
    "array of texts": (gguf_file([text(b"k") + struct.pack("<IIQ", ARRAY, STRING, ONE)]), "claim more than"),
    "many items": (gguf_file([text(b"k") + struct.pack("<IIQ", ARRAY, UINT8, 10**6)]), "beyond the end"),
    "nested arrays": (gguf_file([text(b"k") + struct.pack("<IIQ", ARRAY, ARRAY, 5) * 200]), "array of arrays"),
    "text": (gguf_file([text(b"k") + struct.pack("<IQ", STRING, 1 << 40)]), "claims 1,099,511,627,776 bytes"),
    "text that ends behind the file": (gguf_file([text(b"k") + struct.pack("<IQ", STRING, 5000)]), "beyond the end"),
    "key": (gguf_file([struct.pack("<Q", 2**64 - 1)]), "claims 18,446,744,073,709,551,615 bytes"),
    "key that is no text": (gguf_file([text(b"\xff") + struct.pack("<IB", UINT8, 0)]), "not UTF-8"),
    "a key twice": (gguf_file([text(b"k") + struct.pack("<IB", UINT8, 0)] * 2), "there twice"),
    "unknown type": (gguf_file([text(b"k") + struct.pack("<I", 99)]), "unknown type 99"),
    "number of tensors": (gguf_file(counts=(ONE, 0)), "1,152,921,504,606,846,976 tensors"),
    "number of keys": (gguf_file(counts=(0, 2**64 - 1)), "18,446,744,073,709,551,615 keys"),
    "no alignment": (gguf_file([ALIGNMENT + struct.pack("<I", 0)]), "alignment is 0"),
    "huge alignment": (gguf_file([ALIGNMENT + struct.pack("<I", 1 << 31)]), "alignment is 2147483648"),
    "odd alignment": (gguf_file([ALIGNMENT + struct.pack("<I", 48)]), "alignment is 48"),
    "alignment in words": (
        gguf_file([text(b"general.alignment") + struct.pack("<I", 8) + text(b"a")]),
        "alignment is a",
    ),
    "version": (gguf_file(version=77), "version 77"),
    "other machines": (gguf_file(version=3 << 24), "big-endian"),
    "no letters": (b"GGML" + gguf_file()[4:], "not a GGUF file"),
    "nothing": (b"", "not a GGUF file"),
    "shape that wraps to nothing": (gguf_file(tensors=[tensor(shape=(1 << 32, 1 << 32))]), "beyond the end"),
    "tensor behind the file": (gguf_file(tensors=[tensor(offset=1 << 20)]), "beyond the end"),
    "offset that wraps": (gguf_file(tensors=[tensor(offset=2**64 - 32)]), "beyond the end"),
    "offset between": (gguf_file(tensors=[tensor(offset=7)]), "does not begin at a multiple"),
    "no values": (gguf_file(tensors=[tensor(shape=(0,))]), "cannot have"),
    "dimensions": (gguf_file(tensors=[tensor(shape=(1,) * 99)]), "99 dimensions"),
    "unknown format": (gguf_file(tensors=[tensor(kind=4000)]), "unknown format 4000"),
    "half a group": (gguf_file(tensors=[tensor(shape=(33,), kind=8)]), "cannot have"),
    "one over another": (gguf_file(tensors=[tensor(b"a"), tensor(b"b")]), "lies over another"),
    "one name": (gguf_file(tensors=[tensor(b"a"), tensor(b"a", offset=32)]), "have one name"),
}


def test_what_a_gguf_claims_costs_nothing(sources, tmp_path):
    for name, (content, _) in CLAIMS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").write_bytes(content)
    wanted = {name: words for name, (_, words) in CLAIMS.items()}
    check_all("gguf", sources, [tmp_path / name for name in CLAIMS], wanted)


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


def with_json(name, **changes):
    """A change of a folder: values of a JSON file replaced."""

    def change(folder):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))

    return change


def with_text(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def with_header(header: bytes, length=None):
    size = len(header) if length is None else length
    return with_text("model.safetensors", struct.pack("<Q", size) + header + b"\0" * 64)


def entry(**values) -> dict:
    return {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **values}}


INDEX = "model.safetensors.index.json"
CHANGES = {
    "layers": (with_json("config.json", num_hidden_layers=10**9), "num_hidden_layers should be less than"),
    "words": (with_json("config.json", vocab_size=10**12), "vocab_size should be less than"),
    "more words than weights": (with_json("config.json", vocab_size=4_000_000), "parameters, and the weights"),
    "no heads": (with_json("config.json", num_attention_heads=0), "num_attention_heads should be greater than"),
    "odd heads": (with_json("config.json", num_attention_heads=7), "cannot be divided among 7"),
    "kv heads": (with_json("config.json", num_key_value_heads=3), "cannot share 3 KV heads"),
    "not a number": (with_json("config.json", rms_norm_eps=float("nan")), "rms_norm_eps should be a finite number"),
    "a number in words": (with_json("config.json", hidden_size="64"), "hidden_size should be a valid integer"),
    "lists": (with_json("config.json", hidden_size=[[[64]]]), "hidden_size should be a valid integer"),
    "null": (with_json("config.json", hidden_size=None), "hidden_size should be a valid integer"),
    "labels": (with_json("config.json", num_labels=10**9), "num_labels should be less than"),
    "another size": (with_json("config.json", intermediate_size=128), "has the shape (96, 64) instead of (128, 64)"),
    "another layer": (with_json("config.json", num_hidden_layers=2), "has no tensor blk.1.attn_norm.weight"),
    "config is a list": (with_text("config.json", b"[]"), "should be an object"),
    "config is deep": (with_text("config.json", b"[" * 10**5), "recursion limit"),
    "config is long": (with_text("config.json", b" " * (2 << 20)), "2,097,152 bytes"),
    "index is no JSON": (with_text(INDEX, b"weights"), "is not JSON"),
    "index has no map": (with_text(INDEX, b"{}"), "has no field weight_map"),
    "index is a list": (with_json(INDEX, weight_map=["model.safetensors"]), "weight_map should be"),
    "index points up": (with_json(INDEX, weight_map={"w": "../../etc/passwd"}), "names '../../etc/passwd'"),
    "index points away": (with_json(INDEX, weight_map={"w": "/etc/passwd"}), "names '/etc/passwd'"),
    "index points to a config": (with_json(INDEX, weight_map={"w": "config.json"}), "names 'config.json'"),
    "header": (with_header(b"{}", 1 << 63), "its header claims 9,223,372,036,854,775,808 bytes"),
    "header behind the file": (with_header(b"{}", 100_000), "its header claims 100,000 bytes"),
    "header is no JSON": (with_header(b"weights"), "corrupt or cut short"),
    "header is deep": (with_header(b"[" * 10**5), "corrupt or cut short"),
    "overlap": (with_header(json.dumps(entry() | {"v": entry()["w"]}).encode()), "corrupt or cut short"),
    "wrapping shape": (with_header(json.dumps(entry(shape=[2**32, 2**32])).encode()), "corrupt or cut short"),
    "offsets behind": (with_header(json.dumps(entry(data_offsets=[0, 2**62])).encode()), "corrupt or cut short"),
    "backwards": (with_header(json.dumps(entry(data_offsets=[16, 0])).encode()), "corrupt or cut short"),
    "negative": (with_header(json.dumps(entry(data_offsets=[-16, 0])).encode()), "corrupt or cut short"),
}


def test_what_a_hugging_face_folder_claims_costs_nothing(sources, tmp_path):
    for name, (change, _) in CHANGES.items():
        change(shutil.copytree(sources / "huggingface", tmp_path / name))
    wanted = {name: words for name, (_, words) in CHANGES.items()}
    check_all("huggingface", sources, [tmp_path / name for name in CHANGES], wanted)


def test_a_link_out_of_a_folder_is_refused_but_for_the_hubs_own(sources, tmp_path):
    folder = shutil.copytree(sources / "huggingface", tmp_path / "linked")
    elsewhere = tmp_path / "elsewhere.safetensors"
    (folder / "model.safetensors").rename(elsewhere)
    (folder / "model.safetensors").symlink_to(elsewhere)
    with pytest.raises(CourseError, match="model.safetensors is a link to .*elsewhere.safetensors, out of its folder"):
        fetch(folder)
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "0123"
    blobs = snapshot.parents[1] / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in (sources / "huggingface").iterdir():
        shutil.copyfile(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert fetch(snapshot).format == "hf"


# Tokenizers -----------------------------------------------------------------------------------------------------------

DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def with_tokens(**changes):
    """A change of the first added token of a tokenizer."""

    def change(folder):
        content = json.loads((folder / "tokenizer.json").read_text())
        content["added_tokens"][0] |= changes
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return change


TOKENIZERS = {
    "deep": (with_text("tokenizer.json", b"[" * 10**5), "recursion limit"),
    "a list": (with_text("tokenizer.json", b"[]"), "should be an object"),
    "long": (lambda folder: os.truncate(folder / "tokenizer.json", 1 << 30), "1,073,741,824 bytes"),
    "many values": (with_text("tokenizer.json", b"[" + b"0," * 5_000_000 + b"0]"), "more than 4,000,000 values"),
    "negative id": (with_tokens(id=-1), "added_tokens.0.id should be greater than or equal to 0"),
    "huge id": (with_tokens(id=2**32), "added_tokens.0.id should be less than"),
    "growth": (with_json("tokenizer.json", normalizer={"type": "Sequence", "normalizers": [DOUBLED] * 50}), "times as"),
    "end token": (with_json("tokenizer_config.json", eos_token=5), "eos_token"),
    "templates": (with_json("tokenizer_config.json", chat_template=[{"name": "a", "template": ""}]), "none is named"),
    "template": (with_json("tokenizer_config.json", chat_template={"a": 1}), "chat_template"),
    "long template": (with_json("tokenizer_config.json", chat_template="a" * (1 << 19)), "524,288 characters"),
}


def test_what_a_tokenizer_claims_costs_nothing(sources, tmp_path):
    for name, (change, _) in TOKENIZERS.items():
        change(shutil.copytree(sources / "tokenizer", tmp_path / name))
    wanted = {name: words for name, (_, words) in TOKENIZERS.items()}
    check_all("tokenizer", sources, [tmp_path / name for name in TOKENIZERS], wanted)


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


def test_what_is_no_plain_file_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, words in (
        (tmp_path / "pipe", "no plain file"),
        ("/dev/zero", "no plain file"),
        (tmp_path, "cannot be read .Is a directory"),
        (tmp_path / "loop", "cannot be read .Too many levels"),
        (tmp_path / "none", "cannot be read .No such file"),
        (tmp_path / "nu\0ll", "cannot be read .embedded null"),
    ):
        with pytest.raises(CourseError, match=f"{words}.* Give another"):
            files.read_bytes(path, "thing", 100, "Give another.")
