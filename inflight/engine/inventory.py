"""The engines in the cache folder, and whether each is whole: what `inflight doctor` shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from inflight import cache, manifest
from inflight.engine.folder import CONFIG_FILE, engine_version
from inflight.paths import cache_dir

MOST_HASHED_BYTES = 300_000_000  # of one engine: 0.2 s; of a larger one the sizes are compared


@dataclass(frozen=True)
class KeptEngine:
    """An engine in the cache; `bytes` on disk, `state` in a few words, `fix` blank when there is nothing to do."""

    name: str
    bytes: int
    state: str
    fix: str


def kept() -> list[KeptEngine]:
    """Every engine in the cache, and those that are being made, by name.

    Raises
    ------
    CourseError
        The cache cannot be read.
    """
    place = cache_dir().absolute() / "engines"
    with cache.cache_errors():
        there = {path.name: path for path in place.iterdir()} if place.is_dir() else {}
        names = {name for name in there if not name.startswith(".") and not name.endswith(".lock")}
        return [_look_at(place / name) for name in sorted(names)]


def _look_at(folder: Path) -> KeptEngine:
    size = sum(path.lstat().st_size for path in folder.rglob("*")) if folder.is_dir() else 0
    state, fix = _state(folder, size)
    return KeptEngine(folder.name, size, state, fix)


def _state(folder: Path, size: int) -> tuple[str, str]:
    """State and fix of an engine that nobody is making."""
    again = "nothing to do: it is built again when it is next used"
    old = f"nothing to do, for another is built when it is needed; to free the space: rm -r {folder}"
    if folder.is_symlink() or not folder.is_dir():
        return "damaged: not a folder", again
    by_content = size <= MOST_HASHED_BYTES
    different = manifest.differences(folder, contents=by_content)
    if manifest.MANIFEST in different and (folder / CONFIG_FILE).is_file():
        return "without checksums, as an earlier version built it", old
    if different:
        return f"damaged: {manifest.in_words(different)}", again
    try:
        content = json.loads((folder / CONFIG_FILE).read_bytes())
        version, here = content["version"], engine_version(content.get("tier", "cpu"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"damaged: {CONFIG_FILE} cannot be read", again
    if version != here:
        return f"of another version ({version})", old
    return ("whole (by SHA-256)" if by_content else "whole (by size)"), ""
