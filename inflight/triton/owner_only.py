"""Files of a process and of all that it starts: for the user alone, shared memory in /dev/shm too.

A umask closes files. Triton's Python backend makes its regions of shared memory through Boost, which gives them the
mode 0644 afterwards whatever the umask is, so that any user of the machine could read requests and answers in them.
A filter of system calls has that one call, `fchmod(region, 0644)`, do nothing and succeed: a region is never open, not
for a moment. Standard library only: the supervisor runs without site-packages.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

UMASK = 0o077
OPENED_TO = 0o644  # what Boost asks for

PR_SET_NO_NEW_PRIVS = 38
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4  # no slower processor for it on older kernels
SECCOMP_RET_ALLOW = 0x7FFF0000
SECCOMP_RET_ERRNO = 0x00050000  # plus the error's number: 0 is success
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of 32 bits at an offset; to a constant; a constant

# Of each machine that Triton runs on: its name in a filter, and the numbers of two of its system calls.
MACHINES = {"x86_64": (0xC000003E, 91, 317), "aarch64": (0xC00000B7, 52, 277)}  # fchmod, seccomp


class CannotClose(Exception):
    """A process may not filter its system calls on this machine; the message says what failed."""


def apply() -> None:
    """Close what this process and those that it starts from now on will make. There is no way back.

    Raises
    ------
    CannotClose
        The machine forbids it.
    """
    os.umask(UMASK)
    if platform.machine() not in MACHINES:
        raise CannotClose(f"there is no filter for {platform.machine()}")
    audit_name, fchmod, seccomp = MACHINES[platform.machine()]
    steps = [  # operation, steps to skip if not equal, value or offset into seccomp_data
        (LOAD, 0, 4),
        (JUMP_IF_EQUAL, 5, audit_name),
        (LOAD, 0, 0),
        (JUMP_IF_EQUAL, 3, fchmod),
        (LOAD, 0, 24),  # the second argument, the mode
        (JUMP_IF_EQUAL, 1, OPENED_TO),
        (RETURN, 0, SECCOMP_RET_ERRNO),
        (RETURN, 0, SECCOMP_RET_ALLOW),
    ]
    program = b"".join(struct.pack("HBBI", code, 0, skip, value) for code, skip, value in steps)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) or libc.syscall(
        ctypes.c_long(seccomp), ctypes.c_long(SECCOMP_SET_MODE_FILTER), ctypes.c_long(SECCOMP_FILTER_FLAG_SPEC_ALLOW),
        header,
    ):  # fmt: skip
        raise CannotClose(f"its system calls may not be filtered: {os.strerror(ctypes.get_errno())}")
