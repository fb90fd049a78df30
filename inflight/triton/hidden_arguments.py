"""Starts a program with an argument that no other user can read.

    start(["/usr/bin/server", f"--key={PLACEHOLDER}"], secret)

or as a program of its own, whose standard input ends with the secret, and which ends as the other does:

    python -S hidden_arguments.py /usr/bin/server "--key=(hidden)" < FILE

Any user of a machine may read the arguments of every process in `/proc/PID/cmdline`, and some programs take a key in
no other way. Here the program is started with a placeholder for it and stops, traced, at the end of exec: its memory is
its own by then, and it has not run an instruction. The argument with the key is written over the path by which the
program was started, which lies outside of what the kernel shows as arguments and environment and is made long enough
by slashes in front; the program's list of arguments is pointed there; and it goes on. So there is no moment at which
the key can be seen, and `/proc/PID/cmdline` shows the placeholder for as long as the program runs.

The layout is Linux's own on every 64-bit processor (`create_elf_tables` in fs/binfmt_elf.c), and is checked before
anything is written: on the stack `argc`, the pointers to the arguments, a null; at its top the arguments themselves,
the environment, and the path. Standard library only: the supervisor runs without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PLACEHOLDER = "(hidden)"

PTRACE_TRACEME, PTRACE_CONT, PTRACE_DETACH = 0, 7, 17
PR_SET_PDEATHSIG = 1
LONGEST_PATH = 4095  # of what exec takes, in bytes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class CannotHide(Exception):
    """A process may not write into one that it starts on this machine; the message says what failed."""


def start(
    command: Sequence[str], secret: str, prepare: Callable[[], None] = lambda: None, **options
) -> subprocess.Popen:
    """Start `command` with `secret` wherever its arguments have PLACEHOLDER.

    Call it in a process that has one thread: as with any `preexec_fn`, what other threads hold stays held in the child.

    Parameters
    ----------
    command : sequence of str
        The absolute path of a program (no script), and its arguments.
    secret : str
        Blank starts the command as it is.
    prepare : callable
        Called in the child before the program replaces it.
    **options
        As of `subprocess.Popen`.

    Raises
    ------
    CannotHide
        The machine forbids it. Nothing runs then.
    OSError
        The program cannot be started.
    """
    if not secret:
        return subprocess.Popen(command, preexec_fn=prepare, **options)
    hidden = {
        number: os.fsencode(argument.replace(PLACEHOLDER, secret)) + b"\0"
        for number, argument in enumerate(command)
        if PLACEHOLDER in argument
    }
    path = "/" * sum(map(len, hidden.values())) + command[0]
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotHide(f"the path {command[0]} is too long")

    def prepare_traced() -> None:
        prepare()
        if _libc.ptrace(PTRACE_TRACEME, 0, None, None):
            raise OSError(ctypes.get_errno(), "ptrace")

    try:
        process = subprocess.Popen(command, executable=path, preexec_fn=prepare_traced, **options)
    except OSError as error:
        raise OSError(error.errno, error.strerror, command[0]) from None
    except subprocess.SubprocessError:  # which is all that it says of an exception in the child
        raise CannotHide("a process may not be traced by the one that starts it") from None
    try:
        if _stopped_at_exec(process):
            _hide(process.pid, command, os.fsencode(path), hidden)
            _ptrace(PTRACE_DETACH, process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _stopped_at_exec(process: subprocess.Popen) -> bool:
    """Wait until the program is loaded and stands still; False when it was ended before."""
    while True:
        _, status = os.waitpid(process.pid, 0)
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            return False
        if os.WSTOPSIG(status) == signal.SIGTRAP:
            return True
        _ptrace(PTRACE_CONT, process.pid, os.WSTOPSIG(status))


def _hide(pid: int, command: Sequence[str], path: bytes, hidden: dict[int, bytes]) -> None:
    """Write the hidden arguments over the path at the top of the stack, and point the list of arguments at them."""
    arguments_start, arguments_end, _, environment_end = _limits(pid)
    arguments = [os.fsencode(argument) + b"\0" for argument in command]
    pointers = [arguments_start + len(b"".join(arguments[:number])) for number in range(len(arguments))]
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            stack_start = _stack_start(pid)
            stack = _read(memory, stack_start, arguments_start - stack_start)
            counted = struct.pack(f"{len(pointers) + 2}Q", len(pointers), *pointers, 0)
            place = stack.rfind(counted)
            as_expected = (
                place >= 0
                and pointers[-1] + len(arguments[-1]) == arguments_end
                and _read(memory, environment_end, len(path) + 1) == path + b"\0"
            )
            if not as_expected:
                raise CannotHide("a new process does not look as Linux makes it")
            address = environment_end
            for number, argument in hidden.items():
                _write(memory, address, argument)
                _write(memory, stack_start + place + 8 * (number + 1), struct.pack("Q", address))
                address += len(argument)
    except OSError as error:
        raise CannotHide(f"the memory of a process may not be written: {error.strerror}") from None


def _limits(pid: int) -> tuple[int, int, int, int]:
    """Where the arguments of a process start and end, and its environment: fields 48 to 51 of `/proc/PID/stat`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    start, end, environment_start, environment_end = map(int, fields[45:49])
    return start, end, environment_start, environment_end


def _stack_start(pid: int) -> int:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next((int(line.partition("-")[0], 16) for line in lines if line.endswith("[stack]")), 0)


def _read(memory, address: int, size: int) -> bytes:
    memory.seek(address)
    return memory.read(size)


def _write(memory, address: int, content: bytes) -> None:
    memory.seek(address)
    if memory.write(content) != len(content):
        raise CannotHide("the memory of a process could be written in part only")


def _ptrace(request: int, pid: int, number: int) -> None:
    if _libc.ptrace(request, pid, None, number):
        raise CannotHide(f"ptrace: {os.strerror(ctypes.get_errno())}")


def end_with_parent() -> None:
    """In a child, before exec: should its parent be killed, it ends too."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(command: Sequence[str]) -> int:
    secret = sys.stdin.read().split()[-1]
    try:
        process = start(command, secret, end_with_parent, stdin=subprocess.DEVNULL)
    except (CannotHide, OSError) as error:
        sys.exit(f"error: it cannot be started ({getattr(error, 'strerror', error)})")
    status = process.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
