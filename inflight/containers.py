"""A container runtime, `docker` or `podman`: found, asked, and what runs in it started.

    runtime = find()
    runtime.check_image("inflight-course")
    subprocess.Popen(runtime.command(Image("inflight-course"), "box", ["python3", "-V"]))

Which one is asked first, the image and what else `run` is given are settings of an `Image`, by default from the
environment: INFLIGHT_IMAGE, INFLIGHT_CONTAINER_RUNTIME (a command, such as `podman` or `podman --runtime runc`) and
INFLIGHT_CONTAINER_OPTIONS (`--memory=16g --gpus '"device=0"'`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inflight.errors import CourseError

IMAGE, RUNTIME, OPTIONS = "INFLIGHT_IMAGE", "INFLIGHT_CONTAINER_RUNTIME", "INFLIGHT_CONTAINER_OPTIONS"  # environment
RUNTIMES = ("docker", "podman")
TENSORRT_LLM = "-trtllm-"  # in the names of NVIDIA's images that have it
ANSWER_S = 60
# What TensorRT-LLM needs of a container, and how each runtime gives it a GPU.
LIMITS = ("--ulimit=memlock=-1:-1", "--ulimit=stack=67108864:67108864")
GPUS = {"docker": ("--gpus=all",), "podman": ("--device=nvidia.com/gpu=all",)}


@dataclass(frozen=True)
class Image:
    """An image, and how containers of it are run.

    Attributes
    ----------
    name : str
    runtime : str
        Command of the runtime; blank: whichever of RUNTIMES works.
    options : tuple of str
        What `run` is given besides what it needs; given here, an option wins.
    """

    name: str
    runtime: str = ""
    options: tuple[str, ...] = ()

    @property
    def has_tensorrt_llm(self) -> bool:
        """Whether it is NVIDIA's image with TensorRT-LLM, by its name."""
        return TENSORRT_LLM in self.name

    @classmethod
    def of_environment(cls) -> Image | None:
        """As the environment says; None without INFLIGHT_IMAGE."""
        name = os.environ.get(IMAGE)
        if not name:
            return None
        return cls(name, os.environ.get(RUNTIME, ""), tuple(_words(OPTIONS, os.environ.get(OPTIONS, ""))))


def _words(setting: str, text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise CourseError(f"{setting} cannot be read ({error}): write it as on a command line.") from None


@dataclass(frozen=True)
class Runtime:
    """A runtime that works here.

    Attributes
    ----------
    words : tuple of str
        Its command, and options that stand before a subcommand.
    kind : str
        One of RUNTIMES.
    """

    words: tuple[str, ...]
    kind: str

    def ask(self, *arguments: str, timeout_s: float = ANSWER_S) -> subprocess.CompletedProcess[str]:
        """Run a subcommand that answers soon; what it says is in the result's `stdout` and `stderr`.

        Raises
        ------
        CourseError
            It does not answer in time.
        """
        try:
            return subprocess.run(
                [*self.words, *arguments],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise CourseError(
                f"`{shlex.join((*self.words, *arguments))}` does not answer within {timeout_s:g} s. Look whether "
                f"{self.kind} works, or name another runtime with {RUNTIME}."
            ) from None

    def check_image(self, name: str) -> None:
        """CourseError, with the command that gets it, when an image is not on this machine."""
        if self.ask("image", "inspect", name).returncode:
            get = f"{self.kind} pull {name}" if "/" in name else f"{self.kind} build -t {name} -f Containerfile ."
            raise CourseError(f"There is no image {name} on this machine. Get it with `{get}`.")

    def command(
        self,
        image: Image,
        name: str,
        command: Sequence[str],
        mounts: Sequence[tuple[Path, bool]] = (),
        ports: Sequence[tuple[int, int]] = (),
        interactive: bool = False,
    ) -> list[str]:
        """The command line that runs `command` in a new container, which is gone when that ends.

        Parameters
        ----------
        name : str
            Of the container.
        mounts : sequence of (path, bool)
            Files and folders that it sees under their own names, and whether it may write there.
        ports : sequence of (int, int)
            Port on this machine's loopback, and the port inside.
        interactive : bool
            Its standard input is ours, and ends with us.
        """
        gpu = (*GPUS[self.kind], *LIMITS) if image.has_tensorrt_llm else ()
        return [
            *self.words,
            "run",
            "--rm",
            "--pull=never",
            f"--name={name}",
            "--security-opt=label=disable",  # or SELinux would keep what is mounted from it
            "--shm-size=2g",  # the models exchange tensors there; 64 MB is what there is else
            "--env=HF_HUB_OFFLINE=1",
            *(["--interactive"] if interactive else []),
            *self._user(),
            *(f"--volume={path}:{path}:{'rw' if may_write else 'ro'}" for path, may_write in mounts),
            *(f"--publish=127.0.0.1:{port}:{inside}" for port, inside in ports),
            *gpu,
            *image.options,
            image.name,
            *command,
        ]

    def _user(self) -> list[str]:
        """With Docker's daemon, which runs as root, what is written would be root's: be whoever starts it."""
        if self.kind != "docker" or os.getuid() == 0:
            return []
        if "rootless" in self.ask("info", "--format", "{{.SecurityOptions}}").stdout:
            return []
        return [f"--user={os.getuid()}:{os.getgid()}", "--env=HOME=/tmp"]

    def remove(self, name: str) -> None:
        """End a container at once, and forget it; it may be gone already."""
        self.ask("kill", name)
        self.ask("rm", "--force", name)


def find(named: str = "") -> Runtime:
    """The runtime with that command, or the first of RUNTIMES that works.

    Raises
    ------
    CourseError
        None does, with what each said.
    """
    said = []
    for words in [_words(RUNTIME, named)] if named else [[name] for name in RUNTIMES]:
        kind = Path(words[0]).name
        if kind not in RUNTIMES:
            raise CourseError(f"{words[0]} is no container runtime of the course: use {' or '.join(RUNTIMES)}.")
        if shutil.which(words[0]) is None:
            said.append(f"{words[0]} is not installed")
            continue
        runtime = Runtime(tuple(words), kind)
        answer = runtime.ask("info")
        if answer.returncode == 0 and not (kind == "docker" and _has_no_daemon(answer)):
            return runtime
        said.append(f"{words[0]} does not work here ({_last_line(answer.stderr or answer.stdout)})")
    raise CourseError(
        f"No container can be run: {'; '.join(said)}. Install podman, or start Docker, and try again; without "
        f"{IMAGE} the course needs no container."
    )


def _has_no_daemon(answer: subprocess.CompletedProcess[str]) -> bool:
    """Old clients of Docker say so and succeed."""
    return "Cannot connect to the Docker daemon" in answer.stdout + answer.stderr


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else "it says nothing"
