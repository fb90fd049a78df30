"""Keeps a Triton server no longer than whoever started it.

Run as a process of its own, between a notebook's kernel and `tritonserver`. It starts the server, waits until the
server ends or its own standard input is closed (which the kernel does by stopping it, or by dying in any way), and
leaves nothing behind: no process, no shared memory, no folder. Standard library only, so that it is up in no time.

    python supervisor.py WORKDIR SHM_PREFIX tritonserver ARG…
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 4
PR_SET_PDEATHSIG = 1


IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _prepare_server() -> None:
    """In the child, before exec: listen to signals again; should the supervisor be killed, end with it."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(workdir: str, shm_prefix: str, command: list[str]) -> int:
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)  # only the closed pipe ends it, so that cleaning up is never cut short
    with open(Path(workdir) / "triton.log", "ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_prepare_server,
        )
    print(server.pid, flush=True)
    try:
        _wait_for_end(server)
        if server.poll() is None:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(GRACE_S)
    finally:
        clean_up(server.pid, shm_prefix)
        code = server.wait()
        with contextlib.suppress(OSError):
            print(code, flush=True)
        _wait_for_reader()
        shutil.rmtree(workdir, ignore_errors=True)
    return 0


def clean_up(server_pid: int, shm_prefix: str) -> None:
    """End the server and the model processes that it may have left, all of one group; remove their shared memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server_pid, signal.SIGKILL)
    for file in Path("/dev/shm").glob(f"{shm_prefix}*"):
        file.unlink(missing_ok=True)


def _wait_for_end(server: subprocess.Popen) -> None:
    """Until the server has ended or standard input is closed, whichever is first."""
    ended = os.pidfd_open(server.pid)
    try:
        select.select([ended, sys.stdin], [], [])
    finally:
        os.close(ended)


def _wait_for_reader() -> None:
    """The log is kept until whoever started the server has let go of it."""
    select.select([sys.stdin], [], [])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
