"""The folders of the course: where it is installed, and where it keeps what it makes."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from inflight.errors import CourseError

PACKAGE = Path(__file__).resolve().parent
# A wheel holds the course in the package; a clone has it beside the package.
COURSE = PACKAGE / "course" if (PACKAGE / "course").is_dir() else PACKAGE.parent
ASSETS = COURSE / "assets"


def cache_dir() -> Path:
    """Return the folder of what is made once: $INFLIGHT_HOME, else `inflight` in the user's cache folder."""
    named = os.environ.get("INFLIGHT_HOME")
    return Path(os.path.expanduser(named)) if named else own_cache_dir()


def own_cache_dir() -> Path:
    """Return `inflight` in the user's cache folder, whatever $INFLIGHT_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "inflight"


def home() -> Path:
    """Return the user's home folder.

    Raises
    ------
    CourseError
        There is none, as where a container runs as a mere number.
    """
    folder = os.path.expanduser("~")
    if folder == "~":
        raise CourseError(
            f"User {os.getuid()} has no home folder, and neither the system nor HOME names one. Set HOME to a folder "
            "of yours, then run the command again."
        )
    return Path(folder)


def temporary() -> str:
    """Return the folder for temporary files.

    Raises
    ------
    CourseError
        There is none, as in a container whose file system can only be read.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise CourseError(
            "There is no folder for temporary files: neither TMPDIR nor /tmp can be written. Set TMPDIR to a folder of "
            "yours, then run the command again."
        ) from None


def without_home(text: str) -> str:
    """Return a text with `~` for the user's home folder, which has their name in it; in JSON, too."""
    folder = os.path.expanduser("~")
    homes = {folder, os.path.realpath(folder)} - {"/"} if folder != "~" else set()
    written = {form for folder in homes for form in (folder, json.dumps(folder)[1:-1])}
    return re.sub(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, written))})(?![\w-])", "~", text) if homes else text
