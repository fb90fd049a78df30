"""A container runtime for tests, and an image that needs no registry: a few links, and this machine's files mounted."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import tarfile
from pathlib import Path

import pytest

from inflight import containers
from inflight.containers import Image, Runtime
from inflight.errors import CourseError
from inflight.paths import COURSE

IMAGE = os.environ.setdefault("INFLIGHT_TESTS_IMAGE", f"inflight-tests-{os.getpid()}")  # one a run, and its processes
# What podman needs on machines that do not let its default runtime make cgroups, or raise limits above their own.
MODEST = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def runtime_or_skip(folder: Path) -> Runtime:
    """A runtime in which a container runs; skips, with what each said, where there is none."""
    said = []
    for settings in (None, folder / "containers.conf"):
        if settings is not None:
            settings.write_text(MODEST)
            os.environ["CONTAINERS_CONF"] = str(settings)
        try:
            runtime = containers.find()
        except CourseError as error:
            pytest.skip(f"needs a container runtime: {error}")
        made = build_image(runtime, folder)
        if not made:
            done = runtime.ask(*command(runtime, "inflight-tests-probe", ["true"])[len(runtime.words) :])
            if done.returncode == 0:
                return runtime
            made = done.stderr
        said.append(made.strip().splitlines()[-1])
    pytest.skip(f"{runtime.kind} runs no container here: {'; '.join(said)}")


def command(runtime: Runtime, name: str, words: list[str]) -> list[str]:
    return runtime.command(image(), name, words)


def image() -> Image:
    """The image with what it needs mounted: system, Python, environment, and the course."""
    environment = Path(sys.prefix)
    packages = Path(importlib.util.find_spec("pytriton").origin).parent.parent
    places = ["/usr", sys.base_prefix, str(environment), str(COURSE), str(packages)]
    return Image(
        IMAGE,
        options=(
            *(f"--volume={place}:{place}:ro" for place in dict.fromkeys(places)),
            f"--env=PATH={environment}/bin:/usr/bin:/bin",
            f"--env=LD_LIBRARY_PATH=/opt/tritonserver/libs:/opt/tritonserver/lib:{sys.base_prefix}/lib",
        ),
    )


def build_image(runtime: Runtime, folder: Path) -> str:
    """Import an image of links and empty folders; what went wrong, or blank."""
    from inflight.triton import wheel

    laid_out = folder / "tritonserver"
    if not laid_out.exists():
        wheel.lay_out(laid_out)
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            _link(tar, name, os.readlink(f"/{name}") if os.path.islink(f"/{name}") else f"usr/{name}")
        for name in ("tmp", "etc", "proc", "sys", "dev", "run", "var", "usr", "root"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(laid_out, "opt/tritonserver")
        passwd = b"root:x:0:0:root:/root:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(passwd)
        tar.addfile(entry, io.BytesIO(passwd))
    done = runtime.ask("import", str(archive), IMAGE)
    return "" if done.returncode == 0 else done.stderr or "the image cannot be imported"


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def running(runtime: Runtime) -> list[str]:
    """Names of the course's containers that are there, running or not."""
    names = runtime.ask("ps", "--all", "--format", "{{.Names}}").stdout.split()
    return [name for name in names if name.startswith("inflight-")]


# Stands in for a runtime where only the commands given to one matter: it runs them on this machine, with the files of
# $STAND_IN/app where the image has /app.
STAND_IN = r"""#!/bin/bash
case $1 in
run)
    while [ "$1" != "$IMAGE_NAME" ]; do shift; done
    shift
    PATH=$STAND_IN/bin:$PATH
    exec "${@//\/app/$STAND_IN/app}" ;;
esac
exit 0
"""


def stand_in_runtime(folder: Path, monkeypatch: pytest.MonkeyPatch, image_name: str, **programs: str) -> Path:
    """Put a `docker` on the path that runs programs of `folder`; each is a Python script at its path."""
    path = folder / "path"
    path.mkdir(parents=True)
    (path / "docker").write_text(STAND_IN)
    (path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(folder))
    monkeypatch.setenv("IMAGE_NAME", image_name)
    for name, script in programs.items():
        put_program(folder / name, script)
    return folder


def put_program(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!{sys.executable}\n{script}")
    file.chmod(0o755)
