"""The `inflight` command: calls to the rooms, and nothing else."""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
import threading
from types import FrameType

from inflight import paths
from inflight.errors import CourseError


class Ended(SystemExit):
    """Ctrl-C or SIGTERM has come; the exit status is 130 or 143."""


ended: list[Ended] = []
AGAIN_S = 0.05  # when a signal came in the middle of an import


def main() -> None:
    """Run the command; a CourseError is one sentence and exit code 1.

    Ctrl-C and SIGTERM end it as an exception does, so that whatever it began is put away. An import ends first: a
    compiled library prints what comes while it is imported, and where that is a SystemExit, Python ends on the spot.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            again = threading.Timer(AGAIN_S, signal.pthread_kill, [threading.get_ident(), number])
            again.daemon = True
            again.start()
            return
        ended.append(Ended(128 + number))
        raise ended[-1]

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that speaks ASCII shows what it lacks as question marks
    try:
        paths.home(), paths.temporary()  # which libraries need, too
        from inflight.cli.commands import app

        app()
    except BaseException as error:
        if ended:  # whatever has become of it
            print("Ended; nothing that was started is left running.", file=sys.stderr)
            raise ended[0] from None
        if isinstance(error, OSError) and _is_full(error):
            error = CourseError(f"{error.filename or 'The disk'} cannot be written: {error.strerror}. Make room there.")
        if not isinstance(error, CourseError):
            raise
        from rich.console import Console
        from rich.markup import escape

        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_globals.get("__name__") == importlib._bootstrap.__name__:
            return True
        frame = frame.f_back
    return False


def _is_full(error: OSError) -> bool:
    """Say whether an error that no other sentence was made of is a full disk's, or that of a full TMPDIR."""
    is_of_tempfile = error.errno == errno.ENOENT and error.filename is None
    return error.errno in (errno.ENOSPC, errno.EDQUOT) or is_of_tempfile
