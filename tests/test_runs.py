"""A run of the tests ends, whatever dies in it: red, naming the test, with nothing left running."""

import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from inflight.paths import COURSE

OPTIONS = re.search(r"^PYTEST := .* -m pytest ((?:.*\\\n)*.*)$", (COURSE / "Makefile").read_text(), re.M)[1]
# In its second test this worker dies or hangs, and leaves a process in a session of its own.
VICTIM = """
import os, signal, subprocess, sys, threading

def test_leaves_a_process():
    waits = [sys.executable, "-c", "import threading; threading.Event().wait()", __file__]
    subprocess.Popen(waits, start_new_session=True)

def test_victim():
    {}

def test_after():
    pass
"""
ENDS = {
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "hears no signal": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]); threading.Event().wait()",
}
OTHERS = "import pytest\n\n@pytest.mark.parametrize('number', range(20))\ndef test_other(number):\n    pass\n"


def running(folder: Path) -> list[str]:
    """Command lines of processes that name something in `folder`."""
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if any(str(folder) in word for word in words)]


@pytest.mark.parametrize("end", ENDS)
def test_a_run_whose_worker_dies_ends_red_and_leaves_nothing(end, tmp_path):
    (tmp_path / "test_a.py").write_text(VICTIM.format(ENDS[end]))
    for name in ("b", "c", "d"):
        (tmp_path / f"test_{name}.py").write_text(OTHERS)
    quick = ["--override-ini=faulthandler_timeout=10", "--override-ini=addopts="]
    options = [
        *OPTIONS.replace("\\\n", " ").split(),
        "--numprocesses=2",
        *quick,
        "-p",
        "conftest",
        f"--rootdir={tmp_path}",
    ]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    run = subprocess.run(command, cwd=COURSE, capture_output=True, text=True, timeout=200)
    assert run.returncode == 1, run.stdout
    assert re.search(r"worker 'gw\d' crashed while running '(.*/)?test_a.py::test_victim'", run.stdout)
    assert "The tests left these processes" in run.stdout and running(tmp_path) == []
