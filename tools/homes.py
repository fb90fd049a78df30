"""Nobody's home folder in what a notebook shows: `~` in its place, so that outputs are the same for all who run it."""

import os
import re
from collections.abc import Iterable

from nbformat import NotebookNode

_OWN = re.escape(os.path.expanduser("~").rstrip("/") or "/root")
HOME = re.compile(rf"(?<![\w.-])(?:{_OWN}|/root|/(?:home|Users)/[\w.-]+)(?=/)")


def without_home(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell, changed in place, with `~` for a home folder: that of whoever runs this, and others'.

    A picture has none: its letters mean bytes.
    """
    found = list(outputs)
    for output in found:
        for holder in (output, output.get("data", {})):
            for key, value in holder.items():
                if (key == "text" or key.startswith("text/")) and isinstance(value, str):
                    holder[key] = HOME.sub("~", value)
    return found
