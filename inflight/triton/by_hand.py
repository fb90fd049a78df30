"""A `tritonserver` whose arguments are written by hand, and what is added so that it is safe to run here.

    server = tritonserver(["--model-repository=repo", "--model-control-mode=explicit", "--load-model=*"])

The arguments are those of Triton's documentation. Added are an environment, free ports on 127.0.0.1, the Python backend
for this Python, the key that closes the server to other users, and a supervisor that ends it with this program. All of
it is shown as one command line, the key masked.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from inflight.errors import CourseError
from inflight.triton import hidden_arguments
from inflight.triton.supervised import LOG_LINES, Options
from inflight.triton.wheel import Wheel

# What may be given. Options that open another door, such as SageMaker's, or that move what is added here, may not.
GIVEN = (
    "backend-config", "buffer-manager-thread-count", "cache-config", "cuda-memory-pool-byte-size",
    "disable-auto-complete-config", "exit-on-error", "exit-timeout-secs", "grpc-port", "host-policy", "http-port",
    "http-thread-count", "load-model", "log-error", "log-format", "log-info", "log-verbose", "log-warning",
    "metrics-config", "metrics-interval-ms", "metrics-port", "min-supported-compute-capability", "model-control-mode",
    "model-load-retry-count", "model-load-thread-count", "model-namespacing", "model-repository",
    "pinned-memory-pool-byte-size", "rate-limit", "rate-limit-resource", "repository-poll-secs",
    "response-cache-byte-size", "strict-model-config", "strict-readiness",
)  # fmt: skip
REGION_PREFIX = "shm-region-prefix-name"
ALL_LINES = 10_000  # more than a log has whose end is read
MAX_ROW = 160  # columns of a row of Triton's tables that are read in a notebook
OF_THE_WATCH = "The watch of the models' processes"  # how a line of the log begins that is not Triton's


class ByHand(Wheel):
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
        http, grpc, metrics = (_port(self._given, name) for name in ("http-port", "grpc-port", "metrics-port"))
        super().__init__(_repository(self._given), Options(http, grpc, metrics, private))
        self._show = show

    def _launch(self) -> None:
        super()._launch()
        if self._show is not None:
            self._show(self.command_line())

    def _triton_options(self, repo: Path, host: str, ports: dict[str, int], metrics_address: str) -> list[str]:
        given = {_name(argument) for argument in self._given}
        all_of_ours = super()._triton_options(repo, host, ports, metrics_address)
        ours = [one for one in all_of_ours if _name(one) in ADDED and not _is_given(one, given)]
        return [*self._given, *ours]

    def command_line(self) -> str:
        """Environment, program, arguments and supervision as a shell would have them, the key masked."""
        environment, command = self._environment(), self._command()
        program = next(index for index, part in enumerate(command) if part.endswith("/tritonserver"))
        changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
        lines = [
            "# The environment: Triton's libraries, and this Python for the models.",
            *(f"{name}={_with_former(name, value)}" for name, value in changed.items()),
            command[program],
            "    # yours",
            *(f"    {argument}" for argument in self._given),
            "    # added: this Python's backend, free ports on this machine alone, the key",
            *(f"    {argument}" for argument in command[program + 1 :] if argument not in self._given),
            f"# A supervisor watches process {self.pid}, and ends it when this program ends.",
        ]
        return _shortened("\n".join(lines))

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """The last lines of Triton's log, without the tables that are too wide to be read."""
        told = super().log_tail(ALL_LINES).splitlines()
        kept = [line for line in told if not (_is_wide_row(line) or line.startswith(OF_THE_WATCH))]
        return "\n".join(kept[-lines:])


# Options that are added to those that are given. The first are ours alone: `GIVEN` does not have them.
ADDED = (
    "backend-directory", "backend-config", "http-address", "grpc-address", "metrics-address", "http-restricted-api",
    "grpc-restricted-protocol", "http-port", "grpc-port", "metrics-port", "exit-timeout-secs",
)  # fmt: skip


def _is_given(argument: str, given: set[str]) -> bool:
    """Whether one of ours is left out for one that is given; a backend may be told several things."""
    return _name(argument) in given and _name(argument) != "backend-config"


def _name(argument: str) -> str:
    return argument.removeprefix("--").partition("=")[0]


def _checked(arguments: Sequence[str]) -> list[str]:
    """The arguments as they are, after a look at each."""
    if isinstance(arguments, str) or not all(isinstance(argument, str) for argument in arguments):
        raise CourseError('Give tritonserver a list of texts, one an argument: ["--model-repository=repo", …].')
    for argument in arguments:
        if not argument.startswith("--"):
            raise CourseError(f"{argument!r} is no argument of tritonserver. Write --name=value, in one text.")
        name = _name(argument)
        if name not in GIVEN:
            raise CourseError(f"--{name} cannot be given here. {_instead_of(name)}")
        if REGION_PREFIX in argument:
            raise CourseError(f"{REGION_PREFIX} is added by tritonserver() itself: leave it out.")
        if hidden_arguments.PLACEHOLDER in argument:
            raise CourseError(f"{argument!r} has the place of the server's key in it: leave it out.")
    return list(arguments)


def _instead_of(name: str) -> str:
    if name in ADDED:
        return "It is added for you, so that the server answers on this machine alone, and to your key: leave it out."
    near = difflib.get_close_matches(name, GIVEN, 1)
    return f"Did you mean --{near[0]}?" if near else f"There are: {', '.join(GIVEN)}."


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
