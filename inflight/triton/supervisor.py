"""Keeps a Triton server no longer than whoever started it.

Run as a process of its own, between a notebook's kernel and `tritonserver`. It starts the server, waits until the
server ends or its own standard input is closed (which the kernel does by stopping it, or by dying in any way), and
leaves nothing behind: no process, no shared memory, no folder. Standard library only, so that it is up in no time.

    python supervisor.py WORKDIR SHM_PREFIX tritonserver ARG…
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

if __package__:
    from inflight.triton import hidden_arguments, owner_only
else:  # run as a program, its own folder is where Python looks
    import hidden_arguments  # type: ignore[no-redef]
    import owner_only  # type: ignore[no-redef]

KEY_FILE = "key"  # in WORKDIR: a header, "name: value", as curl reads it with -H @FILE
CANNOT_CLOSE = "cannot be closed:"  # what it says in place of the server's number, and why
GRACE_S = 4
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _prepare_server() -> None:
    """In the child, before exec: listen to signals again; should the supervisor be killed, end with it."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_DFL)
    hidden_arguments.end_with_parent()


def main(workdir: str, shm_prefix: str, command: list[str]) -> int:
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)  # only the closed pipe ends it, so that cleaning up is never cut short
    try:
        server = _start(Path(workdir), command)
    except (hidden_arguments.CannotHide, owner_only.CannotClose) as error:
        print(CANNOT_CLOSE, error, flush=True)
        return 1
    except OSError as error:
        print(error.strerror, flush=True)
        return 1
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


def _start(workdir: Path, command: list[str]) -> subprocess.Popen:
    """Start the server; with a key, which takes its place in the arguments unseen, closed to other users."""
    key_file, key = workdir / KEY_FILE, ""
    if key_file.exists():
        key = key_file.read_text().split()[-1]
        owner_only.apply()
    with open(workdir / "triton.log", "ab") as log:
        return hidden_arguments.start(
            command,
            key,
            _prepare_server,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


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
