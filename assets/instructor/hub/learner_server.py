#!/usr/bin/env python3
"""What a hub starts as a learner: on their processors, their workspace and JupyterLab in it.

JupyterHub says CPU_LIMIT and MEM_LIMIT, on a machine and on Kubernetes. Processors are taken by name too, because an
engine starts a thread for each one that it sees: with the time of two out of sixty-four, sixty-four threads would wait
for each other. LIMIT_EACH_PROCESS is set where no cgroup holds a learner's memory: then no process has more than
MEM_LIMIT of its own.
"""

import os
import re
import resource
import subprocess
import sys
import zlib


def cores_of(user: str, wanted: int, here: list[int]) -> list[int]:
    """The processors of a user: those of learner02 lie beside those of learner01, and after the last come the first."""
    number = re.search(r"\d+$", user)
    first = wanted * (int(number[0]) - 1 if number else zlib.crc32(user.encode()))
    return sorted(here[(first + each) % len(here)] for each in range(min(wanted, len(here))))


def main() -> None:
    os.umask(0o077)
    user, wanted = os.environ["JUPYTERHUB_USER"], float(os.environ.get("CPU_LIMIT") or 0)
    if wanted:
        os.sched_setaffinity(0, cores_of(user, max(1, round(wanted)), sorted(os.sched_getaffinity(0))))
    if os.environ.get("LIMIT_EACH_PROCESS") and os.environ.get("MEM_LIMIT"):
        most = int(os.environ["MEM_LIMIT"])
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    subprocess.run(["inflight", "lab", "--prepare-only"], check=True)
    os.execvp("jupyterhub-singleuser", ["jupyterhub-singleuser", *sys.argv[1:]])


if __name__ == "__main__":
    main()
