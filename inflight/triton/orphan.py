"""In a model's process: ends it when the server that started it is gone.

Nobody else may be left to do so: the supervisor can be killed together with the server. Linux's own signal at a
parent's death is of no use here, for it comes when the parent's thread ends, and Triton's loading threads do.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

STUB = "triton_python_backend_stub"
SHM = Path("/dev/shm")
# Where they stand in the arguments that Triton 2.51 gives to a model's process.
SHM_REGION, SERVER_PID = 2, 5


def end_with_server() -> None:
    """From now on, end this process when the server does. Does nothing in a process that is no model's."""
    arguments = Path("/proc/self/cmdline").read_bytes().decode().split("\0")
    if not arguments[0].endswith(STUB):
        return
    server = int(arguments[SERVER_PID])
    try:
        pidfd = os.pidfd_open(server)
    except ProcessLookupError:
        _end(arguments[SHM_REGION])
    if os.getppid() != server:  # it ended before, and its number may be another's by now
        _end(arguments[SHM_REGION])
    threading.Thread(target=_wait, args=(pidfd, arguments[SHM_REGION]), name="orphan", daemon=True).start()


def _wait(pidfd: int, shm_region: str) -> None:
    select.select([pidfd], [], [])
    _end(shm_region)


def _end(shm_region: str) -> None:
    """End at once, whatever the model is doing, and take the shared memory along."""
    (SHM / shm_region).unlink(missing_ok=True)
    os.kill(os.getpid(), signal.SIGKILL)
