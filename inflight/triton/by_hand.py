"""A `tritonserver` whose arguments are written by hand, and what is added so that it is safe to run here.

    server = tritonserver(["--model-repository=repo", "--model-control-mode=explicit", "--load-model=*"])

The arguments are those of Triton's documentation. Added are an environment, free ports on 127.0.0.1, the Python backend
for this Python, the key of the control API, and a keeper that ends it with this program. All of it is shown as one
command line, the key masked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from inflight.errors import CourseError
from inflight.triton import process
from inflight.triton.process import LOG_LINES, Options, Process

# What is added here and may not be given, and what would open another door.
OURS = (
    "backend-directory", "http-address", "grpc-address", "metrics-address", "http-restricted-api",
    "grpc-restricted-protocol", "shm-region-prefix-name", "allow-sagemaker", "allow-vertex-ai",
)  # fmt: skip
PORTS = ("http-port", "grpc-port", "metrics-port")  # of these, those that are given are taken
ALL_LINES = 10_000  # more than a log has whose end is read
MAX_ROW = 160  # columns of a row of Triton's tables that are read in a notebook


class ByHand(Process):
    """A server from the wheel with arguments of its own; it loads what they say, and nothing is checked before.

    Parameters
    ----------
    arguments : sequence of str
        As `--name=value`.
    private : bool
        See `Server`.
    show : callable, optional
        Called with the whole command line, once it runs.

    Raises
    ------
    CourseError
        An argument that may not be given, or is not there; a repository that is no folder.
    """

    loads_by_itself = True

    def __init__(self, arguments: Sequence[str], private: bool, show: Callable[[str], None] | None = None):
        self._given = _checked(arguments)
        http, grpc, metrics = (_port(self._given, name) for name in PORTS)
        super().__init__(_repository(self._given), Options(http, grpc, metrics, private))
        self._show = show

    def _arguments(self, shm_prefix: str, key: str) -> list[str]:
        given = {_name(argument) for argument in self._given if _name(argument) != "backend-config"}
        added = [one for one in self._added(shm_prefix, key) if _name(one) not in given]
        self._added_lines = [one.replace(key, "(hidden)") if key else one for one in added]
        return [*self._given, *added]

    def start(self) -> None:
        super().start()
        if self._show is not None:
            self._show(self.command_line())

    def command_line(self) -> str:
        """Environment, program and arguments as a shell would have them, the key masked."""
        triton = process.installation()
        environment = process.environment(triton.parent.parent / "nvidia_pytriton.libs", triton / "lib")
        changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        lines = [
            "# The environment: Triton's libraries, and this Python for the models.",
            *(f"{name}={_with_former(name, value)}" for name, value in changed.items()),
            str(triton / "bin" / "tritonserver"),
            "    # yours",
            *(f"    {argument}" for argument in self._given),
            "    # added: free ports on this machine alone, the key, this Python's backend",
            *(f"    {argument}" for argument in self._added_lines),
            f"# A keeper watches process {self.pid}, and ends it when this program ends.",
        ]
        return _shortened("\n".join(lines))

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of Triton's log, without the tables that are too wide to be read."""
        kept = [line for line in super().log_tail(ALL_LINES).splitlines() if not _is_wide_row(line)]
        return "\n".join(kept[-lines:])


def _name(argument: str) -> str:
    return argument.removeprefix("--").partition("=")[0]


def _checked(arguments: Sequence[str]) -> list[str]:
    """The arguments as they are, after a look at each; Triton itself refuses what it does not know."""
    if isinstance(arguments, str) or not all(isinstance(argument, str) for argument in arguments):
        raise CourseError('Give tritonserver a list of texts, one an argument: ["--model-repository=repo", …].')
    for argument in arguments:
        if not argument.startswith("--"):
            raise CourseError(f"{argument!r} is no argument of tritonserver. Write --name=value, in one text.")
        if found := next((name for name in OURS if name in argument), None):
            raise CourseError(
                f"--{found} cannot be given here. It is added for you, so that the server answers on this machine "
                "alone, and to your key: leave it out."
            )
    return list(arguments)


def _port(arguments: list[str], name: str) -> int | None:
    values = [argument.partition("=")[2] for argument in arguments if _name(argument) == name]
    if not values:
        return None
    if not values[-1].isdecimal():
        raise CourseError(f"--{name}={values[-1]} is no port: give a number, or leave it out for a free one.")
    return int(values[-1])


def _repository(arguments: list[str]) -> Path:
    folders = [Path(one.partition("=")[2]) for one in arguments if _name(one) == "model-repository"]
    if not folders:
        raise CourseError("There is no --model-repository among the arguments: say which folder holds the models.")
    if missing := next((folder for folder in folders if not folder.is_dir()), None):
        raise CourseError(f"--model-repository={missing}: there is no such folder. Make it, or correct the path.")
    return folders[0].absolute()


def _is_wide_row(line: str) -> bool:
    return line.startswith(("|", "+")) and len(line) > MAX_ROW


def _with_former(name: str, value: str) -> str:
    """A value that begins or ends with the one that the variable has here, with `$NAME` in its place."""
    former = os.environ.get(name, "")
    return value.replace(former, f"${name}") if former else value


def _shortened(text: str) -> str:
    """The same with short names for the folders of this Python, of its packages, and of the user."""
    text = re.sub(r"[^\s=:]+/site-packages/", "…/site-packages/", text)
    for folder, short in ((sys.prefix, "$VIRTUAL_ENV"), (str(Path.home()), "~")):
        text = text.replace(f"{folder}/", f"{short}/")
    return text
