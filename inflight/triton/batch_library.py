"""What Triton's dynamic batcher takes for a custom batching library, and whether a file is one.

    problem = check("batchstrategy.so")                     # None, or what is wrong with it

Such a library is a shared library with five functions. Its symbols are read from the file; nothing in it is run.
"""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from inflight import files
from inflight.errors import CourseError
from inflight.triton.repository.parameter import Problem

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

MOST_BYTES = 1 << 26  # one that was built without optimization and with all of its libraries in it has some 10 MB
FILE_NAME = "batchstrategy.so"  # in the model's version folder, its own, or its backend's
PARAMETER = "TRITON_BATCH_STRATEGY_PATH"  # or anywhere, when this parameter of the model names it
FUNCTIONS = (
    "TRITONBACKEND_ModelBatcherInitialize",
    "TRITONBACKEND_ModelBatcherFinalize",
    "TRITONBACKEND_ModelBatchInitialize",
    "TRITONBACKEND_ModelBatchIncludeRequest",
    "TRITONBACKEND_ModelBatchFinalize",
)


def check(path: str | Path) -> Problem | None:
    """What would keep Triton from using a file as its batching library; None when nothing would.

    A library that lacks another one which it needs is not found out: only loading it tells.
    """
    fix = "Build it (`custom_batching.build`), or name the file that is there."
    try:
        exported = symbols(files.read_bytes(path, "batching library", MOST_BYTES, fix))
    except CourseError as error:
        return Problem(str(path), "library", str(error).removesuffix(f" {fix}"), fix)
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


def symbols(data: bytes) -> set[str]:
    """Names that a shared library, given by the content of its file, offers to others.

    Raises
    ------
    ValueError
        It is not a shared library of this machine.
    """
    from elftools.common.exceptions import ELFError  # only here: it takes a while to import
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    if not data.startswith(b"\x7fELF"):
        raise ValueError("it does not begin as one")
    with open(sys.executable, "rb") as program:
        wanted = _processor(ELFFile(program))
    try:
        library = ELFFile(BytesIO(data))
        kind, processor = library["e_type"], _processor(library)
        # A name without a section is one that the library uses and does not have.
        names = {
            symbol.name
            for section in library.iter_sections("SHT_DYNSYM")
            if isinstance(section, SymbolTableSection)
            for symbol in section.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
        }
    except (ELFError, ValueError, OverflowError):  # the last two of places that no file reaches to
        raise ValueError("it is cut off") from None
    if kind != "ET_DYN":
        raise ValueError("it cannot be loaded while a program runs")
    if processor != wanted:
        raise ValueError("it is for another kind of processor")
    return names


def _processor(elf: ELFFile) -> tuple[str, int, bool]:
    return elf["e_machine"], elf.elfclass, elf.little_endian
