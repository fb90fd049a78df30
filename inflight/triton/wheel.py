"""The way to a server of our own: the `tritonserver` inside the nvidia-pytriton wheel, a process of this machine."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from inflight import tiers
from inflight.errors import CourseError
from inflight.triton import keys, supervisor, watch
from inflight.triton.supervised import HOST, Options, Supervised


class Wheel(Supervised):
    """A server from the wheel, and its supervisor beside it."""

    def __init__(self, repo: Path, options: Options):
        super().__init__(repo, options)
        self._triton: Path | None = None

    @property
    def backend_dir(self) -> Path:
        """Folder of the Python backend that this server alone uses: links that go when it stops."""
        return self.folder / keys.BACKENDS / "python"

    def _prepare(self) -> None:
        self._triton = _installation()
        _link_backend(self._triton, self.folder / keys.BACKENDS)

    def _command(self) -> list[str]:
        assert self._triton is not None
        return [
            sys.executable,
            "-S",
            supervisor.__file__,
            str(self.folder),
            self._shm_prefix,
            str(self._triton / "bin" / "tritonserver"),
            f"--backend-directory={self.folder / keys.BACKENDS}",
            *self._triton_options(self.repo, HOST, self._ports, self._metrics_address(HOST)),
        ]

    def _environment(self) -> dict[str, str]:
        assert self._triton is not None
        return environment(self._triton.parent.parent / "nvidia_pytriton.libs", self._triton / "lib")

    def _is_ours(self) -> bool:
        return self.pid is not None and watch.listens(self.pid, (HOST, self._ports["http"]))

    def _why_not_started(self, said: str) -> str:
        return (
            f"tritonserver cannot be started ({said or 'its supervisor ended'}). Install the course's "
            "requirements again (`make course` does it)."
        )

    def _do_its_work(self) -> None:
        if self._pid is not None:
            supervisor.clean_up(self._pid, self._shm_prefix)


def environment(*libraries: Path) -> dict[str, str]:
    """What `tritonserver` runs with: the libraries of the wheel and of this Python, and this Python first on the path.

    The Python backend embeds an interpreter that takes its packages from where it finds `python3` on the path. Of the
    GPUs it sees the one that was chosen.
    """
    tiers.device()  # names the GPU in the environment
    # Some containers have the driver's own library on this path alone.
    given = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    drivers = [folder for folder in given if (Path(folder) / "libcuda.so.1").exists()]
    places = [*map(str, libraries), sysconfig.get_config_var("LIBDIR"), *drivers]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(places),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONUNBUFFERED": "1",
    }


def lay_out(target: str | Path) -> None:
    """Put the wheel's Triton where NVIDIA's images have theirs, as links: for an image of our own.

    `target`/bin/tritonserver runs with `target`/libs and `target`/lib on LD_LIBRARY_PATH, and finds `target`/backends
    by itself if `target` is /opt/tritonserver.
    """
    triton, target = _installation(), Path(target)
    _link_backend(triton, target / "backends")
    links = {
        "bin": triton / "bin",
        "lib": triton / "lib",
        "libs": triton.parent.parent / "nvidia_pytriton.libs",
    }
    for name, place in links.items():
        (target / name).symlink_to(place)


def _installation() -> Path:
    """Folder of the `tritonserver` that comes with the nvidia-pytriton wheel."""
    spec = find_spec("pytriton")
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if folder is None or not (folder / "bin" / "tritonserver").exists():
        raise CourseError("There is no tritonserver here: install the course's requirements (`make course` does it).")
    return folder


def _link_backend(triton: Path, backends: Path) -> None:
    """A backend folder for this Python, of links, so that nothing is written into site-packages."""
    folder = backends / "python"
    folder.mkdir(parents=True)
    for file in (triton / "backends" / "python").iterdir():
        (folder / file.name).symlink_to(file)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise CourseError(f"tritonserver has no Python backend for Python {version}. Use Python 3.11 or 3.12.")
    (folder / stub.name).unlink(missing_ok=True)
    (folder / stub.name).symlink_to(stub)
