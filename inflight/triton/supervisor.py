"""Keeps a Triton server no longer than whoever started it.

Run as a process of its own, between a notebook's kernel and `tritonserver`. It starts the server, looks after the
processes of its models (`watch`), starts it again when it crashes, and waits until the server ends or the kernel wants
it to:

- A line "stop SECONDS" on its standard input: the server takes no more requests, and those that run may go on for so
  many seconds.
- Its standard input is closed, which also happens when the kernel dies in any way: the same, for GRACE_S at most; after
  a "stop", at once.

It leaves nothing behind: no process, no shared memory, no folder. Standard library only, so that it is up in no time.

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
import time
from pathlib import Path

if __package__:
    from inflight.triton import hidden_arguments, owner_only, watch
else:  # run as a program, its own folder is where Python looks
    import hidden_arguments  # type: ignore[no-redef]
    import owner_only  # type: ignore[no-redef]
    import watch  # type: ignore[no-redef]

CANNOT_CLOSE = "cannot be closed:"  # what it says in place of the server's number, and why
GRACE_S = 4
POLL_S = 0.1
IDLE_LOOKS = 3  # in a row, before the engine is taken for idle: its figures are some time old
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
MOST_RESTARTS = 3
DRAINED = b"All models are stopped"  # in Triton's log when it has been told to end and no request runs any more
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
    models = watch.Watch(server.pid, _http_address(command), Path(workdir))
    num_restarts = 0
    try:
        models.start()
        _wait_for_end(server)
        while server.poll() in CRASHES and num_restarts < MOST_RESTARTS:
            num_restarts += 1
            models.stop()
            clean_up(server.pid, shm_prefix)
            server = _start(Path(workdir), command)
            models = watch.Watch(server.pid, _http_address(command), Path(workdir), before=models)
            models.start()
            _wait_for_end(server)
        models.stop()
        if server.poll() is None:
            _drain(server, command, Path(workdir) / watch.LOG)
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
    key_file, key = workdir / watch.KEY_FILE, ""
    if key_file.exists():
        key = key_file.read_text().split()[-1]
        owner_only.apply()
    with open(workdir / watch.LOG, "ab") as log:
        return hidden_arguments.start(
            command,
            key,
            _prepare_server,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _options(command: list[str]) -> dict[str, str]:
    return dict(argument.partition("=")[::2] for argument in command)


def _http_address(command: list[str]) -> tuple[str, int]:
    options = _options(command)
    return options["--http-address"], int(options["--http-port"])


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


def _drain(server: subprocess.Popen, command: list[str], log: Path) -> None:
    """Wait for a server that is told to end: as long as whoever started it says, and still wants to wait.

    The engine's requests are waited for before Triton is told: told to end, Triton 2.51 sends nothing more on a gRPC
    stream. Once no request runs any more it has GRACE_S: it may wait for more than those, and in vain.
    """
    order = os.read(sys.stdin.fileno(), 100).split()  # blank when the input is closed
    is_asked = len(order) == 2 and order[0] == b"stop"
    inputs = [os.pidfd_open(server.pid), *([sys.stdin.fileno()] if is_asked else [])]
    deadline = time.monotonic() + (float(order[1]) if is_asked else GRACE_S)

    def goes_on() -> bool:
        """Whether there is time left, after a moment of it."""
        left_s = deadline - time.monotonic()
        return left_s > 0 and not select.select(inputs, [], [], min(left_s, POLL_S))[0]

    num_idle = 0
    while is_asked and num_idle < IDLE_LOOKS and goes_on():
        num_idle = 0 if watch.is_busy(_options(command)) else num_idle + 1
    with open(log, "rb") as lines:
        lines.seek(0, os.SEEK_END)
        server.terminate()
        is_drained = False
        while goes_on():
            if not is_drained and DRAINED in lines.read():
                is_drained, deadline = True, min(deadline, time.monotonic() + GRACE_S)
    os.close(inputs[0])


def _wait_for_reader() -> None:
    """The log is kept until whoever started the server has let go of it."""
    while os.read(sys.stdin.fileno(), 100):  # until it is closed
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
