"""A secret reaches a program as its argument, and is in none that the kernel shows."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.triton import hidden_arguments
from inflight.triton.hidden_arguments import PLACEHOLDER, CannotHide, start

SECRET = "s3cret-" + "x" * 60
PRINT = ["/usr/bin/printf", "%s\n", "plain", f"--one={PLACEHOLDER}", "", f"{PLACEHOLDER} and {PLACEHOLDER}"]


def test_the_program_gets_the_secret_in_its_place():
    process = start(PRINT, SECRET, stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0].splitlines() == ["plain", f"--one={SECRET}", "", f"{SECRET} and {SECRET}"]
    assert process.returncode == 0


def test_without_a_secret_arguments_stay_as_they_are():
    process = start(PRINT, "", stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0].splitlines()[1] == f"--one={PLACEHOLDER}"


def test_the_kernel_shows_the_placeholder_while_the_program_runs_and_nobody_traces_it():
    with start(["/bin/cat", "-", PLACEHOLDER], SECRET, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        proc = Path(f"/proc/{process.pid}")
        assert (proc / "cmdline").read_bytes() == f"/bin/cat\0-\0{PLACEHOLDER}\0".encode()
        assert SECRET.encode() not in (proc / "environ").read_bytes()
        assert "TracerPid:\t0\n" in (proc / "status").read_text()
        process.stdin.close()


def test_what_is_done_before_the_start_is_done_and_the_status_is_the_programs():
    process = start(["/bin/sh", "-c", "umask; exit 7", PLACEHOLDER], SECRET, lambda: os.umask(0o027) and None,
                    stdout=subprocess.PIPE, text=True)  # fmt: skip
    assert process.communicate()[0].strip() == "0027" and process.returncode == 7


def test_arguments_and_environments_of_many_sizes():
    for size in (0, 1, 7, 100, 5000):
        arguments = ["/bin/echo", "-n", *["y" * size] * (size % 13), PLACEHOLDER]
        process = start(arguments, SECRET, env={f"V{n}": "z" * size for n in range(size % 50)}, stdout=subprocess.PIPE)
        assert process.communicate()[0].decode().split()[-1] == SECRET


def test_a_program_that_is_not_there_is_named_as_it_was_given():
    with pytest.raises(FileNotFoundError) as caught:
        start(["/nowhere/program", PLACEHOLDER], SECRET)
    assert caught.value.filename == "/nowhere/program" and SECRET not in str(caught.value)


def test_a_machine_that_forbids_it_starts_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(hidden_arguments, "PTRACE_TRACEME", 9999)  # the kernel refuses it, as it would under a policy
    with pytest.raises(CannotHide, match="may not be traced"):
        start(["/usr/bin/touch", str(tmp_path / PLACEHOLDER)], SECRET)
    assert not list(tmp_path.iterdir())


def test_an_unexpected_layout_starts_nothing_and_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr(hidden_arguments, "_limits", lambda pid: (1 << 20, 1 << 21, 1 << 21, 1 << 22))
    with pytest.raises(CannotHide) as caught:
        start(["/usr/bin/touch", str(tmp_path / PLACEHOLDER)], SECRET)
    assert SECRET not in str(caught.value) and not list(tmp_path.iterdir())
    with contextlib.suppress(ChildProcessError):
        assert os.waitpid(-1, os.WNOHANG)[0] == 0


def test_a_path_that_is_too_long_is_told(tmp_path):
    with pytest.raises(CannotHide, match="is too long"):
        start(["/" + "x" * 4090, PLACEHOLDER], SECRET)


def test_as_a_program_it_takes_the_secret_from_its_input_and_ends_as_the_other():
    command = [sys.executable, "-S", hidden_arguments.__file__, "/bin/sh", "-c", 'echo "$0"; exit 3', PLACEHOLDER]
    done = subprocess.run(command, input=f"name: {SECRET}\n", capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (SECRET, 3)


def test_as_a_program_it_takes_the_other_along_when_it_is_killed():
    command = [sys.executable, "-S", hidden_arguments.__file__, "/bin/sh", "-c", "echo; exec sleep 600", PLACEHOLDER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(SECRET.encode())
        process.stdin.close()
        process.stdout.readline()  # the other one runs
        process.kill()
        assert process.stdout.read() == b"", "the last process that holds the pipe is gone"
