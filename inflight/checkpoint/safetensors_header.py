"""Names and shapes of the tensors of a safetensors file, from its header; the weights are not read.

The file begins with the length of a JSON object that names every tensor's type, shape and place. The safetensors
library holds that object against the file; its length is looked at here first.
"""

from __future__ import annotations

import os
from pathlib import Path

from inflight.errors import CourseError

MOST_HEADER_BYTES = 1 << 23  # a model of a thousand tensors has some 100,000


def tensor_shapes(path: str | Path) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor in the file.

    Raises
    ------
    CourseError
        It cannot be read, or does not hold what its header claims.
    """
    from safetensors import SafetensorError, safe_open  # it takes a while, and most have no such file

    path = Path(path)
    if not path.is_file():
        raise CourseError(f"There are no weights at {path}. Download or copy the file again.")
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MOST_HEADER_BYTES or length + 8 > os.fstat(file.fileno()).st_size:
                raise SafetensorError(f"its header claims {length:,} bytes")
        with safe_open(path, framework="numpy") as tensors:
            return [(name, tuple(tensors.get_slice(name).get_shape())) for name in tensors.keys()]  # noqa: SIM118  no dict
    except OSError as error:
        raise CourseError(f"The weights {path} cannot be read ({error.strerror or error}).") from None
    except SafetensorError as error:
        raise CourseError(
            f"The weights {path} are corrupt or cut short ({str(error)[:300]}): download or copy the file again."
        ) from None
