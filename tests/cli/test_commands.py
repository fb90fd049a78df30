"""The command line as such: what it costs to ask it for help, and that it tells of settings in their own words."""

import dataclasses
import subprocess
import sys

import pytest
import typer

from inflight.cli.commands import app
from inflight.engine.config import BuildConfig

MOST_MB = 60


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
