"""`tritonserver` with arguments that the learner writes.

    server = tritonserver(["--model-repository=repo", "--model-control-mode=explicit", "--load-model=*"])

The arguments are those of Triton's documentation. The course adds an environment, free ports on 127.0.0.1, the Python
backend for this Python, the key of the control API, and a keeper that ends the server with this program. It prints all
of that as one command line, the key masked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from inflight.errors import CourseError
from inflight.paths import without_home
from inflight.triton.serving import process
from inflight.triton.serving.server import Server

# What is added here and may not be given, and what would open another door.
OURS = (
    "backend-directory", "http-address", "grpc-address", "metrics-address", "http-restricted-api",
    "grpc-restricted-protocol", "shm-region-prefix-name", "allow-sagemaker", "allow-vertex-ai",
)  # fmt: skip


def tritonserver(arguments: Sequence[str]) -> Server:
    """Start `tritonserver` with these arguments, and print the whole command line, the key masked.

    The arguments decide what is loaded; the repository is not checked. It runs from the wheel on this machine, also
    where the environment names another place for servers, and ends with this program.

    Parameters
    ----------
    arguments : sequence of str
        As `--name=value`, such as `--model-repository=repo`.

    Returns
    -------
    Server
        It runs. `headers` is what a request carries that loads a model.

    Raises
    ------
    CourseError
        An argument that may not be given, or no repository; the server ended, with Triton's own words.
    """
    repo = ""
    for argument in arguments:
        if not str(argument).startswith("--"):
            raise CourseError(f"{argument!r} is no argument of tritonserver. Give a list of texts, each --name=value.")
        if found := next((name for name in OURS if name in argument), None):
            raise CourseError(
                f"--{found} cannot be given here. It is added for you, so that the server answers on this machine "
                "alone, and to your key: leave it out."
            )
        name, _, value = argument.partition("=")
        if name == "--model-repository":
            repo = value
    if not repo or not Path(repo).is_dir():
        raise CourseError(
            f"--model-repository={repo}: there is no such folder. Say which one holds the models, or make it."
        )
    server = Server(repo, arguments=arguments).start()
    print(_command_line(arguments, server))
    return server


def _command_line(arguments: Sequence[str], server: Server) -> str:
    """Environment, program and arguments as a shell would have them, the key masked."""
    key = next(iter(server.headers.values()), "no key")
    runs = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")[1:-1]
    added = [one.replace(key, "(hidden)") for one in runs if one not in arguments]
    environment = psutil.Process(server.pid).environ()
    changed = {name: value for name, value in environment.items() if os.environ.get(name) != value}
    return _shortened(
        "\n".join(
            [
                "# The environment: Triton's libraries, and this Python for the models.",
                *(f"{name}={_with_former(name, value)}" for name, value in changed.items()),
                *(f"unset {name}" for name in os.environ if name not in environment),
                str(process.installation() / "bin" / "tritonserver"),
                "    # yours",
                *(f"    {argument}" for argument in arguments),
                "    # added: free ports on this machine alone, the key, no other doors, this Python's backend",
                *(f"    {argument}" for argument in added),
                f"# A keeper watches process {server.pid}, and ends it when this program ends.",
            ]
        )
    )


def _with_former(name: str, value: str) -> str:
    """A value that begins or ends with the one that the variable has here, with `$NAME` in its place."""
    former = os.environ.get(name, "")
    return value.replace(former, f"${name}") if former else value


def _shortened(text: str) -> str:
    """The same with short names for the folders of this Python, of its packages, and of the user."""
    text = without_home(text.replace(f"{sys.prefix}/", "$VIRTUAL_ENV/"))
    return re.sub(r"[^\s=:]+/site-packages/", "…/site-packages/", text)
