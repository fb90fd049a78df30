"""Where KV cache blocks are outside an engine: a folder that outlives it, and another engine's server.

A block's name is a hash of its engine's fingerprint and of all tokens up to its end. So it says what is in it, a folder
may be shared by engines of any kind, and who asks for a block knows the text that it was made of.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from hashlib import sha256
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from inflight.engine.block_format import CHECKSUM_BYTES, BlockFormat
from inflight.engine.kv_cache import Content
from inflight.errors import CourseError

log = logging.getLogger("inflight.engine.store")

NAME = re.compile("[0-9a-f]{64}")
NAME_BYTES = 32  # a file begins with its name: under another, it is not read
SPARE = 16  # a sixteenth of the folder is free after a look at it, and written before the next
PEER_TIMEOUT_S = 2


class BlockFolder:
    """Blocks in files that this user alone may read; the least recent go first.

    A file is there whole or not at all. One that cannot be read or written is a line in the log, and no error: its
    block is computed.

    Parameters
    ----------
    path : path
    most_bytes : int
        Of all files in it. Each engine that shares it may exceed that by a sixteenth, until it looks again.
    block_format : BlockFormat
    block_bytes : int
        Of keys and values in a block.

    Attributes
    ----------
    file_bytes : int
        Of each file.

    Raises
    ------
    CourseError
        The folder cannot be made, or others may write to it.
    """

    def __init__(self, path: str | Path, most_bytes: int, block_format: BlockFormat, block_bytes: int):
        self._path, self._most_bytes, self._format = Path(path), most_bytes, block_format
        self._block_bytes = block_bytes
        self.file_bytes = NAME_BYTES + len(block_format.fingerprint) + block_bytes + CHECKSUM_BYTES
        self._since_look = most_bytes  # bytes written since the last look at the folder
        self._is_failing = False
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._path.stat()
        except OSError as error:
            raise CourseError(
                f"kv_store_path {path} is no folder to write to ({error.strerror}): name another."
            ) from None
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise CourseError(
                f"Others may write to kv_store_path {path}, and answers are made of what is in it: name a folder of "
                "your own (`chmod go-w`)."
            )

    def name(self, content: Content) -> str:
        """Return the name of the block that has this content in an engine of this kind."""
        return sha256(self._format.fingerprint + b"".join(content)).hexdigest()

    def has(self, name: str) -> bool:
        return os.path.exists(self._path / name)  # Path.exists() raises where nobody may look, or the disk fails

    def count(self, names: Iterable[str]) -> int:
        """Return how many of a prompt's blocks are here, up to the first that is not."""
        return sum(1 for _ in takewhile(self.has, names))

    def touch(self, names: Iterable[str]) -> None:
        """Make a prompt's blocks, which are given from its beginning, the most recent, the beginning before all."""
        now_ns = time.time_ns()  # the file system's own clock ticks too slowly for an order
        for place, name in enumerate(names):
            with contextlib.suppress(OSError):  # a block that is not here
                os.utime(self._path / name, ns=(now_ns - place, now_ns - place))

    def read(self, name: str) -> bytes | None:
        """Return a block as `Model.write_blocks` takes it; None where there is none."""
        file = self._path / name
        try:
            return self.opened(name, file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, CourseError) as error:
            log.warning("block %s cannot be used and is computed again: %s", file, error)
            if isinstance(error, CourseError):  # damaged: what cannot be read now may be read later
                _forget(file)
            return None

    def opened(self, name: str, content: bytes) -> bytes:
        """Return the block in a file's content; raises CourseError where it is damaged, or not what its name says."""
        if content[:NAME_BYTES].hex() != name:
            raise CourseError("It is another block than its name says: compute the prompt here.")
        self._format.opened(data := content[NAME_BYTES:], self._block_bytes)
        return data

    def write(self, name: str, data: bytes) -> bool:
        """Keep a block; say whether it is kept."""
        aside = self._path / f"{name}.{os.getpid()}-{threading.get_ident()}"
        try:
            self._make_room(NAME_BYTES + len(data))
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(bytes.fromhex(name) + data)
            os.replace(aside, self._path / name)
            self._is_failing = False
            return True
        except OSError as error:
            if not self._is_failing:
                log.warning("blocks are not kept in %s (%s)", self._path, error.strerror)
            self._is_failing = True
            _forget(aside)
            return False

    def _make_room(self, size: int) -> None:
        """Forget the least recent blocks where `size` more bytes may be too many."""
        self._since_look += size
        if self._since_look <= self._most_bytes // SPARE:
            return
        found = []
        for entry in os.scandir(self._path):
            if NAME.match(entry.name):
                with contextlib.suppress(FileNotFoundError):  # another engine has forgotten it
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        left = sum(each[1] for each in found) + size
        for _, length, path in sorted(found):
            if left <= self._most_bytes - self._most_bytes // SPARE:
                break
            _forget(Path(path))
            left -= length
        self._since_look = size


class Peer:
    """The store of another engine, behind its OpenAI port.

    Parameters
    ----------
    url : str
        http://host:port.
    key : str, optional
        Of that port. A host that is not this machine must have one.

    Raises
    ------
    CourseError
        The address is none, or another machine's and there is no key.
    """

    def __init__(self, url: str, key: str | None):
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError:
            self._host = None
        if not self._host or parts.scheme != "http":
            raise CourseError(f"kv_peer_url is {url!r}: give http://host:port of the other engine's OpenAI port.")
        if not key and not _is_loopback(self._host):
            raise CourseError(
                f"kv_peer_url {url} is another machine: set INFLIGHT_API_KEY to its key, here and where it runs."
            )
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def read(self, names: Iterable[str], file_bytes: int) -> Iterator[bytes]:
        """Yield the files of a prompt's blocks, up to the first that is not there; who takes too long is cut off."""
        assert self._host
        with contextlib.closing(HTTPConnection(self._host, self._port, timeout=PEER_TIMEOUT_S)) as connection:
            connection.connect()
            connection.auto_open = 0  # the one that is cut off
            cut = threading.Timer(PEER_TIMEOUT_S, _cut, [connection.sock])
            cut.start()
            try:
                for name in names:
                    connection.request("GET", f"/v1/kv_blocks/{name}", headers=self._headers)
                    answer = connection.getresponse()
                    if answer.status == HTTPStatus.NOT_FOUND:
                        return
                    if answer.status != HTTPStatus.OK or answer.length != file_bytes:  # which also bounds what is read
                        raise OSError(f"it says {answer.status} {answer.reason}, {answer.length} bytes")
                    yield answer.read()
            finally:
                cut.cancel()


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed
        connection.shutdown(socket.SHUT_RDWR)


def _forget(file: Path) -> None:
    with contextlib.suppress(OSError):  # another engine was quicker, or nobody may: then it is refused at each look
        file.unlink()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
