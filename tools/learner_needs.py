"""What one learner takes of a machine: memory, processors, disk and ports, measured while lessons run.

    python -m tools.learner_needs [LESSON …]      01, 03 and 04 by default; writes assets/results/learner_….json

A JupyterLab server runs in a new workspace, as a hub starts one for each learner, and beside it each lecture and each
solution, one after the other, in a kernel of its own. All that belongs to them is found by a mark in its environment:
kernels, servers, model processes. `inflight doctor --class N` multiplies what stands in the file.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

from inflight import machine
from inflight.bench import recorded
from inflight.checkpoint import DEFAULT, fetch
from inflight.notebook import syllabus, workspace
from inflight.paths import COURSE, cache_dir

MARK = "INFLIGHT_LEARNER"
LESSONS = ("01", "03", "04")  # builds and compares engines; the first server; the most requests at once
EVERY_S = 0.5
BUSY_CORES = 0.5
CELL_TIMEOUT_S = 900
MIB = 2**20
PARTS = {"Pss": "all", "Pss_Anon": "own", "Pss_Shmem": "shared memory", "Pss_File": "files"}


@dataclass
class Use:
    """What the marked processes have taken at most, and of the processors in sum.

    Attributes
    ----------
    memory_mib, own_mib, shm_mib, files_mib : float
        Proportional memory at the moment when its sum was largest, and its parts: what is the processes' own, shared
        memory, and pages of files, which many learners share.
    processes, threads, ports : int
        The most at a time; ports are those that something listens on.
    busy_cores : float
        Processors that its threads ran on or waited for, on average over the moments in which there was work for
        `BUSY_CORES` or more; so other work on the machine does not change it much.
    cpu_s, wall_s : float
    """

    memory_mib: float = 0.0
    own_mib: float = 0.0
    shm_mib: float = 0.0
    files_mib: float = 0.0
    processes: int = 0
    threads: int = 0
    ports: int = 0
    busy_cores: float = 0.0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass
class Watch:
    """Looks at the marked processes until it is stopped."""

    mark: str
    use: Use = field(default_factory=Use)

    def __enter__(self) -> Watch:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._started = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self.use.wall_s = time.monotonic() - self._started

    def _look(self) -> None:
        before: dict[psutil.Process, float] = {}
        wanted_before: dict[Path, float] = {}
        first, moment, busy = True, time.monotonic(), []
        while not self._stopped.wait(EVERY_S):
            here = {process: seconds for process in marked(self.mark) if (seconds := _cpu_s(process)) is not None}
            # What ran before the watch began does not count, what has begun since does from its start.
            self.use.cpu_s += sum(here[each] - before.get(each, here[each] if first else 0.0) for each in here)
            wanted, now = _wanted_s(here), time.monotonic()
            cores = sum(seconds - wanted_before.get(thread, seconds) for thread, seconds in wanted.items())
            if (cores := cores / (now - moment)) >= BUSY_CORES:
                busy.append(cores)
                self.use.busy_cores = sum(busy) / len(busy)
            before, wanted_before, moment, first = here, wanted, now, False
            memory = [_memory_mib(process) for process in here]
            sums = {part: sum(each[part] for each in memory) for part in PARTS}
            if sums["Pss"] > self.use.memory_mib:
                self.use.memory_mib, self.use.own_mib = sums["Pss"], sums["Pss_Anon"]
                self.use.shm_mib, self.use.files_mib = sums["Pss_Shmem"], sums["Pss_File"]
            self.use.processes = max(self.use.processes, len(here))
            self.use.threads = max(self.use.threads, sum(_count(process.num_threads) for process in here))
            self.use.ports = max(self.use.ports, sum(_count(process.net_connections, "inet") for process in here))


def marked(mark: str) -> list[psutil.Process]:
    """Processes that were started with the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue  # another user's, or it has ended
    return found


def _cpu_s(process: psutil.Process) -> float | None:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return None
    return times.user + times.system


def _wanted_s(processes: Iterable[psutil.Process]) -> dict[Path, float]:
    """For each thread the seconds that it has run, and waited for a processor to run on."""
    found = {}
    for process in processes:
        for thread in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            try:
                ran, waited, _ = thread.read_text().split()
            except OSError:  # it has ended
                continue
            found[thread] = (int(ran) + int(waited)) / 1e9
    return found


def _memory_mib(process: psutil.Process) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return found
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024 / MIB
    return found


def _count(ask, *arguments: str) -> int:
    """A number of threads, or of ports that are listened on."""
    try:
        found = ask(*arguments)
    except psutil.Error:
        return 0
    return found if isinstance(found, int) else sum(one.status == psutil.CONN_LISTEN for one in found)


def _notebooks(lessons: list[str], place: Path) -> Iterator[tuple[str, str, Path]]:
    """Lecture and lab of each lesson in the workspace; the labs as they are once a learner has solved them."""
    for lesson in lessons:
        for notebook in sorted((place / "notebooks").glob(f"{lesson}_*.ipynb")):
            yield lesson, "lecture", notebook
        for solution in sorted((COURSE / "solutions").glob(f"{lesson}_*.ipynb")):
            yield lesson, "lab", Path(shutil.copy(solution, place / "labs"))


def _execute(notebook: Path, environment: dict[str, str]) -> None:
    read = nbformat.read(notebook, as_version=4)
    client = NotebookClient(
        read, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(notebook.parent)}}
    )
    client.execute(env=environment)
    nbformat.write(read, notebook)  # as a learner saves it


def _disk_mib(folder: Path) -> float:
    """What a folder takes on the disk, without what its links lead to."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) / MIB


def measure(lessons: list[str]) -> dict:
    """Run the lessons in a new home, and return what is written to the file."""
    fetch(DEFAULT)
    mark, rows = secrets.token_hex(8), []
    minutes = {lesson.number: lesson.minutes for lesson in syllabus.read()}
    with tempfile.TemporaryDirectory(prefix="inflight-learner-") as home:
        place = Path(home) / "work"
        environment = {
            **os.environ,
            MARK: mark,
            "INFLIGHT_HOME": str(cache_dir()),
            "INFLIGHT_WORK": str(place),
            "HOME": home,
            "JUPYTER_CONFIG_PATH": str(COURSE / "assets" / "jupyterlab"),
            "COURSE_STRICT": "1",
        }
        workspace.prepare(place)
        # Root's JupyterLab asks for --allow-root; a learner is not root, and it changes nothing else.
        lab = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
        command = [*lab, "--ServerApp.port=0", f"--ServerApp.root_dir={place}"]
        with open(Path(home) / "jupyter.log", "w") as log:
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                for lesson, kind, notebook in _notebooks(lessons, place):
                    with Watch(mark) as watch:
                        _execute(notebook, environment)
                    rows.append({"lesson": lesson, "kind": kind, "minutes": minutes[lesson]})
                    rows[-1] |= {key: round(value, 1) for key, value in asdict(watch.use).items()}
                    print(rows[-1], flush=True)
            finally:
                server.terminate()
                server.wait(60)
        engines = [path for path in (cache_dir() / "engines").iterdir() if path.is_dir()]
        disk = {
            "home_mib": round(_disk_mib(Path(home)), 1),
            "engine_mib": round(max(map(_disk_mib, engines)), 1),
            "shared_cache_mib": round(_disk_mib(cache_dir()), 1),
        }
    return {"machine": machine.describe(), "settings": {"lessons": lessons}, "rows": rows, "disk": disk, "ratios": {}}


if __name__ == "__main__":
    result = measure(sys.argv[1:] or list(LESSONS))
    target = recorded.path("learner", DEFAULT, result["machine"]["cpu"])
    target.write_text(json.dumps(result, indent=2) + "\n")
    print(target)
