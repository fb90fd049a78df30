"""The folders of the course: where it is installed, and where it keeps what it makes."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# A wheel holds the course in the package; a clone has it beside the package.
COURSE = PACKAGE / "course" if (PACKAGE / "course").is_dir() else PACKAGE.parent
ASSETS = COURSE / "assets"


def cache_dir() -> Path:
    """Return the folder of what is made once: $INFLIGHT_HOME, else `inflight` in the user's cache folder."""
    named = os.environ.get("INFLIGHT_HOME")
    return Path(named).expanduser() if named else own_cache_dir()


def own_cache_dir() -> Path:
    """Return `inflight` in the user's cache folder, whatever $INFLIGHT_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inflight"
