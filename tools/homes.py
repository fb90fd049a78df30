"""Nobody's home folder in what a notebook shows: `~` in its place, so that outputs are the same for all who run it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbformat import NotebookNode

WELL_KNOWN = r"/root|/(?:home|Users)/[\w.-]+"


def without_home(outputs: Iterable[NotebookNode], home: Path | None = None) -> list[NotebookNode]:
    """The outputs of a cell with `~` for a home folder: that of whoever runs this, and those where homes mostly are.

    Parameters
    ----------
    outputs : iterable of NotebookNode
        Changed in place.
    home : Path, optional
        By default that of whoever runs this.
    """
    home, found = Path.home() if home is None else home, list(outputs)
    own = f"{re.escape(str(home))}|" if home != Path(home.anchor) else ""
    pattern = re.compile(rf"(?<![\w.-])(?:{own}{WELL_KNOWN})(?=/)")
    for holder, key in (place for output in found for place in _texts(output)):
        holder[key] = pattern.sub("~", holder[key])
    return found


def homes(outputs: Iterable[NotebookNode]) -> set[str]:
    """The home folders that outputs show."""
    pattern = re.compile(rf"(?<![\w.-])(?:{WELL_KNOWN})/")
    return {found for output in outputs for holder, key in _texts(output) for found in pattern.findall(holder[key])}


def _texts(output: NotebookNode) -> Iterator[tuple[dict, str]]:
    """Where an output has text: in which mapping, under which key. A picture has none: its letters mean bytes."""
    data = output.get("data", {})
    yield from ((data, mime) for mime, value in data.items() if mime.startswith("text/") and isinstance(value, str))
    if isinstance(output.get("text"), str):
        yield output, "text"
