"""The keeper: a process between a notebook's kernel and `tritonserver`, which ends the server and records its death.

    python -S keeper.py FOLDER RECORDS tritonserver ARG…

The keeper starts `tritonserver`, and asks it nothing. It ends the server

- when a line "stop SECONDS" comes on the keeper's standard input: requests that run have so many seconds to end;
- when its standard input is closed, which also happens when the kernel ends, in whatever way;
- when the process of a model is dead: Triton 2.51 still calls such a model READY, and no longer answers its requests.
  The engine's process ends itself when a learner's scheduler does not return, after a line of JSON that says where.
- when a model's process is stopped and Triton is not: Triton gives it up at the next request, still calls it READY,
  and crashes when it goes on.

As long as the server lives, the folder RECORDS has a file about it, which `records` reads. When a server has died, the
keeper writes there how; the file stays until the next server starts. The keeper uses the standard library only, so that
it starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOOK_S = 0.5
# Looks after which a dead process counts as a death. One that ended in order was unloaded with its model, and on a
# busy machine Triton takes a while to reap it.
LOOKS, LOOKS_IN_ORDER = 2, 60
GRACE_S = 4  # for the requests of a server whose starter is gone
LOG, RECORD = "triton.log", "record.json"  # in the server's folder
NO_RECORD = 3  # exit status where none can be written; why is on standard error
STARTING = ".starting"  # how the file in RECORDS ends that its starter keeps until this process has written its own
LAST_LINES = 100  # of the log, among which is the one about a learner's part that did not return
SHM = Path("/dev/shm")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # only its input ends it: cleaning up is never cut short
PR_SET_PDEATHSIG = 1
PF_EXITING = 0x4  # linux/sched.h

_libc = ctypes.CDLL(None)


def main(folder: Path, records: Path, command: list[str]) -> None:
    for name in IGNORED:
        signal.signal(name, signal.SIG_IGN)
    record = json.loads((folder / RECORD).read_text())
    with open(folder / LOG, "ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_keeper,
        )
    record |= {"pid": server.pid, "started": started(server.pid), "keeper_started": started(os.getpid())}
    file = records / f"{os.getpid()}.json"
    try:
        write(file, record)
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        sys.exit(NO_RECORD)  # the server ends with this process
    (records / f"{folder.name}{STARTING}").unlink(missing_ok=True)
    with contextlib.suppress(BrokenPipeError):  # its starter was killed: the watch sees that, and tidies up
        print(server.pid, flush=True)
    death = _watch(server)
    if not death:
        _stop(server)
    end_processes(record["shm_prefix"])
    server.wait()
    remove_shared_memory(record["shm_prefix"])
    if death:
        if late := _late_call(last_lines(folder / LOG, LAST_LINES)):
            death = f"{late['file']}, line {late['line']}: {late['function']} did not return. {death}"
        with contextlib.suppress(OSError):  # on a full disk only who started the server is told
            write(file, record | {"death": death})
    else:
        file.unlink()
    with contextlib.suppress(BrokenPipeError):
        print(death, flush=True)
    while os.read(0, 100):  # the log is kept until whoever started the server has let go of it
        pass
    shutil.rmtree(folder, ignore_errors=True)


def _late_call(lines: Iterable[str]) -> dict[str, Any] | None:
    """Return where a learner's part was that did not return, as `inflight.engine.own.part` wrote it into the log."""
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            call: dict[str, Any] = json.loads(line)["late_call"]
            return call
    return None


def _end_with_keeper() -> None:
    """Run in the child before exec: listen to signals again, and end with the keeper if that is killed."""
    for name in IGNORED:
        signal.signal(name, signal.SIG_DFL)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch(server: subprocess.Popen[bytes]) -> str:
    """Wait until the server is to end, and return "", or has died, and return a sentence that says how."""
    ended = os.pidfd_open(server.pid)
    models: dict[int, str] = {}
    dead: Counter[int] = Counter()  # looks at each dead process
    while True:
        ready = select.select([ended, 0], [], [], LOOK_S)[0]
        if 0 in ready:
            return ""
        if ended in ready:
            return f"tritonserver {_ended(server.wait())}."
        for pid in _children(server.pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                is_stopped = _stat(pid)[0] == "T" and _stat(server.pid)[0] != "T"
                if not (is_stopped or is_dead(pid)):
                    models[pid], dead[pid] = _model(pid) or models.get(pid, ""), 0
                    continue
                dead[pid] += 1
                code = os.waitstatus_to_exitcode(int(_stat(pid)[-1]))
                if dead[pid] >= (LOOKS if is_stopped or code else LOOKS_IN_ORDER):
                    name = f"the model {models[pid]!r}" if models.get(pid) else "a model"
                    how = "was stopped" if is_stopped else _ended(code)
                    return f"The process of {name} {how}, and Triton was ended with it."


def _ended(code: int) -> str:
    """Say how a process ended; a negative code is minus the signal that ended it."""
    return f"was ended by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit status {code}"


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server. Requests that run have the seconds of the order, unless the input is closed meanwhile."""
    order = os.read(0, 100).split()
    server.terminate()
    ended = os.pidfd_open(server.pid)
    if order:
        select.select([ended, 0], [], [], float(order[1]))
    else:
        select.select([ended], [], [], GRACE_S)


def end_processes(prefix: str) -> None:
    """End a server and its models' processes, whoever their parent is by now: the prefix is in their arguments."""
    while found := [pid for pid in _processes() if prefix.encode() in _arguments(pid)]:  # one may be started meanwhile
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def remove_shared_memory(prefix: str) -> None:
    """Remove the regions that a server and its models shared."""
    for file in SHM.glob(f"{prefix}*"):
        file.unlink(missing_ok=True)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the end of a log."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 100_000))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.strip()][-count:]


def write(file: Path, record: dict[str, Any]) -> None:
    """Write a record, so that whoever reads the file sees the one before or this one, and never half of one."""
    aside = file.with_suffix(".new")
    aside.unlink(missing_ok=True)
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            json.dump(record, opened)
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


# /proc ----------------------------------------------------------------------------------------------------------------


def started(pid: int) -> int:
    """Return when a process began, in ticks since the machine did; pid and beginning together identify one process."""
    return int(_stat(pid)[19])


def is_dead(pid: int) -> bool:
    """Say whether a process has ended, and its parent has not reaped it yet."""
    return _stat(pid)[0] in "ZX"


def is_ending(pid: int) -> bool:
    """Say whether a process has ended, or is about to: the kernel closes its connections before it is dead."""
    return is_dead(pid) or bool(int(_stat(pid)[6]) & PF_EXITING)


def _stat(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the process's state on; the last is its exit status."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.extend(map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split()))
    return found


def _processes() -> list[int]:
    """List the pids of all processes but this one."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()]


def _arguments(pid: int) -> bytes:
    """Return the arguments that a process was started with; blank when it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _model(pid: int) -> str:
    """Return the model that a process runs: the second argument of Triton's stub is the path of its model.py."""
    arguments = _arguments(pid).decode("utf-8", "surrogateescape").split("\0")
    return Path(arguments[1]).parent.parent.name if len(arguments) > 1 else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
