"""The one exception that a learner is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence

# Why a request has no answer. A model's error carries the code to a client that asks for it (`python_model`).
REFUSED = "refused"  # it asks for what it cannot have
GUIDE = "guide"  # its answer cannot have the form that it asks for
TOO_LONG = "context_length_exceeded"
QUEUE_FULL, TIMED_OUT, SHUT_DOWN = "queue_full", "timed_out", "shut_down"
NOT_READY = "not_ready"  # the model, or the server, takes no requests now
CONFIG_REFUSED = "config_refused"  # Triton's log says why
ENGINE_FAILED = "engine_failed"  # whatever it asks for


class CourseError(Exception):
    """A problem the user can cause and can fix.

    The command line and notebooks show its sentences, without a traceback. A program reads its fields.

    Parameters
    ----------
    what : str
        What happened, and where; with the one thing to do next, unless that is a field of its own.
    fix : str
        What to do next.
    where : sequence of str
        Where it happened, such as a file and a field in it; the sentences begin with it.
    code : str
        What kind of problem it is: of a request, one of those above; by default that of what was asked.
    log : str
        The last lines of a log that say more.

    Attributes
    ----------
    what, fix, where, code, log
    sentence : str
        Where, what and fix, without the log.
    """

    code: str = REFUSED

    def __init__(self, what: str = "", fix: str = "", *, where: Sequence[str] = (), code: str = "", log: str = ""):
        super().__init__(what, fix)
        self.what, self.fix, self.where, self.log = what, fix, tuple(where), log
        if code:
            self.code = code

    @property
    def sentence(self) -> str:
        return ": ".join((*self.where, " ".join(filter(None, (self.what, self.fix)))))

    def __str__(self) -> str:
        return f"{self.sentence}\nLast lines of the log:\n{self.log}" if self.log else self.sentence

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
