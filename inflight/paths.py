"""Where the course lies, and where it keeps what it makes."""

from __future__ import annotations

import os
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
ASSETS = COURSE / "assets"


def cache_dir() -> Path:
    """Folder for checkpoints and engines: $INFLIGHT_HOME, else `inflight` in the user's cache folder."""
    if home := os.environ.get("INFLIGHT_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inflight"
