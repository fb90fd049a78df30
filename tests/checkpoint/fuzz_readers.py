"""The process of `test_readers_fuzz`: damages the real files of a reader, one way after another, and reads them.

python -m tests.checkpoint.fuzz_readers READER SOURCE SCRATCH SEED FIRST NUMBER

It may take `MOST_GROWTH` of memory beyond what it has after reading the undamaged files, and `MOST_CPU_S` of processor
time for one damaged file: a reader that wants more ends the process. Prints how many were accepted and refused. The
first outcome that is neither is printed with the number of its mutation, which alone makes the same file again.
"""

import copy
import json
import random
import resource
import shutil
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from inflight.errors import CourseError

MOST_GROWTH = 400 << 20  # bytes of address space
MOST_FOR_ATTACKS = 64 << 20
MOST_CPU_S = 5
MOST_SENTENCE = 2000  # characters

# What a number in a file may become. The large ones wrap or overflow where somebody multiplies them.
NUMBERS = [0, 1, -1, 2, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1, 10**9, 10**12]
STRANGE = [
    None,
    True,
    False,
    "",
    "a" * 5000,
    "../../etc/passwd",
    "/etc/passwd",
    "\0",
    "\ud800",
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    1e308,
    [],
    {},
    [[[[]]]],
    {"a": {"b": []}},
    *NUMBERS,
    10**30,
]


def damaged_bytes(data: bytes, chance: random.Random, head: int) -> bytes:
    """Bytes with a few of them changed, mostly in the first `head`, where a file says what it holds."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        place = (
            chance.randrange(min(head, len(out))) if out and chance.random() < 0.9 else chance.randrange(len(out) + 1)
        )
        match chance.randrange(7):
            case 0:
                out[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                out[place : place + 8] = struct.pack("<Q", chance.choice(NUMBERS) & (2**64 - 1))
            case 2:
                out[place : place + 4] = struct.pack("<I", chance.choice(NUMBERS) & (2**32 - 1))
            case 3:
                del out[place:]
            case 4:
                del out[place : place + chance.choice([1, 4, 8, 100])]
            case 5:
                out[place:place] = out[max(0, place - 50) : place]
            case 6:
                out[place:place] = chance.randbytes(chance.choice([1, 8, 1000]))
    return bytes(out)


def damaged_json(data: bytes, chance: random.Random) -> bytes:
    """JSON with a value replaced, removed, renamed or repeated; now and then no JSON any more."""
    if chance.random() < 0.15:
        return damaged_bytes(data, chance, len(data))
    if chance.random() < 0.03:
        return chance.choice(
            [b"[" * 100_000, b'{"a":' * 100_000, b"", b"null", b"[]", b"1" * 100_000, b'"a"', b"\xff\xfe"]
        )
    value = json.loads(data)
    for _ in range(chance.choice([1, 1, 2, 4])):
        _damage(value, chance)
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _damage(value: object, chance: random.Random) -> None:
    while isinstance(value, (dict, list)) and value:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.8:
            value = value[key]
            continue
        match chance.randrange(5):
            case 0:
                del value[key]
            case 1 if isinstance(value, dict):
                value[chance.choice(["x", "", key * 2])] = value.pop(key)
            case 2 if isinstance(value[key], str):
                value[key] += chance.choice(["x", " ", "\n", "\ud800", "é"])
            case _:
                value[key] = copy.deepcopy(chance.choice(STRANGE))  # or it might come to hold itself
        return


def damaged_text(data: bytes, chance: random.Random) -> bytes:
    """Text with lines or words left out, repeated, exchanged, or replaced by numbers and brackets."""
    if chance.random() < 0.15:
        return damaged_bytes(data, chance, len(data))
    between = chance.choice([b"\n", b" ", b","])
    parts = data.split(between)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(parts))
        match chance.randrange(5):
            case 0:
                del parts[place]
                parts = parts or [b""]
            case 1:
                parts[place:place] = parts[place : place + 1] * chance.choice([1, 50])
            case 2:
                other = chance.randrange(len(parts))
                parts[place], parts[other] = parts[other], parts[place]
            case 3:
                parts[place] = str(chance.choice(STRANGE)).encode("utf-8", "replace")
            case 4:
                parts[place] += chance.choice([b"{", b"}", b"[", b'"', b"'", b"\\", b"${x}", b"#", b"{" * 10_000])
    return between.join(parts)


def _of_gguf(data: bytes, chance: random.Random) -> bytes:
    return damaged_bytes(data, chance, chance.choice([64, 2000, len(data)]))


def _of_safetensors(data: bytes, chance: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    if chance.random() < 0.5:
        return damaged_bytes(data, chance, length + 8)
    header = damaged_json(data[8 : 8 + length], chance)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def _read_gguf(folder: Path) -> None:
    from inflight.checkpoint import tokenizer
    from inflight.checkpoint.weights import GgufFile

    file = GgufFile(folder / "model.gguf")
    file.tensor_table()
    file.precision()
    file.shape()
    tokenizer.from_gguf(file.metadata)
    assert len(file.reader.tensors) == len(file.index.tensors)


def _read_huggingface(folder: Path) -> None:
    from inflight.checkpoint.folder_files import checked
    from inflight.checkpoint.weights import from_huggingface

    checked(folder)
    from_huggingface(folder, folder.parent / "out.gguf", None)


def _read_tokenizer(folder: Path) -> None:
    from inflight.checkpoint.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("Hello 123 naïve 日本\0 <|im_start|>")
    tokenizer.decode(ids)
    tokenizer.decode_increment(ids[:2], [0, 5, 2**31 - 1], is_final=True)


def _read_template(folder: Path) -> None:
    from inflight.checkpoint.chat_template import ChatTemplate

    template = (folder / "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    ChatTemplate(template, {"eos_token": "</s>"}).render([{"role": "user", "content": "Hello"}])


def _read_engine(folder: Path) -> None:
    from inflight.engine import folder as engine

    info = engine.read(folder)
    assert info.kv_cache_bytes_per_token < 2**50


def _read_repository(folder: Path) -> None:
    from inflight.triton import repository

    [str(problem) for problem in repository.check(folder)]
    for name in repository.models(folder):
        repository.read_config(folder / name / "config.pbtxt")


def _read_dataset(folder: Path) -> None:
    from inflight.bench.workload import read_dataset

    [record.output_len for record in read_dataset(folder / "dataset.json")]


def _read_recording(folder: Path) -> None:
    from inflight.bench.workload import recorded

    recorded(folder / "run.csv")


def _read_statistics(folder: Path) -> None:
    from inflight.bench.report import check_op_stats

    check_op_stats(folder / "statistics.csv")


def _read_library(folder: Path) -> None:
    from inflight.triton import batch_library

    if problem := batch_library.check(folder / "library.so"):
        raise CourseError(str(problem))


Damage = Callable[[bytes, random.Random], bytes]
# Reader -> how its files are read, and how each is damaged, by the end of its path.
READERS: dict[str, tuple[Callable[[Path], None], dict[str, Damage]]] = {
    "gguf": (_read_gguf, {".gguf": _of_gguf}),
    "huggingface": (_read_huggingface, {".safetensors": _of_safetensors, ".json": damaged_json}),
    "tokenizer": (_read_tokenizer, {".json": damaged_json}),
    "template": (_read_template, {".jinja": damaged_text}),
    "engine": (_read_engine, {"/config.json": damaged_json}),
    "repository": (_read_repository, {"/config.pbtxt": damaged_text}),
    "dataset": (_read_dataset, {".json": damaged_json}),
    "recording": (_read_recording, {".csv": damaged_text}),
    "statistics": (_read_statistics, {".csv": damaged_text}),
    "library": (_read_library, {".so": lambda data, chance: damaged_bytes(data, chance, 4096)}),
}


def limit(growth: int = MOST_GROWTH) -> None:
    """From here on, take no more than `growth` bytes of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + growth
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def sentences(reader: str, intact: Path, folders: list[Path]) -> None:
    """Print what the reader says of each folder, as JSON by the folder's name; within the limits."""
    read, _ = READERS[reader]
    read(intact)
    limit(MOST_FOR_ATTACKS)
    said = {}
    for folder in folders:
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
        try:
            read(folder)
            said[folder.name] = ""
        except CourseError as error:
            said[folder.name] = str(error)
        signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(said))


def main(reader: str, source: Path, scratch: Path, seed: int, first: int, number: int) -> None:
    read, damages = READERS[reader]
    folder = scratch / "folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    read(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and str(path).endswith(tuple(damages)))
    intact = {path: path.read_bytes() for path in files}
    limit()
    outcomes = {"accepted": 0, "refused": 0}
    for index in range(first, first + number):
        chance = random.Random(f"{seed} {reader} {index}")
        path = chance.choice(files)
        damage = next(damage for ending, damage in damages.items() if str(path).endswith(ending))
        path.write_bytes(damage(intact[path], chance))
        print(f"{index} {path.relative_to(folder)}", file=sys.stderr, flush=True)  # seen when the process ends here
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
        try:
            read(folder)
            outcomes["accepted"] += 1
        except CourseError as error:
            outcomes["refused"] += 1
            sentence = str(error)
            assert sentence.strip() and len(sentence) < MOST_SENTENCE and "Traceback" not in sentence, sentence[:5000]
        except BaseException:
            print(traceback.format_exc()[-6000:], file=sys.stderr)
            sys.exit(f"Mutation {index} of {path.relative_to(folder)} is neither read nor refused.")
        signal.setitimer(signal.ITIMER_PROF, 0)
        path.write_bytes(intact[path])
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:7]))
