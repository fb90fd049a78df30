"""The index of a GGUF file: its metadata and where its tensors lie, read within bounds.

The gguf library and OpenVINO's reader believe what a file says of itself: that an array has 2^60 items, that a tensor
lies behind the end of the file. So the index is walked here first, and only a file that holds what it claims goes to
them. The layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from inflight.errors import CourseError

# Far above every model's: the largest vocabularies have 262,144 tokens in three arrays beside 580,000 merges.
MOST_KEYS = 4096
MOST_TENSORS = 65_536
MOST_ITEMS = 1 << 21  # of all arrays together; the gguf library takes some 20 µs and 500 bytes for each
MOST_INDEX_BYTES = 1 << 26
MOST_NAME_BYTES = 65_535  # of a key or the name of a tensor
MOST_DIMENSIONS = 4
MOST_ALIGNMENT = 1 << 16

Kind = gguf.GGUFValueType
_SCALARS: dict[gguf.GGUFValueType, np.dtype] = {
    Kind.UINT8: np.dtype("<u1"),
    Kind.INT8: np.dtype("<i1"),
    Kind.UINT16: np.dtype("<u2"),
    Kind.INT16: np.dtype("<i2"),
    Kind.UINT32: np.dtype("<u4"),
    Kind.INT32: np.dtype("<i4"),
    Kind.FLOAT32: np.dtype("<f4"),
    Kind.BOOL: np.dtype("?"),
    Kind.UINT64: np.dtype("<u8"),
    Kind.INT64: np.dtype("<i8"),
    Kind.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in the file; `shape` in numpy's order, `start` and `size` in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int
    size: int

    @property
    def parameters(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Index:
    """What the index of a GGUF file holds.

    Attributes
    ----------
    metadata : dict
        Every key with its value; arrays as lists.
    kinds : dict
        Every key with the type of its value and, of an array, that of its items, else None.
    tensors : list of Tensor
    """

    metadata: dict
    kinds: dict[str, tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]]
    tensors: list[Tensor]


def read_index(path: str | Path) -> Index:
    """Read the index of a GGUF file; its tensors are not read, only found to be all there.

    Raises
    ------
    CourseError
        It is no GGUF file, cannot be read, or does not hold what it claims.
    """
    path = Path(path)
    again = "Download or copy it again."
    if not path.is_file():
        raise CourseError(f"There is no GGUF file at {path}. Give the path of one.")
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise CourseError(
                    f"{path} is not a GGUF file (it does not start with the letters GGUF): give a .gguf "
                    "file, or a Hugging Face folder."
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walk(data).index()
    except OSError as error:
        raise CourseError(f"The GGUF file {path} cannot be read ({error.strerror}). {again}") from None
    except _Damaged as error:
        raise CourseError(
            f"The GGUF file {path} is corrupt or cut short ({error}): download or copy it again."
        ) from None


class _Damaged(Exception):
    """What is wrong, to stand in brackets."""


class _Walk:
    """Goes through the index from its beginning; no step reaches beyond the end of the file."""

    def __init__(self, data: mmap.mmap):
        self._data = data
        self._place = 4  # behind the letters GGUF
        self._items = 0

    def index(self) -> Index:
        version = self._number(Kind.UINT32)
        if version not in (2, 3):
            is_swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big") in (2, 3)
            raise _Damaged("it is for big-endian machines" if is_swapped else f"version {version}, not 2 or 3")
        num_tensors, num_keys = self._number(Kind.UINT64), self._number(Kind.UINT64)
        if num_keys > MOST_KEYS or num_tensors > MOST_TENSORS:
            raise _Damaged(f"it claims {num_tensors:,} tensors and {num_keys:,} keys")
        metadata: dict = {}
        kinds = {}
        for _ in range(num_keys):
            key = self._text("a key", MOST_NAME_BYTES)
            if key in metadata:
                raise _Damaged(f"the key {key[:100]!r} is there twice")
            metadata[key], kinds[key] = self._value(key[:100])
        tensors = self._tensors(num_tensors, self._alignment(metadata, kinds))
        return Index(metadata, kinds, tensors)

    def _tensors(self, number: int, alignment: int) -> list[Tensor]:
        """Where the tensors lie, each in a place of its own."""
        tensors = [self._tensor(alignment) for _ in range(number)]
        begin = -(-self._place // alignment) * alignment  # the tensors follow the index
        tensors = [Tensor(t.name, t.shape, t.kind, begin + t.start, t.size) for t in tensors]
        if len({tensor.name for tensor in tensors}) < number:
            raise _Damaged("two tensors have one name")
        end = begin
        for tensor in sorted(tensors, key=lambda tensor: tensor.start):
            if tensor.start < end:
                raise _Damaged(f"the tensor {tensor.name!r} lies over another")
            end = tensor.start + tensor.size
            if end > len(self._data):
                raise _Damaged(f"the tensor {tensor.name!r} reaches beyond the end of the file")
        return tensors

    def _tensor(self, alignment: int) -> Tensor:
        """The next tensor; its `start` counts from where the tensors begin."""
        name = self._text("the name of a tensor", MOST_NAME_BYTES)
        called = f"the tensor {name[:100]!r}"
        dimensions = self._number(Kind.UINT32)
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _Damaged(f"{called} has {dimensions} dimensions")
        shape = tuple(self._number(Kind.UINT64) for _ in range(dimensions))[::-1]
        number, start = self._number(Kind.UINT32), self._number(Kind.UINT64)
        try:
            kind = gguf.GGMLQuantizationType(number)
        except ValueError:
            raise _Damaged(f"{called} has the unknown format {number}") from None
        values, size = gguf.GGML_QUANT_SIZES[kind]  # bytes of a group of so many values
        if min(shape) < 1 or shape[-1] % values:
            raise _Damaged(f"{called} has the shape {shape}, which the format {kind.name} cannot have")
        if start % alignment:
            raise _Damaged(f"{called} does not begin at a multiple of {alignment} bytes")
        return Tensor(name, shape, kind, start, math.prod(shape) // values * size)

    @staticmethod
    def _alignment(metadata: dict, kinds: dict) -> int:
        alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        is_number = kinds.get("general.alignment", (Kind.UINT32,))[0] == Kind.UINT32
        if not is_number or not 1 <= alignment <= MOST_ALIGNMENT or alignment & (alignment - 1):
            raise _Damaged(f"its alignment is {str(alignment)[:20]}, not a power of two of at most {MOST_ALIGNMENT:,}")
        return alignment

    def _value(self, key: str) -> tuple[object, tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]]:
        kind = self._kind(key)
        if kind == Kind.STRING:
            return self._text(key, MOST_INDEX_BYTES), (kind, None)
        if kind != Kind.ARRAY:
            return self._number(kind), (kind, None)
        item, length = self._kind(key), self._number(Kind.UINT64)
        if item == Kind.ARRAY:
            raise _Damaged(f"{key} is an array of arrays")
        self._items += length
        if self._items > MOST_ITEMS:
            raise _Damaged(f"its arrays claim more than {MOST_ITEMS:,} items")
        if item == Kind.STRING:
            return [self._text(key, MOST_INDEX_BYTES) for _ in range(length)], (kind, item)
        numbers = np.frombuffer(self._take(length * _SCALARS[item].itemsize, key), _SCALARS[item])
        return numbers.tolist(), (kind, item)

    def _kind(self, key: str) -> gguf.GGUFValueType:
        number = self._number(Kind.UINT32)
        try:
            return Kind(number)
        except ValueError:
            raise _Damaged(f"{key} has the unknown type {number}") from None

    def _number(self, kind: gguf.GGUFValueType):
        dtype = _SCALARS[kind]
        return np.frombuffer(self._take(dtype.itemsize, "its index"), dtype)[0].item()

    def _text(self, what: str, most_bytes: int) -> str:
        length = struct.unpack("<Q", self._take(8, what))[0]
        if length > most_bytes:
            raise _Damaged(f"{what} claims {length:,} bytes")
        try:
            return self._take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise _Damaged(f"{what} is not UTF-8 text") from None

    def _take(self, number: int, what: str) -> bytes:
        """The next bytes; nothing is copied before it is known that they are there."""
        end = self._place + number
        if end > len(self._data):
            raise _Damaged(f"{what} reaches beyond the end of the file")
        if end > MOST_INDEX_BYTES:
            raise _Damaged(f"its index has more than {MOST_INDEX_BYTES:,} bytes")
        taken = self._data[self._place : end]
        self._place = end
        return taken
