"""systemd where none runs: the first process of namespaces of its own, with this machine's users and network."""

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SYSTEMD = Path("/lib/systemd/systemd")
UNITS = RUNS_ALREADY = Path("/run/systemd/system")  # its unit files; the folder is there where it runs
SECONDS = 60
# What a service that somebody else has written waits for, and nothing that would change this machine.
TARGETS = ("sysinit", "basic", "network-online", "shutdown", "multi-user")
# It is in its cgroups before it becomes the root of what it sees.
BOOT = r"""
for cgroup in "$@"; do echo $$ > "$cgroup/cgroup.procs" || exit; done
exec unshare --fork --kill-child --pid --mount-proc --mount --cgroup --ipc --uts sh -ec '
    umount --recursive /sys/fs/cgroup
    mount -t tmpfs tmpfs /run
    mkdir --parents @UNITS@
    for target in @TARGETS@; do printf "[Unit]\nDefaultDependencies=no\n" > @UNITS@/$target.target; done
    export SYSTEMD_UNIT_PATH=@UNITS@:/run/systemd/transient SYSTEMD_LOG_TARGET=console container=inflight
    exec @SYSTEMD@ --system --unit=multi-user.target systemd.unified_cgroup_hierarchy=0
'
"""


def why_not() -> str:
    """What this machine lacks for it; "" for nothing."""
    lacks = {
        "systemd to be installed": not SYSTEMD.exists(),
        "unshare and nsenter": not (shutil.which("unshare") and shutil.which("nsenter")),
        "a machine where it does not run already": RUNS_ALREADY.is_dir(),
        "a memory controller of cgroup v1": "memory" not in _hierarchies(),
    }
    return ", ".join(name for name, missing in lacks.items() if missing)


@contextlib.contextmanager
def booted(log: Path) -> Iterator[list[str]]:
    """Begins with a command before which any other runs beside that systemd; what it said is in `log`.

    Units are read from `UNITS` there. At the end they are stopped, and nothing is left.
    """
    cgroups = _own_cgroups(f"inflight-test-{secrets.token_hex(4)}")
    script = BOOT.replace("@UNITS@", str(UNITS)).replace("@TARGETS@", " ".join(TARGETS))
    command = ["sh", "-c", script.replace("@SYSTEMD@", str(SYSTEMD)), "boot", *map(str, cgroups)]
    try:
        with open(log, "w") as said:
            unshare = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        first = _first_process(unshare, log)
        beside = ["nsenter", f"--target={first.pid}", "--all"]
        try:
            yield beside
        finally:
            try:  # a unit that is stopped leaves no /tmp of its own behind
                subprocess.run([*beside, "systemctl", "stop", "*.service"], check=True, timeout=2 * SECONDS)
            finally:
                first.kill()
                unshare.wait(SECONDS)
    finally:
        for cgroup in cgroups:
            for folder, *_ in os.walk(cgroup, topdown=False):
                os.rmdir(folder)


def memory_limit(pid: int) -> int:
    """What the cgroup of a process may take, in bytes."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return int((_hierarchies()["memory"] / path[1:] / "memory.limit_in_bytes").read_text())
        if not controllers and "memory" not in _hierarchies():
            return int(Path("/sys/fs/cgroup", path[1:], "memory.max").read_text())
    raise AssertionError(f"process {pid} is in no cgroup with a limit of memory")


def _hierarchies() -> dict[str, Path]:
    """Where the hierarchies of cgroups are mounted, by what /proc/PID/cgroup calls them."""
    mounted = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        name = line.split(":", 2)[1]
        for _, place, kind, options, *_ in mounted:
            if kind == ("cgroup" if name else "cgroup2") and set(filter(None, name.split(","))) <= set(
                options.split(",")
            ):
                found.setdefault(name, Path(place))
    return found


def _own_cgroups(name: str) -> list[Path]:
    """A new cgroup below that of this process in each hierarchy."""
    places, made = _hierarchies(), []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in places:
            continue
        parent = places[controllers] / path[1:]
        made.append(parent / name)
        made[-1].mkdir()
        for given in parent.glob("cpuset.[cm][pe][um]s"):  # of a new one they are empty, and no process may enter
            (made[-1] / given.name).write_text(given.read_text())
    return made


def _first_process(unshare: subprocess.Popen, log: Path) -> psutil.Process:
    """The namespaces' first process, once it has started what it is to start."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and unshare.poll() is None:
        for process in psutil.Process(unshare.pid).children():
            state = ["nsenter", f"--target={process.pid}", "--all", "systemctl", "is-system-running", "--wait"]
            if re.fullmatch(r"running\n|degraded\n", subprocess.run(state, capture_output=True, text=True).stdout):
                return process
        time.sleep(0.2)
    unshare.kill()
    raise AssertionError(f"systemd did not start: {log.read_text()[-2000:]}")
