"""Whether this machine carries a class: cores, memory and disk, the rows of `inflight doctor --class N`.

One learner was measured while lecture and lab 03 ran, on a machine of two cores (`assets/results/learner_*.json`): up
to 0.9 GiB of memory of their own and 0.2 GiB of files that all share, 1.9 cores while a cell computes and 0.04 on
average over a lesson's minutes, 99 MiB of disk, and 450 MiB for the cache that all share.
"""

from __future__ import annotations

import json
import shutil

from inflight import machine
from inflight.errors import CourseError
from inflight.machine import GIB, MIB, Check
from inflight.paths import ASSETS, cache_dir

MEASURED = ASSETS / "results" / "learner_smollm2-135m-instruct_intel-r-xeon-r-processor.json"
SLOWER = 3  # how many times as long a cell may take while everybody runs one: a class bears that for a moment
SYSTEM_MIB = 1024  # the system itself, the hub and its proxy


def checks(learners: int) -> list[Check]:
    """What a class of so many needs and what is here, one row a thing.

    Raises
    ------
    CourseError
        There is no learner.
    """
    if learners < 1:
        raise CourseError(f"A class of {learners} needs nothing: give the number of learners, --class 30.")
    one = json.loads(MEASURED.read_text())
    rows, disk = one["rows"], one["disk"]
    busy = max(row["busy_cores"] for row in rows)
    own = max(row["own_mib"] + row["shm_mib"] for row in rows)
    shared = max(row["files_mib"] for row in rows) + SYSTEM_MIB
    home = disk["home_mib"] + disk["engine_mib"]
    cores, memory = machine.cores(), machine.memory_bytes()
    free = shutil.disk_usage(machine.existing(cache_dir())).free
    need_cores, need_memory = learners * busy / SLOWER, (learners * own + shared) * MIB
    need_disk = (learners * home + disk["shared_cache_mib"]) * MIB
    return [
        machine.check(
            "cores",
            f"{need_cores:.0f}, for a cell to take {SLOWER} times as long at most when all run one at once",
            f"{cores}: {max(1.0, learners * busy / cores):.1f} times as long",
            cores >= need_cores,
            f"take a larger machine, or several: this one has the cores for {int(cores * SLOWER / busy)}",
            required=False,  # with fewer, a class is slow
        ),
        machine.check(
            "memory",
            f"{need_memory / GIB:.1f} GiB: {own * MIB / GIB:.1f} a learner",
            f"{memory / GIB:.1f} GiB",
            memory >= need_memory,
            f"take a larger machine, or several: its memory carries {int(max(0, memory / MIB - shared) / own)}",
        ),
        machine.check(
            "disk",
            f"{need_disk / GIB:.1f} GiB: {home:.0f} MiB a learner",
            f"{free / GIB:.1f} GiB free",
            free >= need_disk,
            "free some, or take a larger disk",
        ),
    ]
