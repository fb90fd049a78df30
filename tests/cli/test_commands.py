"""The command line as such: what it costs to ask it for help, and that it tells of settings in their own words."""

import dataclasses
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import typer

from inflight.cli.commands import app
from inflight.engine.config import BuildConfig

MOST_MB = 60
ROWS = 40


def options(command: str) -> dict:
    """Name of a parameter of a command -> the parameter, as the command line's library sees it."""
    return {option.name: option for option in typer.main.get_command(app).commands[command].params}


@pytest.mark.parametrize("name", sorted(options("build")))
def test_an_option_of_build_is_told_in_the_words_of_its_setting(name):
    settings = {setting.name: setting for setting in dataclasses.fields(BuildConfig)}
    if name in settings:
        option, setting = options("build")[name], settings[name]
        assert option.help == setting.metadata["help"]
        assert option.default == ("none" if setting.default is None else setting.default)
    else:
        assert name in ("checkpoint", "output_dir", "tier")


def test_every_setting_of_an_engine_that_can_vary_is_an_option_of_build():
    settings = {setting.name for setting in dataclasses.fields(BuildConfig)}
    assert settings - set(options("build")) == {"remove_input_padding"}  # there is nothing to choose


def test_help_takes_little_memory():
    script = (
        "from inflight.cli.commands import app\n"
        "app(['--help'], standalone_mode=False)\n"
        "print(open('/proc/self/status').read())"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    [peak] = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("VmHWM:")]
    assert int(peak) / 1000 < MOST_MB


def in_a_terminal(columns, *command):
    """What a command prints into a terminal so wide, line by line, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    terminal = {"env": environment | {"TERM": "xterm"}, "stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen([sys.executable, "-m", "inflight", *command], **terminal) as running:
        os.close(theirs)
        printed = b""
        while part := read_or_end(ours):
            printed += part
    os.close(ours)
    assert running.returncode in (0, 1), printed
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()).replace("\r", "").splitlines()


def read_or_end(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody writes to it any more
        return b""


@pytest.mark.parametrize("columns", [80, 60])
def test_the_doctor_reads_well_in_a_narrow_terminal(columns, tmp_path, monkeypatch):
    monkeypatch.setenv("INFLIGHT_HOME", str(tmp_path / ("a-long-name-of-a-folder-" * 5)))
    lines = in_a_terminal(columns, "doctor")
    assert max(map(len, lines)) <= columns
    assert not any("…" in line or "│" in line for line in lines)  # nothing is cut off, and no room goes to lines
    names = [line[5:].split("  ")[0].strip() for line in lines if line.startswith((" ok ", " no ", " - "))]
    assert {"CPU", "cores", "memory", "free disk", "ports"} <= set(names)
