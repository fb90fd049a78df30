"""Where the course lies, and where it keeps what it makes."""

from __future__ import annotations

import os
from pathlib import Path

from inflight import trust

PACKAGE = Path(__file__).resolve().parent
# A wheel holds the course in the package; a clone has it beside the package.
COURSE = PACKAGE / "course" if (PACKAGE / "course").is_dir() else PACKAGE.parent
ASSETS = COURSE / "assets"


def cache_dir() -> Path:
    """Folder for checkpoints and engines: $INFLIGHT_HOME, else `inflight` in the user's cache folder.

    An $INFLIGHT_HOME that belongs to a user who is not trusted is not it, see `lender`.
    """
    named = os.environ.get("INFLIGHT_HOME")
    if named and lender() is None:
        return Path(named).expanduser()
    return own_cache_dir()


def own_cache_dir() -> Path:
    """`inflight` in the user's cache folder, whatever $INFLIGHT_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inflight"


def lender() -> trust.Doubt | None:
    """Why $INFLIGHT_HOME is only read, and only files of it whose SHA-256 is known: another user owns it."""
    try:
        found = trust.doubt(lent_dir()) if os.environ.get("INFLIGHT_HOME") else None
    except OSError:  # whoever uses the folder meets the error again, and says so
        return None
    return None if found is None or found.is_open else found


def lent_dir() -> Path:
    """The folder that $INFLIGHT_HOME names."""
    return Path(os.environ["INFLIGHT_HOME"]).expanduser()
