"""Whether this machine carries a class: the rows of `inflight doctor --class N`.

    checks(30)          # what thirty learners take, by what one was measured to take, and what is here

What one takes stands in assets/results/learner_*.json, which `python -m tools.learner_needs` measures.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from inflight import files, machine, paths, trust
from inflight.checkpoint.sources import DEFAULT
from inflight.errors import CourseError
from inflight.machine import GIB, MIB, Check

RESULTS = paths.ASSETS / "results"
SLOWER = 3  # how many times as long a cell may take while everybody runs one: a class bears that for a moment
SYSTEM_GIB = 1.0  # the system itself, the hub and its proxy
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
MOST_PROCESSES = Path("/proc/sys/kernel/threads-max")


@dataclass(frozen=True)
class Needs:
    """What one learner takes at most, in any of the lessons that were measured.

    Attributes
    ----------
    own_mib, files_mib, shm_mib : float
        Memory: its own (shared memory among it), and pages of files, which the learners of a machine share.
    cores_running, cores_of_a_lesson : float
        Processors while a cell computes, and on average over the minutes that a lesson takes.
    home_mib, cache_mib : float
        Disk: the learner's own, with an engine that only they build, and the cache that one fills for all.
    ports, threads : int
    device : str
        Where it was measured.
    """

    own_mib: float
    files_mib: float
    shm_mib: float
    cores_running: float
    cores_of_a_lesson: float
    home_mib: float
    cache_mib: float
    ports: int
    threads: int
    device: str

    def memory_gib(self, learners: int) -> float:
        """Of so many at once."""
        return (learners * self.own_mib + self.files_mib) * MIB / GIB


def measured(results: Path = RESULTS) -> Needs:
    """What one learner was measured to take; of several machines the one that is like this, else the first.

    Raises
    ------
    CourseError
        Nothing was measured, or the file is not as `tools.learner_needs` writes it.
    """
    found = [_needs(file) for file in sorted(results.glob("learner_*.json"))]
    if not found:
        raise CourseError(
            f"What one learner takes was not measured: {results} holds no learner_*.json. Get the course anew, or run "
            "python -m tools.learner_needs."
        )
    return next((needs for needs in found if needs.device == machine.device_name(machine.tiers.CPU)), found[0])


def _needs(file: Path) -> Needs:
    remedy = "Get it anew, or run python -m tools.learner_needs."
    result = json.loads(files.read_text(file, "result", 2**20, remedy))
    rows = result["rows"]
    lessons = {row["lesson"]: row["minutes"] * 60 for row in rows}
    work = {lesson: sum(row["cpu_s"] for row in rows if row["lesson"] == lesson) for lesson in lessons}
    return Needs(
        own_mib=max(row["own_mib"] + row["shm_mib"] for row in rows),
        files_mib=max(row["files_mib"] for row in rows),
        shm_mib=max(row["shm_mib"] for row in rows),
        cores_running=max(row["busy_cores"] for row in rows),
        cores_of_a_lesson=max(work[lesson] / lessons[lesson] for lesson in lessons),
        home_mib=result["disk"]["home_mib"] + result["disk"]["engine_mib"],
        cache_mib=result["disk"]["shared_cache_mib"],
        ports=int(max(row["ports"] for row in rows)),
        threads=int(max(row["threads"] for row in rows)),
        device=result["machine"]["cpu"],
    )


def checks(learners: int, needs: Needs | None = None) -> list[Check]:
    """What a class of so many needs and what is here, one row a thing.

    Raises
    ------
    CourseError
        There is no learner, or what one takes is not known.
    """
    if learners < 1:
        raise CourseError(f"A class of {learners} needs nothing: give the number of learners, --class 30.")
    needs = needs or measured()
    return [
        _cores(learners, needs),
        _memory(learners, needs),
        *_disks(learners, needs),
        _shared_memory(learners, needs),
        _ports(learners, needs),
        _threads(learners, needs),
        _shared_cache(),
    ]


def _cores(learners: int, needs: Needs) -> Check:
    """A class can be taught with fewer, slowly; with fewer than lessons take on average, it falls behind."""
    here, wanted = machine.cores(), learners * needs.cores_running / SLOWER
    slower = max(1.0, learners * needs.cores_running / here)
    carried = int(here * SLOWER / needs.cores_running)
    return machine.check(
        "cores",
        f"{wanted:.0f}, for a cell to take {SLOWER} times as long at most when all run one at once",
        f"{here}: {slower:.1f} times as long",
        here >= wanted,
        f"take a larger machine, or several: this one has the cores for {carried}; or let not all run cells at once",
        required=here < learners * needs.cores_of_a_lesson,
    )


def _memory(learners: int, needs: Needs) -> Check:
    here, wanted = machine.memory_bytes() / GIB, needs.memory_gib(learners) + SYSTEM_GIB
    carried = max(0, int((here - SYSTEM_GIB - needs.files_mib * MIB / GIB) * GIB / MIB / needs.own_mib))
    return machine.check(
        "memory",
        f"{wanted:.1f} GiB: {needs.own_mib * MIB / GIB:.1f} a learner",
        f"{here:.1f} GiB",
        here >= wanted,
        f"take a larger machine, or several: this one has the memory for {carried} learners",
    )


def _disks(learners: int, needs: Needs) -> list[Check]:
    homes, lent = Path("/home"), _lent()
    rows = [("disk for homes", homes, learners * needs.home_mib), ("disk for the cache", lent, needs.cache_mib)]
    found = []
    for name, folder, wanted in rows:
        # A cache that is filled has its place already.
        here = shutil.disk_usage(machine.existing(folder)).free / MIB
        is_filled = folder == lent and _has_a_checkpoint(lent)
        found.append(
            machine.check(
                name,
                f"{wanted:,.0f} MiB in {folder}",
                "filled" if is_filled else f"{here:,.0f} MiB free",
                is_filled or here >= wanted,
                f"free some, or put {folder} on a larger disk",
            )
        )
    return found


def _shared_memory(learners: int, needs: Needs) -> Check:
    shm, wanted = Path("/dev/shm"), learners * needs.shm_mib
    here = shutil.disk_usage(shm).free / MIB if shm.is_dir() else 0
    return machine.check(
        "free /dev/shm",
        f"{wanted:,.0f} MiB",
        f"{here:,.0f} MiB",
        here >= wanted,
        f"enlarge it (mount -o remount,size={int(wanted) + 1}m /dev/shm); in a container, give --shm-size",
    )


def _ports(learners: int, needs: Needs) -> Check:
    first, last = map(int, PORT_RANGE.read_text().split())
    taken = {found.laddr.port for found in psutil.net_connections("inet") if found.status == psutil.CONN_LISTEN}
    free, wanted = last - first + 1 - sum(first <= port <= last for port in taken), learners * needs.ports
    return machine.check(
        "ports",
        f"{wanted}: {needs.ports} a learner",
        f"{free:,} free of {first} to {last}",
        free >= wanted,
        "widen the range: sysctl net.ipv4.ip_local_port_range='20000 60999'",
    )


def _threads(learners: int, needs: Needs) -> Check:
    most, wanted = int(MOST_PROCESSES.read_text()), learners * needs.threads
    return machine.check(
        "threads",
        f"{wanted:,}: {needs.threads} a learner",
        f"at most {most:,}",
        most >= wanted,
        f"allow more: sysctl kernel.threads-max={2 * wanted}",
    )


def _shared_cache() -> Check:
    """Whether one folder serves all: named, filled, readable by all, and in nobody's hands but its owner's."""
    name, need = "shared cache", "one that all can read and only its owner can write"
    fill = "sudo env INFLIGHT_HOME=/shared/inflight inflight run, then set INFLIGHT_HOME for the hub"
    if not os.environ.get("INFLIGHT_HOME"):
        return machine.check(name, need, "INFLIGHT_HOME is not set", False, fill, required=False)
    folder = _lent()
    try:
        found = trust.doubt(folder, holds_files=True)
    except OSError as error:
        return machine.check(name, need, f"{folder}: {error.strerror}", False, f"chmod a+rx {folder}, and above it")
    if found is not None and found.is_open:
        return machine.check(name, need, str(found), False, f"chmod -R go-w {found.path}")
    if not _has_a_checkpoint(folder):
        return machine.check(name, need, f"{folder} has no model yet", False, fill)
    closed = next((path for path in (folder, *folder.parents) if path.stat().st_mode & 0o005 != 0o005), None)
    if closed is not None:
        return machine.check(name, need, f"{closed} is closed to others", False, f"chmod a+rx {closed}")
    owner = trust.user_name(folder.stat().st_uid)
    have = f"{folder}, of {owner}" + ("" if owner == "root" else f"; learners set {trust.VARIABLE}={owner}")
    return machine.check(name, need, have, True, "")


def _lent() -> Path:
    return paths.lent_dir().absolute() if os.environ.get("INFLIGHT_HOME") else Path("/shared/inflight")


def _has_a_checkpoint(folder: Path) -> bool:
    return any((folder / "checkpoints" / DEFAULT).glob("*.gguf"))
