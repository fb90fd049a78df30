"""What the labs' tables take: a process that has imported what grades, and the server that lab 03 starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from inflight.notebook.checks import isolated
from inflight.paths import PACKAGE

GRADERS = [f"inflight.lessons.{path.parent.name}.grading" for path in (PACKAGE / "lessons").glob("*/grading.py")]
LONGEST_S = 280  # no row waits for the end of a grader's time, which a busy machine is longer than
# A line in, with files in place of a grader's pipes, its environment and folder; a line out, with its exit status.
FORKS = """
import contextlib, importlib, json, os, signal, sys
from inflight.notebook.checks import isolated
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    files, environment, folder = json.loads(line)
    if not (child := os.fork()):
        for number, path in enumerate(files):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        os.setsid()
        sys.stdin = open(0)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        isolated.main()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):  # what the learner's code has left, as _run ends it
        os.killpg(child, signal.SIGKILL)
    print(status, flush=True)
"""


@pytest.fixture(scope="session")
def grader():
    """A process that has imported what all graders do, and GPT-2 of transformers, which takes some seconds."""
    command = [sys.executable, "-c", FORKS, *GRADERS, "transformers.models.gpt2.modeling_gpt2"]
    environment = {**os.environ, **isolated.FEW_THREADS}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, env=environment, **pipes) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def graders_are_forked(request, monkeypatch):
    """What is graded apart is graded by a fork of the prepared process, in place of a Python of its own."""

    def run(given: str) -> tuple[str, str, int]:
        process, environment = request.getfixturevalue("grader"), {**os.environ, **isolated.FEW_THREADS}
        with TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("in", "out", "errors")]
            files[0].write_text(json.dumps(json.loads(given) | {"within_s": LONGEST_S}))
            process.stdin.write(json.dumps([list(map(str, files)), environment, os.getcwd()]) + "\n")
            status = int(process.stdout.readline())
            return files[1].read_text(), files[2].read_text(errors="replace"), status

    monkeypatch.setattr(isolated, "_run", run)


@pytest.fixture(scope="session")
def lab_server(streaming_server):
    return streaming_server
