"""Whether this machine carries a class: cores, memory and disk, the rows of `inflight doctor --class N`."""

from __future__ import annotations

import shutil

from inflight import machine
from inflight.errors import CourseError
from inflight.machine import GIB, MIB, Check
from inflight.paths import cache_dir

# One learner, measured while lecture and lab 03 ran on two cores of an Intel Xeon with the CPU tier.
BUSY_CORES = 1.9  # while a cell computes; 0.04 on average over a lesson's minutes
OWN_MIB = 878  # of memory, beside the files below, which the kernel holds once for all
FILES_MIB = 215
HOME_MIB = 99  # of disk: an engine, and the notebooks
SHARED_CACHE_MIB = 450  # of disk, once for all
SYSTEM_MIB = 1024  # of memory: the system itself, the hub and its proxy
SLOWER = 3  # how many times as long a cell may take while everybody runs one: a class bears that for a moment


def checks(learners: int) -> list[Check]:
    """What a class of so many needs and what is here, one row a thing.

    Raises
    ------
    CourseError
        There is no learner.
    """
    if learners < 1:
        raise CourseError(f"A class of {learners} needs nothing: give the number of learners, --class 30.")
    shared = FILES_MIB + SYSTEM_MIB
    cores, memory = machine.cores(), machine.memory_bytes()
    free = shutil.disk_usage(machine.existing(cache_dir())).free
    need_cores, need_memory = learners * BUSY_CORES / SLOWER, (learners * OWN_MIB + shared) * MIB
    need_disk = (learners * HOME_MIB + SHARED_CACHE_MIB) * MIB
    return [
        machine.check(
            "cores",
            f"{need_cores:.0f}, for a cell to take {SLOWER} times as long at most when all run one at once",
            f"{cores}: {max(1.0, learners * BUSY_CORES / cores):.1f} times as long",
            cores >= need_cores,
            f"take a larger machine, or several: this one has the cores for {int(cores * SLOWER / BUSY_CORES)}",
            required=False,  # with fewer, a class is slow
        ),
        machine.check(
            "memory",
            f"{need_memory / GIB:.1f} GiB: {OWN_MIB / 1024:.1f} a learner",
            f"{memory / GIB:.1f} GiB",
            memory >= need_memory,
            f"take a larger machine, or several: its memory carries {int(max(0, memory / MIB - shared) / OWN_MIB)}",
        ),
        machine.check(
            "disk",
            f"{need_disk / GIB:.1f} GiB: {HOME_MIB} MiB a learner",
            f"{free / GIB:.1f} GiB free",
            free >= need_disk,
            "free some, or take a larger disk",
        ),
    ]
