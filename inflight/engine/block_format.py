"""KV cache blocks as bytes, which another engine of the same kind may take: fingerprint, keys and values, checksum."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any
from zlib import crc32

from numpy.typing import NDArray

from inflight.engine.folder import EngineInfo
from inflight.errors import CourseError

CHECKSUM_BYTES = 4


class BlockFormat:
    """How an engine writes its blocks.

    Parameters
    ----------
    info : EngineInfo

    Attributes
    ----------
    fingerprint : bytes
        32 bytes. Engines with the same one compute the same keys and values of the same tokens, and lay them out alike.
    """

    def __init__(self, info: EngineInfo):
        build = info.build_config
        kind = [info.version, info.device, info.pretrained_config, info.quant_algo, build.dtype, build.tokens_per_block]
        self.fingerprint = sha256(json.dumps([*kind, build.kv_cache_quant_algo], sort_keys=True).encode()).digest()

    def sealed(self, parts: Iterable[NDArray[Any]]) -> bytes:
        """Put keys and values between fingerprint and checksum."""
        data = b"".join([self.fingerprint, *(part.tobytes() for part in parts)])
        return data + crc32(data).to_bytes(CHECKSUM_BYTES, "big")

    def opened(self, data: bytes, num_bytes: int) -> memoryview:
        """Return the keys and values in `data`, `num_bytes` of them.

        Raises
        ------
        CourseError
            They are of another kind of engine, of another number of blocks, or damaged.
        """
        begin, end = len(self.fingerprint), len(data) - CHECKSUM_BYTES
        if data[:begin] != self.fingerprint:
            raise CourseError(
                "The blocks are of another kind of engine (its weights, its build, its block size or the precision of "
                "its cache differ): compute the prompt here."
            )
        content = memoryview(data)
        if crc32(content[:end]) != int.from_bytes(content[end:], "big") or num_bytes != end - begin:
            raise CourseError("The blocks are damaged, or not as many as asked for: compute the prompt here.")
        return content[begin:end]
