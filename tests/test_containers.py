"""Finding a container runtime, and what a container is started with; no runtime is needed for it."""

import os
import re
import stat
from pathlib import Path

import pytest

from inflight import containers
from inflight.containers import Image, Runtime
from inflight.errors import CourseError

NVIDIA = "nvcr.io/nvidia/tritonserver:25.04-trtllm-python-py3"
DOCKER, PODMAN = Runtime(("docker",), "docker"), Runtime(("podman",), "podman")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH with nothing but what a test puts there: name -> shell script."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(**scripts):
        for name, script in scripts.items():
            file = tmp_path / name
            file.write_text(f"#!/bin/sh\n{script}\n")
            file.chmod(0o755)

    return put


def test_neither_is_there(path):
    with pytest.raises(CourseError, match="docker is not installed; podman is not installed.*Install podman"):
        containers.find()


def test_a_client_without_a_daemon_is_passed_over(path):
    path(docker="echo Cannot connect to the Docker daemon at unix:///x. >&2; exit 1", podman="exit 0")
    assert containers.find() == PODMAN
    path(docker="echo 'Cannot connect to the Docker daemon at x.' >&2; exit 0")
    assert containers.find() == PODMAN


def test_one_that_works_is_taken(path):
    path(docker="exit 0", podman="exit 0")
    assert containers.find() == DOCKER
    assert containers.find("podman --runtime runc") == Runtime(("podman", "--runtime", "runc"), "podman")


def test_what_each_said_is_told(path):
    path(docker="echo no daemon >&2; exit 1", podman="echo cannot set up namespace >&2; exit 125")
    with pytest.raises(CourseError, match=re.escape("docker does not work here (no daemon); podman does not work")):
        containers.find()


@pytest.mark.parametrize("named, said", [("nerdctl", "is no container runtime"), ("podman '", "cannot be read")])
def test_a_runtime_that_is_none_is_refused(path, named, said):
    with pytest.raises(CourseError, match=said):
        containers.find(named)


def test_one_that_hangs_is_not_waited_for(path, monkeypatch):
    path(docker="exec /bin/sleep 60")
    with pytest.raises(CourseError, match="does not answer within"):
        DOCKER.ask("info", timeout_s=0.2)


def test_the_environment_names_image_runtime_and_options(monkeypatch):
    assert Image.of_environment() is None
    monkeypatch.setenv("INFLIGHT_IMAGE", NVIDIA)
    monkeypatch.setenv("INFLIGHT_CONTAINER_RUNTIME", "podman")
    monkeypatch.setenv("INFLIGHT_CONTAINER_OPTIONS", "--memory=16g --gpus '\"device=0\"'")
    found = Image.of_environment()
    assert found == Image(NVIDIA, "podman", ("--memory=16g", "--gpus", '"device=0"'))
    assert found.has_tensorrt_llm and not Image("inflight-course").has_tensorrt_llm
    monkeypatch.setenv("INFLIGHT_CONTAINER_OPTIONS", "'")
    with pytest.raises(CourseError, match="INFLIGHT_CONTAINER_OPTIONS cannot be read"):
        Image.of_environment()


def test_a_command_publishes_on_loopback_mounts_under_the_same_names_and_pulls_nothing():
    command = PODMAN.command(
        Image("course", options=("--memory=8g",)), "box", ["python3", "-V"],
        [(Path("/a"), True), (Path("/b"), False)], [(18000, 8000)], interactive=True,
    )  # fmt: skip
    assert command[:4] == ["podman", "run", "--rm", "--pull=never"]
    assert command[-4:] == ["--memory=8g", "course", "python3", "-V"]
    assert {"--volume=/a:/a:rw", "--volume=/b:/b:ro", "--publish=127.0.0.1:18000:8000", "--interactive"} <= set(command)
    assert "--shm-size=2g" in command and not [word for word in command if "gpu" in word]


@pytest.mark.parametrize("runtime, gpu", [(DOCKER, "--gpus=all"), (PODMAN, "--device=nvidia.com/gpu=all")])
def test_nvidias_image_gets_a_gpu_and_room(runtime, gpu, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 0)
    command = runtime.command(Image(NVIDIA), "box", [])
    assert {gpu, "--ulimit=memlock=-1:-1", "--ulimit=stack=67108864:67108864"} <= set(command)


@pytest.mark.parametrize(
    "uid, rootless, user",
    [(1000, "", ["--user=1000:1000", "--env=HOME=/tmp"]), (1000, "name=rootless", []), (0, "", [])],
)
def test_with_dockers_daemon_a_container_runs_as_whoever_starts_it(path, monkeypatch, uid, rootless, user):
    path(docker=f"echo [{rootless}]")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(os, "getgid", lambda: uid)
    command = DOCKER.command(Image("course"), "box", [])
    assert [word for word in command if word.startswith(("--user", "--env=HOME"))] == user


def test_the_containerfile_keeps_what_a_machine_has_made_out():
    root = Path(__file__).parents[1]
    ignored = (root / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build"} <= set(ignored)
    text = (root / "Containerfile").read_text()
    assert "ARG BASE=" in text and "AS server" in text and "AS class" in text
    assert "ARG TORCH=cpu" in text and 'INFLIGHT_TORCH="${TORCH}"' in text
    assert stat.S_ISREG((root / "Containerfile").stat().st_mode)
