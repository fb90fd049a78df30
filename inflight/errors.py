"""The one exception that a learner is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Collection

# Why a request has no answer. A model's error carries the code to a client that asks for it (`python_model`).
REFUSED = "refused"  # it asks for what it cannot have
GUIDE = "guide"  # its answer cannot have the form that it asks for
TOO_LONG = "context_length_exceeded"
QUEUE_FULL, TIMED_OUT, SHUT_DOWN = "queue_full", "timed_out", "shut_down"
ENGINE_FAILED = "engine_failed"  # whatever it asks for


class CourseError(Exception):
    """A problem the user can cause and can fix.

    The message is one sentence or two: what happened, where, and the one thing to do next. The command line and
    notebooks show it without a traceback.

    Attributes
    ----------
    code : str
        What kind of problem it is, for programs: of a request, one of those below; by default that of what was asked.
    """

    code: str = REFUSED

    def __init__(self, *args: object, code: str = ""):
        super().__init__(*args)
        if code:
            self.code = code

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
