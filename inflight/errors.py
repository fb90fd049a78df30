"""The one exception that a learner is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Collection


class CourseError(Exception):
    """A problem the user can cause and can fix.

    The message is one sentence or two: what happened, where, and the one thing to do next. The command line and
    notebooks show it without a traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints of it."""
        return [f"{type(self).__name__}: {self}"]


def reason(error: Exception, first: bool = False) -> str:
    """Return a library error's last line, or its `first`, without a full stop; else the error's type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0 if first else -1].rstrip(".")


def did_you_mean(name: str, known: Collection[str], otherwise: str = "There are", cutoff: float = 0.6) -> str:
    """Suggest in a sentence the known name that is most like `name`, or all known names if none is."""
    near = difflib.get_close_matches(name, known, 1, cutoff)
    return f"Did you mean {near[0]!r}?" if near else f"{otherwise}: {', '.join(known)}."
