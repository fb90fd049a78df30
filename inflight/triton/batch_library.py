"""What Triton's dynamic batcher takes for a custom batching library, and whether a file is one.

    problem = check("batchstrategy.so")                     # None, or what is wrong with it

Such a library is a shared library with five functions. Its symbols are read from the file; nothing in it is run.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from inflight.triton.repository.parameter import Problem

FILE_NAME = "batchstrategy.so"  # in the model's version folder, its own, or its backend's
PARAMETER = "TRITON_BATCH_STRATEGY_PATH"  # or anywhere, when this parameter of the model names it
FUNCTIONS = (
    "TRITONBACKEND_ModelBatcherInitialize",
    "TRITONBACKEND_ModelBatcherFinalize",
    "TRITONBACKEND_ModelBatchInitialize",
    "TRITONBACKEND_ModelBatchIncludeRequest",
    "TRITONBACKEND_ModelBatchFinalize",
)

# ELF, the format of programs and libraries: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html
ELF_64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
ET_DYN, SHT_DYNSYM = 3, 11
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


def check(path: str | Path) -> Problem | None:
    """What would keep Triton from using a file as its batching library; None when nothing would.

    A library that lacks another one which it needs is not found out: only loading it tells.
    """
    try:
        exported = symbols(path)
    except OSError as error:
        return Problem(
            str(path),
            "library",
            f"The batching library {path} cannot be read ({error.strerror}).",
            "Build it (`custom_batching.build`), or name the file that is there.",
        )
    except ValueError as error:
        return Problem(
            str(path),
            "library",
            f"{path} is not a shared library of this machine ({error}).",
            "Build it from its C source: `custom_batching.build`.",
        )
    missing = [name for name in FUNCTIONS if name not in exported]
    if missing:
        return Problem(
            str(path),
            "library",
            f"The batching library {path} does not define all required custom "
            f"batching functions: {', '.join(missing)}.",
            "Write what is missing and build it again.",
        )
    return None


def symbols(path: str | Path) -> set[str]:
    """Names that a shared library offers to others.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is not a shared library of this machine.
    """
    data = Path(path).read_bytes()
    if not data.startswith(ELF_64_LITTLE_ENDIAN):
        raise ValueError("it does not begin as one")
    try:
        return _symbols(data)
    except (struct.error, IndexError):
        raise ValueError("it is cut off") from None


def _symbols(data: bytes) -> set[str]:
    kind, machine, _, _, _, sections_at, *_, size, count, _ = _HEADER.unpack_from(data)
    if kind != ET_DYN:
        raise ValueError("it cannot be loaded while a program runs")
    if machine != _machine():
        raise ValueError("it is for another kind of processor")
    sections = [_SECTION.unpack_from(data, sections_at + size * index) for index in range(count)]
    names = set()
    for _, section_kind, _, _, begin, length, link, *_ in sections:
        if section_kind == SHT_DYNSYM:
            names_at = sections[link][4]
            for at in range(begin, begin + length, _SYMBOL.size):
                name_at, _, _, section, *_ = _SYMBOL.unpack_from(data, at)
                if section:  # of those with none, the library is a user and not the owner
                    names.add(_text(data, names_at + name_at))
    return names


def _text(data: bytes, begin: int) -> str:
    return data[begin : data.index(b"\0", begin)].decode("utf-8", "replace")


def _machine() -> int:
    """The processor that this Python was made for, as an ELF header tells it."""
    with open(sys.executable, "rb") as file:
        return _HEADER.unpack(file.read(_HEADER.size))[1]
